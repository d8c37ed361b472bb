"""Numbered images, from an LMDB, from a list of image files, or from the data cache.

Legend: n samples of one read, C channels, H height, W width.
"""

from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from samovar.core.closing import Closing
from samovar.core.errors import InputError
from samovar.core.files import read_file
from samovar.data.cache import Bytes, CacheSetup, Int64s, RecordCache
from samovar.data.config import ImageDataConfig, TransformConfig
from samovar.data.shares import Share, read_share
from samovar.formats.caffe.datum import decode_datum
from samovar.formats.image import Channels, read_image, resized
from samovar.formats.lmdb_file import LmdbFile

Images: TypeAlias = npt.NDArray[np.uint8 | np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]

_PLAIN = TransformConfig()


class ImageDataset(Protocol):
    """Images and labels, numbered 0 .. len - 1; `sample_shape` is (C, H, W) of the first one, as in Caffe."""

    sample_shape: tuple[int, int, int]
    share: Share | None  # the images that this process can read; None: all

    def __len__(self) -> int: ...

    def read(self, indices: npt.NDArray[np.int64]) -> tuple[Images, Labels]:
        """Images (n, C, H, W), all of `sample_shape`, and labels int64 (n,); InputError for a damaged one."""

    def read_each(self, indices: npt.NDArray[np.int64]) -> tuple[list[Images], Labels]:
        """The same, each image (C, H, W) of its own height and width."""

    def close(self) -> None:
        """Close the files. Further calls do nothing."""


class LmdbDataset(Closing):
    """Datum records of one LMDB folder, numbered 0 .. len - 1 in key order; of a share, as in the whole database.

    Compressed records are decoded to the channels that `transform` asks for. `sample_shape` is (C, H, W) of the first
    record here, as in Caffe. Raises: InputError for a database that cannot be read or holds no record.
    """

    def __init__(self, source: Path, transform: TransformConfig = _PLAIN) -> None:
        self.source = source
        self._channels: Channels = "color" if transform.force_color else "gray" if transform.force_gray else "stored"
        self._file = LmdbFile(source)
        try:
            self.share = read_share(source, len(self._file))
            self.sample_shape = self._first_shape()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._file) if self.share is None else self.share.num_records

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
        return self._read(indices, any_size=True)

    def close(self) -> None:
        self._file.close()

    def _first_shape(self) -> tuple[int, int, int]:
        if len(self._file) == 0:
            raise InputError(f"{self.source}: holds no records. Convert the images again.")
        [value] = self._file.values(np.zeros(1, np.int64))
        channels, height, width = self._datum(0, value)[0].shape
        return channels, height, width

    def _read(self, indices: npt.NDArray[np.int64], any_size: bool) -> tuple[list[Images], Labels]:
        images, labels = [], np.empty(len(indices), np.int64)
        stored = indices if self.share is None else self.share.places(indices)
        for place, value in enumerate(self._file.values(stored)):
            index = int(stored[place])
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


_LABEL, _HEIGHT, _WIDTH, _VALUE_BYTES = range(4)

_TYPES = {1: np.uint8, 4: np.float32}
_LOOKED_AT = 32  # images of several sizes, to know their mean


