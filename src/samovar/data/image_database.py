"""Arrays of images written as the LMDB that Caffe's converters write."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.formats.caffe.datum import encode_datum
from samovar.formats.lmdb_file import write_lmdb


@dataclass(frozen=True, slots=True)
class WrittenDatabase:
    """A database that is at its place now."""

    folder: Path
    num_records: int
    already_there: bool
    """The folder held the same records before, and was left as it was."""


def write_images(folder: Path, images_NHW: npt.NDArray[np.uint8], labels_N: npt.NDArray[np.integer]) -> WrittenDatabase:
    """Grey images uint8 (N, H, W) and their labels (N,), in this order, keys 00000000, 00000001, ...

    Cost: about 6 us per 28x28 record.
    Raises: InputError where the folder holds something else or cannot be written.
    """
    assert len(images_NHW) == len(labels_N), (len(images_NHW), len(labels_N))
    written = write_lmdb(folder, _records(images_NHW, labels_N))
    return WrittenDatabase(folder, len(images_NHW), not written)


def _records(images_NHW: npt.NDArray[np.uint8], labels_N: npt.NDArray[np.integer]) -> Iterator[tuple[bytes, bytes]]:
    for index, (image, label) in enumerate(zip(images_NHW, labels_N.tolist(), strict=True)):
        yield b"%08d" % index, encode_datum(image[None], label)
