"""MNIST and Fashion-MNIST as Caffe's LMDBs, from the published IDX files."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.data.image_database import WrittenDatabase, write_images
from samovar.data.published import PublishedFile, find_published, read_published
from samovar.formats.idx import parse_idx


@dataclass(frozen=True, slots=True)
class Split:
    """One database and the files it is made from."""

    folder_name: str
    images: PublishedFile
    labels: PublishedFile


MNIST = (
    Split(
        "mnist_train_lmdb",
        PublishedFile("train-images-idx3-ubyte", 47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
        PublishedFile("train-labels-idx1-ubyte", 60_008, "a25bea736e30d166cdddb491f175f624"),
    ),
    Split(
        "mnist_test_lmdb",
        PublishedFile("t10k-images-idx3-ubyte", 7_840_016, "2646ac647ad5339dbf082846283269ea"),
        PublishedFile("t10k-labels-idx1-ubyte", 10_008, "27ae3e4e09519cfbb04c329615203637"),
    ),
)
FASHION_MNIST = (
    Split(
        "fashion_mnist_train_lmdb",
        PublishedFile("train-images-idx3-ubyte", 47_040_016, "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        PublishedFile("train-labels-idx1-ubyte", 60_008, "9018921c3c673c538a1fc5bad174d6f9"),
    ),
    Split(
        "fashion_mnist_test_lmdb",
        PublishedFile("t10k-images-idx3-ubyte", 7_840_016, "8181f5470baa50b63fa0f6fddb340f0a"),
        PublishedFile("t10k-labels-idx1-ubyte", 10_008, "15d484375f8d13e6eb1aabb0c3f46965"),
    ),
)


def write_mnist(source: Path, out: Path, splits: tuple[Split, ...] = MNIST) -> list[WrittenDatabase]:
    """Write out/mnist_train_lmdb and out/mnist_test_lmdb, records in file order, keys 00000000, ...

    `source` is the folder of the four published files, plain or packed; `splits` may name another data set of
    the same form. Nothing is written unless all are there with the published checksums of their unpacked content.

    Raises: InputError naming every missing file, or the one that differs.
    """
    files = [file for split in splits for file in (split.images, split.labels)]
    paths = find_published(source, files, "Fashion-MNIST" if splits is FASHION_MNIST else "MNIST")
    arrays = [_read_split(split, paths) for split in splits]
    return [
        write_images(out / split.folder_name, images[:, None], labels)
        for split, (images, labels) in zip(splits, arrays, strict=True)
    ]


def _read_split(split: Split, paths: dict[str, Path]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    images = parse_idx(read_published(paths[split.images.name], split.images), split.images.name, 3)
    labels = parse_idx(read_published(paths[split.labels.name], split.labels), split.labels.name, 1)
    if len(images) != len(labels):
        raise InputError(
            f"{split.images.name} holds {len(images)} images, {split.labels.name} {len(labels)} labels; "
            "take both files from one data set."
        )
    return images, labels
