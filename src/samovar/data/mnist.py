"""MNIST as Caffe's LMDBs, from the published IDX files."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.data.image_database import WrittenDatabase, write_images
from samovar.formats.idx import parse_idx, read_plain_or_gzip


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """An unpacked IDX file as it was published."""

    name: str
    size_bytes: int
    md5: str


@dataclass(frozen=True, slots=True)
class Split:
    """One database and the files it is made from."""

    folder_name: str
    images: PublishedFile
    labels: PublishedFile


SPLITS = (
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


def write_mnist(source: Path, out: Path, splits: tuple[Split, ...] = SPLITS) -> list[WrittenDatabase]:
    """Write out/mnist_train_lmdb and out/mnist_test_lmdb, records in file order, keys 00000000, ...

    `source` is the folder of the four published files, plain or gzipped. Nothing is written unless all
    are there with the published checksums of their unpacked content.

    Raises: InputError naming every missing file, or the one that differs.
    """
    paths = _find_all(source, splits)
    arrays = [_read_split(split, paths) for split in splits]
    return [
        write_images(out / split.folder_name, images, labels)
        for split, (images, labels) in zip(splits, arrays, strict=True)
    ]


def _find_all(source: Path, splits: tuple[Split, ...]) -> dict[str, Path]:
    names = [file.name for split in splits for file in (split.images, split.labels)]
    try:
        present = {path.name for path in source.iterdir()}
    except OSError as error:
        raise InputError(
            f"{source}: {error.strerror}. Name the folder that holds {', '.join(names)} (or .gz of the same names)."
        ) from error
    missing = [name for name in names if not present & {name, f"{name}.gz"}]
    if missing:
        raise InputError(
            f"{source}: {', '.join(missing)} (or .gz of the same name) not found. Put the published MNIST "
            "files there, or name the folder that holds them."
        )
    return {name: source / (name if name in present else f"{name}.gz") for name in names}


def _read_split(split: Split, paths: dict[str, Path]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    images = parse_idx(_verified(paths, split.images), split.images.name, 3)
    labels = parse_idx(_verified(paths, split.labels), split.labels.name, 1)
    if len(images) != len(labels):
        raise InputError(
            f"{split.images.name} holds {len(images)} images, {split.labels.name} {len(labels)} labels; "
            "take both files from one data set."
        )
    return images, labels


def _verified(paths: dict[str, Path], file: PublishedFile) -> bytes:
    path = paths[file.name]
    content = read_plain_or_gzip(path, file.size_bytes)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != file.md5:
        raise InputError(
            f"{path}: its content has MD5 {found}, the published file {file.md5}: it is damaged, or of "
            "another data set. Download it again."
        )
    return content
