"""What the nets for ImageNet (ILSVRC 2012: 1,281,167 images of 1,000 classes, 50,000 to validate) have in common."""

from collections.abc import Sequence

from generator.model import Images, SolverLine
from generator.prototxt import FALSE, TRUE, Message

NUM_CLASSES = 1000
MEAN_IMAGE: Message = {"mean_file": "data/ilsvrc12/imagenet_mean.binaryproto"}
MEAN_COLOUR: Message = {"mean_value": [104, 117, 123]}  # blue, green, red
DATA_SAYS = "The databases hold images of 256 x 256, channels blue, green, red, as OpenCV decodes them."


def databases(
    crop: int, mean: Message, batch_size: int, test_batch_size: int, folder: str = "data/ilsvrc12"
) -> tuple[Images, Images]:
    """To train on random crops and their mirror images, to test on center crops."""
    return (
        Images(f"{folder}/ilsvrc12_train_lmdb", batch_size, {"mirror": TRUE, "crop_size": crop, **mean}),
        Images(f"{folder}/ilsvrc12_val_lmdb", test_batch_size, {"mirror": FALSE, "crop_size": crop, **mean}),
    )


def solver(
    name: str, *, max_iter: int, test_batch_size: int, rate: Sequence[SolverLine], rule: Sequence[SolverLine]
) -> list[SolverLine]:
    """A solver's lines: `rate` says base_lr and policy, `rule` momentum, decay and the like."""
    return [
        ("net", "train_val.prototxt"),
        ("max_iter", max_iter),
        ("display", 20),
        ("test_iter", 50_000 // test_batch_size, f"x {test_batch_size} = the 50,000 images to validate"),
        ("test_interval", 5000),
        *rate,
        *rule,
        ("snapshot", 10_000),
        ("snapshot_prefix", name),
    ]


def steps(base_lr: float, step_size: int) -> list[SolverLine]:
    """A tenth of the rate after each `step_size` iterations."""
    return [("base_lr", base_lr), ("lr_policy", "step"), ("gamma", 0.1), ("stepsize", step_size)]


def momentum(weight_decay: float) -> list[SolverLine]:
    return [("momentum", 0.9), ("weight_decay", weight_decay)]
