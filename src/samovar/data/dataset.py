"""Records of a Caffe database as arrays.

Legend: n samples of one read, C channels, H height, W width.
"""

from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.data.config import TransformConfig
from samovar.formats.caffe.datum import decode_datum
from samovar.formats.image import Channels
from samovar.formats.lmdb_file import LmdbFile

Images: TypeAlias = npt.NDArray[np.uint8 | np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]

_PLAIN = TransformConfig()


class ImageDataset(Protocol):
    """Images and labels, numbered 0 .. len - 1; `sample_shape` is (C, H, W) of the first one, as in Caffe."""

    sample_shape: tuple[int, int, int]

    def __len__(self) -> int: ...

    def read(self, indices: npt.NDArray[np.int64]) -> tuple[Images, Labels]:
        """Images (n, C, H, W), all of `sample_shape`, and labels int64 (n,); InputError for a damaged one."""

    def read_each(self, indices: npt.NDArray[np.int64]) -> tuple[list[Images], Labels]:
        """The same, each image (C, H, W) of its own height and width."""

    def close(self) -> None:
        """Give the files back; may be called again."""


class LmdbDataset:
    """Datum records of one LMDB folder, numbered 0 .. len - 1 in key order.

    Compressed records are decoded to the channels that `transform` asks for.
    `sample_shape` is (C, H, W) of the first record, as in Caffe.
    Raises: InputError for a database that cannot be read or holds no record.
    """

    def __init__(self, source: Path, transform: TransformConfig = _PLAIN) -> None:
        self.source = source
        self._channels: Channels = "color" if transform.force_color else "gray" if transform.force_gray else "stored"
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
        images, labels = self._read(indices, any_size=False)
        if not images:
            return np.empty((0, *self.sample_shape), np.uint8), labels
        return np.stack(images), labels

    def read_each(self, indices: npt.NDArray[np.int64]) -> tuple[list[Images], Labels]:
        """As `read`, with images (C, H, W) of any height and width."""
        return self._read(indices, any_size=True)

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

    def _read(self, indices: npt.NDArray[np.int64], any_size: bool) -> tuple[list[Images], Labels]:
        images, labels = [], np.empty(len(indices), np.int64)
        for place, value in enumerate(self._file.values(indices)):
            index = int(indices[place])
            image, labels[place] = self._datum(index, value)
            num_compared = 1 if any_size else 3
            if image.shape[:num_compared] != self.sample_shape[:num_compared]:
                raise InputError(self._other_shape(index, image.shape))
            images.append(image)
        return images, labels

    def _other_shape(self, index: int, shape: tuple[int, ...]) -> str:
        return (
            f"{self.source}: record {self._key(index)} has shape {shape}, the first record {self.sample_shape}; "
            "a batch needs one shape (channels, height, width). Resize the images when converting, give a "
            "crop_size (without mean_file) for different sizes, or force_color: true for different channels."
        )

    def _datum(self, index: int, value: bytes) -> tuple[Images, int]:
        try:
            return decode_datum(value, self._channels)
        except InputError as error:
            raise InputError(f"{self.source}: record {self._key(index)}: {error}") from error

    def _key(self, index: int) -> str:
        return repr(self._file.key(index).decode("utf-8", "backslashreplace"))
