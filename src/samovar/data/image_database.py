"""Arrays of images written as the LMDB that Caffe's converters write."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.formats.caffe.datum import encode_datum
from samovar.formats.lmdb_file import write_lmdb

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class WrittenDatabase:
    """A database that is at its place now."""

    folder: Path
    num_records: int
    already_there: bool
    """The folder held the same records before, and was left as it was."""


def write_images(
    folder: Path, images_NCHW: Bytes, labels_N: npt.NDArray[np.integer], num_key_digits: int = 8
) -> WrittenDatabase:
    """Images uint8 (N, C, H, W) and their labels (N,), in this order, keys 00000000, 00000001, ...

    Cost: about 6 us per 28x28 record.
    Raises: InputError where the folder holds something else or cannot be written.
    """
    assert len(images_NCHW) == len(labels_N) <= 10**num_key_digits, (len(images_NCHW), len(labels_N))
    written = write_lmdb(folder, _records(images_NCHW, labels_N, num_key_digits))
    return WrittenDatabase(folder, len(images_NCHW), not written)


def _records(
    images_NCHW: Bytes, labels_N: npt.NDArray[np.integer], num_key_digits: int
) -> Iterator[tuple[bytes, bytes]]:
    for index, (image, label) in enumerate(zip(images_NCHW, labels_N.tolist(), strict=True)):
        yield b"%0*d" % (num_key_digits, index), encode_datum(image, label)