class ImageRecords:
    """Images of `dataset` as bytes: of any height and width with `any_size`, else all of its `sample_shape`."""

    num_columns = 4

    def __init__(self, dataset: ImageDataset, any_size: bool) -> None:
        self._dataset, self.share = dataset, dataset.share
        self._any_size = any_size
        own = np.arange(len(dataset)) if self.share is None else self.share.records()
        some = np.linspace(0, len(own) - 1, min(len(own), _LOOKED_AT) if any_size else 1).astype(np.int64)
        images, _ = dataset.read_each(own[some])
        self.record_bytes = -(-sum(image.nbytes for image in images) // len(images))

    def __len__(self) -> int:
        return len(self._dataset)

    def load(self, indices: Int64s) -> tuple[list[Bytes], Int64s]:
        """See `samovar.data.cache.CacheSource`."""
        images, labels = (self._dataset.read_each if self._any_size else self._dataset.read)(indices)
        contents = [np.ascontiguousarray(image).reshape(-1).view(np.uint8) for image in images]
        shapes = [(image.shape[1], image.shape[2], image.itemsize) for image in images]
        return contents, np.column_stack([labels, np.array(shapes, np.int64)])


class CachedImages:
    """An `ImageDataset` of the same images, from memory."""

    share: Share | None = None

    def __init__(self, sample_shape: tuple[int, int, int], images: ImageRecords, setup: CacheSetup) -> None:
        self.sample_shape = sample_shape
        self.records = RecordCache(images, setup)

    def __len__(self) -> int:
        return len(self.records)

    def read(self, indices: npt.NDArray[np.int64]) -> tuple[Images, Labels]:
        columns = self.records.columns(indices)
        kinds = np.unique(columns[:, _VALUE_BYTES])
        if len(kinds) > 1:
            images, labels = self.read_each(indices)
            return np.stack(images), labels
        content, _ = self.records.read(indices)
        values = content.view(_TYPES[int(kinds[0])] if len(kinds) else np.uint8)
        return values.reshape(-1, *self.sample_shape), np.ascontiguousarray(columns[:, _LABEL])

    def read_each(self, indices: npt.NDArray[np.int64]) -> tuple[list[Images], Labels]:
        columns = self.records.columns(indices)
        content, ends = self.records.read(indices)
        images = [
            part.view(_TYPES[value_bytes]).reshape(-1, height, width)
            for part, (_, height, width, value_bytes) in zip(
                np.split(content, ends[:-1]) if len(ends) else [], columns.tolist(), strict=True
            )
        ]
        return images, np.ascontiguousarray(columns[:, _LABEL])

    def close(self) -> None:
        """Do nothing: the windows end with the run."""


class ListedFiles:
    """Find a list's files in `root`; without a root, in the working folder, then in the list's own folder.

    A list may come from a stranger. No path may lead out of these folders, by `..`, a symbolic link or a leading
    `/`. With a root, a leading `/` means the root.
    """

    def __init__(self, source: Path, root: Path | None, advice: str) -> None:
        folders = (root,) if root is not None else (Path(), source.parent)
        self._folders = tuple(dict.fromkeys(folder.resolve() for folder in folders))
        self._has_root = root is not None
        self._advice = advice

    def find(self, written: str) -> Path:
        """The file, after symbolic links. Raise InputError if it is missing or outside of the folders."""
        relative = written.lstrip("/") if self._has_root else written
        for folder in self._folders:
            try:
                found = (folder / relative).resolve(strict=True)
            except (OSError, ValueError, RuntimeError):
                continue
            if any(found.is_relative_to(allowed) for allowed in self._folders):
                return found
            raise InputError(f"'{written}' leads to {found}, outside of {self._named()}; {self._advice}")
        raise InputError(f"'{written}' not found in {self._named()}; {self._advice}")

    def _named(self) -> str:
        return " and ".join(map(str, self._folders))


MAX_LIST_BYTES = 1 << 30


class ImageListDataset:
    """The images of one list, numbered 0 .. len - 1 by line, decoded (and resized) when they are read.

    `ListedFiles` says where paths start. `sample_shape` is (C, H, W) of the first image, as in Caffe.
    Raises: InputError, with file and line, for a list or a first image that cannot be used.
    """

    share: Share | None = None

    def __init__(self, config: ImageDataConfig) -> None:
        self.source = config.source
        advice = 'check the list, or give the folder that holds all the images as root_folder ("/" for any)'
        self._files = ListedFiles(config.source, config.root, advice)
        self._new_size = config.new_size
        self._channels: Channels = "color" if config.is_color else "gray"
        self._content = read_file(config.source, "image list", MAX_LIST_BYTES)
        self._starts, self._ends, self._labels = parse_list(self._content, config.source)
        channels, height, width = self._image(0).shape
        self.sample_shape = channels, height, width

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, indices: npt.NDArray[np.int64]) -> tuple[Images, Labels]:
        """Images uint8 (n, C, H, W) and labels int64 (n,). Cost: one decoding each.
        Raises: InputError naming the line of an image that is missing, damaged, outside or of another size."""
        images = np.empty((len(indices), *self.sample_shape), np.uint8)
        for place, index in enumerate(indices.tolist()):
            image = self._image(index)
            if image.shape != self.sample_shape:
                raise InputError(
                    f"{self._where(index)}: the image has shape {image.shape}, the first one {self.sample_shape}; a "
                    "batch needs one shape (channels, height, width). Give new_height and new_width, or a crop_size "
                    "(without mean_file)."
                )
            images[place] = image
        return images, self._labels[indices]

    def read_each(self, indices: npt.NDArray[np.int64]) -> tuple[list[Images], Labels]:
        return [self._image(index) for index in indices.tolist()], self._labels[indices]

    def close(self) -> None:
        """Do nothing: no file is open between reads."""

    def _image(self, index: int) -> npt.NDArray[np.uint8]:
        written = self._content[self._starts[index] : self._ends[index]].decode("utf-8", "surrogateescape")
        try:
            image = read_image(self._files.find(written), self._channels)
        except InputError as error:
            raise InputError(f"{self._where(index)}: {error}") from error
        return image if self._new_size is None else resized(image, self._new_size)

    def _where(self, index: int) -> str:
        line = self._content.count(b"\n", 0, int(self._starts[index])) + 1
        return f"{self.source}:{line}"


def parse_list(content: bytes, source: Path) -> tuple[Labels, Labels, Labels]:
    """Start and end of each path in `content`, and its label; blank lines are left out.
    Raises: InputError, with file and line, for a line that is not "path label", and for an empty list."""
    starts, ends, labels = [], [], []
    position = 0
    for number, line in enumerate(content.split(b"\n"), start=1):
        written, _, label = line.rstrip().rpartition(b" ")
        if label:
            if not written.strip() or not _is_label(label):
                raise InputError(
                    f"{source}:{number}: is not 'path label': {line[:80].decode('utf-8', 'backslashreplace')!r}. "
                    "End the line with a space and a whole number below 2,147,483,648."
                )
            starts.append(position)
            ends.append(position + len(written))
            labels.append(int(label))
        position += len(line) + 1
    if not starts:
        raise InputError(f"{source}: lists no image. Write a line 'path label' for each.")
    return np.array(starts, np.int64), np.array(ends, np.int64), np.array(labels, np.int64)


def _is_label(text: bytes) -> bool:
    digits = text.removeprefix(b"-")
    return digits.isdigit() and len(digits) <= 10 and -(1 << 31) <= int(text) < 1 << 31
