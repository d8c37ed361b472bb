"""Records of a Caffe database as arrays.

Legend: n samples of one read, C channels, H height, W width.
"""

from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.formats.caffe.datum import decode_datum
from samovar.formats.lmdb_file import LmdbFile

Images: TypeAlias = npt.NDArray[np.uint8 | np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]


class LmdbDataset:
    """Datum records of one LMDB folder, numbered 0 .. len - 1 in key order; all of one shape.

    `sample_shape` is (C, H, W) of the first record, as in Caffe.
    Raises: InputError for a database that cannot be read or holds no record.
    """

    def __init__(self, source: Path) -> None:
        self.source = source
        self._file = LmdbFile(source)
        try:
            self.sample_shape = self._first_shape()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._file)

    def read(self, indices: npt.NDArray[np.int64]) -> tuple[Images, Labels]:
        """Images (n, C, H, W), uint8 or (where a record holds floats) float32, and labels int64 (n,).

        Cost: one or n reads of the file (see LmdbFile.values) and one copy of each image.
        Raises: InputError naming the key of a record that is damaged or of another shape.
        """
        images, labels = [], np.empty(len(indices), np.int64)
        for place, value in enumerate(self._file.values(indices)):
            image, labels[place] = self._decoded(int(indices[place]), value)
            images.append(image)
        if not images:
            return np.empty((0, *self.sample_shape), np.uint8), labels
        return np.stack(images), labels

    def close(self) -> None:
        """Give the file back; may be called again."""
        self._file.close()

    def __enter__(self) -> "LmdbDataset":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _first_shape(self) -> tuple[int, int, int]:
        if len(self._file) == 0:
            raise InputError(f"{self.source}: holds no records. Convert the images again.")
        [value] = self._file.values(np.zeros(1, np.int64))
        channels, height, width = self._datum(0, value)[0].shape
        return channels, height, width

    def _decoded(self, index: int, value: bytes) -> tuple[Images, int]:
        image, label = self._datum(index, value)
        if image.shape != self.sample_shape:
            raise InputError(
                f"{self.source}: record {self._key(index)} has shape {image.shape}, the first record "
                f"{self.sample_shape}; a batch needs one shape (channels, height, width). Resize the images "
                "when converting."
            )
        return image, label

    def _datum(self, index: int, value: bytes) -> tuple[Images, int]:
        try:
            return decode_datum(value)
        except InputError as error:
            raise InputError(f"{self.source}: record {self._key(index)}: {error}") from error

    def _key(self, index: int) -> str:
        return repr(self._file.key(index).decode("utf-8", "backslashreplace"))
