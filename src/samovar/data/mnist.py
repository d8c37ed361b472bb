"""MNIST and Fashion-MNIST as Caffe's LMDBs, from the published IDX files."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.data.image_database import WrittenDatabase, write_images
from samovar.formats.idx import parse_idx
from samovar.formats.packed import SUFFIXES, read_unpacked


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """An unpacked file as it was published."""

    name: str
    size_bytes: int
    md5: str


def find_published(source: Path, files: Sequence[PublishedFile], data_set: str) -> dict[str, Path]:
    """Where each file lies in the folder `source`, by its name: plain, or else packed (.gz, .xz).

    Raises: InputError naming every missing file.
    """
    names = [file.name for file in files]
    packed = " or ".join(suffix for suffix in SUFFIXES if suffix)
    try:
        present = {path.name for path in source.iterdir()}
    except OSError as error:
        raise InputError(
            f"{source}: {error.strerror}. Name the folder that holds {', '.join(names)} "
            f"(or {packed} of the same names)."
        ) from error
    found = {name: f"{name}{suffix}" for suffix in reversed(SUFFIXES) for name in names if f"{name}{suffix}" in present}
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(
            f"{source}: {', '.join(missing)} (or {packed} of the same name) not found. Put the published {data_set} "
            "files there, or name the folder that holds them."
        )
    return {name: source / found[name] for name in names}


def read_published(path: Path, file: PublishedFile) -> bytes:
    """The unpacked content; InputError where its checksum is not the published one."""
    content = read_unpacked(path, file.size_bytes)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != file.md5:
        raise InputError(
            f"{path}: its content has MD5 {found}, the published file {file.md5}: it is damaged, or of "
            "another data set. Download it again."
        )
    return content


@dataclass(frozen=True, slots=True)
class MnistSplit:
    """One database and the files it is made from."""

    folder_name: str
    images: PublishedFile
    labels: PublishedFile


MNIST = (
    MnistSplit(
        "mnist_train_lmdb",
        PublishedFile("train-images-idx3-ubyte", 47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
        PublishedFile("train-labels-idx1-ubyte", 60_008, "a25bea736e30d166cdddb491f175f624"),
    ),
    MnistSplit(
        "mnist_test_lmdb",
        PublishedFile("t10k-images-idx3-ubyte", 7_840_016, "2646ac647ad5339dbf082846283269ea"),
        PublishedFile("t10k-labels-idx1-ubyte", 10_008, "27ae3e4e09519cfbb04c329615203637"),
    ),
)
FASHION_MNIST = (
    MnistSplit(
        "fashion_mnist_train_lmdb",
        PublishedFile("train-images-idx3-ubyte", 47_040_016, "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        PublishedFile("train-labels-idx1-ubyte", 60_008, "9018921c3c673c538a1fc5bad174d6f9"),
    ),
    MnistSplit(
        "fashion_mnist_test_lmdb",
        PublishedFile("t10k-images-idx3-ubyte", 7_840_016, "8181f5470baa50b63fa0f6fddb340f0a"),
        PublishedFile("t10k-labels-idx1-ubyte", 10_008, "15d484375f8d13e6eb1aabb0c3f46965"),
    ),
)


def write_mnist(source: Path, out: Path, splits: tuple[MnistSplit, ...] = MNIST) -> list[WrittenDatabase]:
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


def _read_split(split: MnistSplit, paths: dict[str, Path]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    images = parse_idx(read_published(paths[split.images.name], split.images), split.images.name, 3)
    labels = parse_idx(read_published(paths[split.labels.name], split.labels), split.labels.name, 1)
    if len(images) != len(labels):
        raise InputError(
            f"{split.images.name} holds {len(images)} images, {split.labels.name} {len(labels)} labels; "
            "take both files from one data set."
        )
    return images, labels
