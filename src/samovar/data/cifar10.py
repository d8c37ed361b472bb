"""CIFAR-10 as Caffe's LMDBs, from the files of its binary version, and the mean image of what is trained on.

A record is one byte of label, then 1,024 bytes each of red, green and blue. The published test batch is left
aside: batches 1 to 4 are for training and batch 5 is held out, so what is measured is no test-set accuracy.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.data.image_database import WrittenDatabase, write_images
from samovar.data.mnist import PublishedFile, find_published, read_published
from samovar.formats.caffe.mean import mean_image, write_mean

_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32
_BATCH_BYTES = 10_000 * _RECORD_BYTES
_KEY_DIGITS = 5  # as Caffe's converter of this data set
_MD5S = (
    "5dd7e06a14cb22eb9f671a540d1b7c25",
    "5ea93a67294ea407fff1d09f752e9692",
    "942cd6a4bcdd0dd3c604fbe906cb4421",
    "ae636b3ba5c66a11e91e8cb52e771fcb",
    "53f37980c15c3d472c316c40844f3f0d",
)
BATCHES = tuple(PublishedFile(f"data_batch_{n}.bin", _BATCH_BYTES, md5) for n, md5 in enumerate(_MD5S, start=1))


@dataclass(frozen=True, slots=True)
class WrittenMean:
    """The mean image of a database, at its place now."""

    path: Path
    already_there: bool


def write_cifar10(
    source: Path, out: Path, batches: tuple[PublishedFile, ...] = BATCHES
) -> tuple[list[WrittenDatabase], WrittenMean]:
    """Write out/cifar10_train_lmdb (all batches but the last), out/cifar10_test_lmdb (the last) and
    out/mean.binaryproto, the mean of the training images.

    `source` is the folder of the batches, plain or packed (.gz, .xz). Nothing is written unless all are there
    with their published checksums. Cost: about 2 s and 300 MB of memory, beside unpacking.

    Raises: InputError naming every missing file, or the one that differs; where something else is at the place.
    """
    paths = find_published(source, batches, "CIFAR-10")
    parts = [_read_batch(paths[file.name], file) for file in batches]
    images = np.concatenate([images for images, _ in parts[:-1]])
    labels = np.concatenate([labels for _, labels in parts[:-1]])
    databases = [
        write_images(out / "cifar10_train_lmdb", images, labels, _KEY_DIGITS),
        write_images(out / "cifar10_test_lmdb", *parts[-1], _KEY_DIGITS),
    ]
    path = out / "mean.binaryproto"
    return databases, WrittenMean(path, not write_mean(path, mean_image(images)))


def _read_batch(path: Path, file: PublishedFile) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images uint8 (N, 3, 32, 32), channels red, green, blue, and labels uint8 (N,)."""
    content = read_published(path, file)
    if len(content) % _RECORD_BYTES:
        raise InputError(f"{path}: {len(content)} bytes are no whole records of {_RECORD_BYTES}. Download it again.")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)
    return records[:, 1:].reshape(-1, *_SHAPE), records[:, 0]
