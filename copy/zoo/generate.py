"""Writes the zoo's prototxts: `python generate.py [FOLDER]`, by default beside this file."""

import sys
from pathlib import Path

from generator import alexnet, cifar10, googlenet, inception_resnet, lenet, nin, resnet, vgg

MODELS = (
    lenet.LENET,
    cifar10.QUICK,
    cifar10.FULL,
    alexnet.ALEXNET,
    alexnet.CAFFENET,
    nin.NIN,
    googlenet.GOOGLENET,
    vgg.VGG16,
    vgg.VGG19,
    resnet.RESNET50,
    inception_resnet.INCEPTION_RESNET_V2,
)


def main(arguments: list[str]) -> None:
    out = Path(arguments[0]) if arguments else Path(__file__).parent
    for model in MODELS:
        folder = out / model.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in model.files().items():
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
