"""Batches of a whole net: the transformed records of all data layers, in their order.

Rows of listed HDF5 files come in the order of Caffe's HDF5Data: file by file, then from the first again.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.closing import Closing
from samovar.core.errors import InputError
from samovar.core.files import read_file
from samovar.data.cache import Bytes, CacheSetup, CacheSource, Int64s, RecordCache
from samovar.data.config import DataConfig, Hdf5DataConfig, ImageDataConfig, LayerConfig, WindowDataConfig
from samovar.data.datasets import CachedImages, ImageDataset, ImageListDataset, ImageRecords, ListedFiles, LmdbDataset
from samovar.data.order import SAMPLE_NUMBERS, SampleOrder, sample_indices
from samovar.data.shares import Share
from samovar.data.transform import Transform
from samovar.data.windows import WindowSource
from samovar.formats.caffe.hdf5 import Hdf5Table, is_hdf5

Tensors: TypeAlias = dict[str, torch.Tensor]


class Source(Protocol):
    """The samples of one data layer; holds no position."""

    sample_shapes: dict[str, tuple[int, ...]]  # shape of one sample of each top, in the layer's order
    share: Share | None  # the records whose files are here; None: all
    cache: RecordCache | None  # the records, once they are cached

    def __len__(self) -> int:
        """The number of records."""

    def records(self) -> CacheSource:
        """The records, as the cache would load them."""

    def fill_cache(self, setup: CacheSetup) -> None:
        """Load all records into the memory of all ranks, which call this together, and close the files.
        Raises: InputError for a damaged record, or if memory is short."""

    def read(self, first_sample: int, count: int) -> Tensors:
        """The global samples [first_sample, first_sample + count), by top; InputError for a damaged record."""

    def close(self) -> None:
        """Close the files. Further calls do nothing."""


class ImageSource:
    """Images float32 (n, C, H, W), transformed, and labels int64 (n,), of an LMDB or a list of image files."""

    def __init__(self, config: DataConfig, seed: int, shuffled: bool) -> None:
        if not 1 <= len(config.tops) <= 2:
            raise InputError(
                f"{config.source}: a Data layer has {len(config.tops)} tops {list(config.tops)}; give one "
                "for the images and, if wanted, a second for the labels."
            )
        self._tops = config.tops
        self._dataset: ImageDataset = (
            ImageListDataset(config)
            if isinstance(config, ImageDataConfig)
            else LmdbDataset(config.source, config.transform)
        )
        try:
            self._transform = Transform(config, self._dataset.sample_shape, seed)
        except BaseException:
            self._dataset.close()
            raise
        self._order = SampleOrder(len(self._dataset), seed, shuffled)
        self.share = self._dataset.share
        self.cache: RecordCache | None = None
        self.sample_shapes = dict(zip(config.tops, (self._transform.output_shape, ()), strict=False))

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, first_sample: int, count: int) -> Tensors:
        indices = sample_indices(self._order, first_sample, count)
        if self._transform.takes_any_size:
            images, labels = self._dataset.read_each(indices)
            transformed = self._transform.of_each(images, first_sample)
        else:
            stacked, labels = self._dataset.read(indices)
            transformed = self._transform(stacked, first_sample)
        return dict(zip(self._tops, (transformed, torch.from_numpy(labels)), strict=False))

    def records(self) -> ImageRecords:
        return ImageRecords(self._dataset, self._transform.takes_any_size)

    def fill_cache(self, setup: CacheSetup) -> None:
        images = CachedImages(self._dataset.sample_shape, self.records(), setup)
        self._dataset.close()
        self._dataset, self.cache = images, images.records

    def close(self) -> None:
        self._dataset.close()


Floats = npt.NDArray[np.float32]

MAX_LIST_BYTES = 16 << 20
MAX_OPEN_FILES = 64


class Hdf5Source:
    """Every top's rows, float32 (n, *row shape), of all listed files as one long table.

    A batch may span files, and continues with the first row after the last. In a shuffled order an epoch permutes
    all rows of all files (Caffe permutes the files, and the rows in each). A record of the cache is a row of all tops.

    Raises: InputError for a list or a file that cannot be used, and for rows that differ in shape between files.
    """

    num_columns = 0
    share: Share | None = None

    def __init__(self, config: Hdf5DataConfig, seed: int, shuffled: bool) -> None:
        if not config.tops:
            raise InputError(f"{config.source}: an HDF5Data layer needs a top for each dataset to read.")
        self.cache: RecordCache | None = None
        self._tops = config.tops
        self._open: OrderedDict[int, Hdf5Table] = OrderedDict()
        if is_hdf5(config.source):
            raise InputError(f"{config.source}: is an HDF5 file; give a text file with the path of one a line")
        files = ListedFiles(config.source, None, "put the list into the folder of its files")
        self._paths = [files.find(name) for name in _names(config)]
        try:
            self._ends = np.cumsum([self._checked(number) for number in range(len(self._paths))])
            if self._ends[-1] == 0:
                raise InputError(f"{config.source}: its files hold no rows.")
        except BaseException:
            self.close()
            raise
        self.record_bytes = 4 * sum(map(prod, self.sample_shapes.values()))
        self._order = SampleOrder(len(self), seed, shuffled)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, first_sample: int, count: int) -> dict[str, torch.Tensor]:
        """The global samples [first_sample, first_sample + count), by top; cost: see Hdf5Table.read."""
        rows, shapes = sample_indices(self._order, first_sample, count), self.sample_shapes
        values = self._rows(rows) if self.cache is None else _split(self.cache.read(rows)[0], count, shapes)
        return {top: torch.from_numpy(array) for top, array in values.items()}

    def records(self) -> "Hdf5Source":
        return self

    def load(self, indices: Int64s) -> tuple[list[Bytes], Int64s]:
        """See `samovar.data.cache.CacheSource`."""
        rows = [array.reshape(len(indices), prod(array.shape[1:])) for array in self._rows(indices).values()]
        return list(np.concatenate(rows, axis=1).view(np.uint8)), np.empty((len(indices), 0), np.int64)

    def fill_cache(self, setup: CacheSetup) -> None:
        self.cache = RecordCache(self, setup)
        self.close()

    def _rows(self, rows: Int64s) -> dict[str, Floats]:
        result = {top: np.empty((len(rows), *shape), np.float32) for top, shape in self.sample_shapes.items()}
        numbers = np.searchsorted(self._ends, rows, side="right")
        breaks = np.flatnonzero(np.diff(numbers)) + 1
        for run in np.split(np.arange(len(rows)), breaks) if len(rows) else ():
            number = int(numbers[run[0]])
            table, first = self._table(number), int(self._ends[number - 1]) if number else 0
            for top, values in result.items():
                table.read(top, rows[run] - first, values[run[0] : run[-1] + 1])
        return result

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _table(self, number: int) -> Hdf5Table:
        """File `number`, open. It replaces the least recently used one."""
        if number not in self._open:
            while len(self._open) >= MAX_OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            self._open[number] = Hdf5Table(self._paths[number], self._tops)
        self._open.move_to_end(number)
        return self._open[number]

    def _checked(self, number: int) -> int:
        """The rows of a file, whose shapes must be those of the first one."""
        table = self._table(number)
        if number == 0:
            self.sample_shapes = table.row_shapes
        for top, shape in table.row_shapes.items():
            if shape != self.sample_shapes[top]:
                raise InputError(
                    f"{self._paths[number]}: rows of '{top}' have shape {shape}, in {self._paths[0]} "
                    f"{self.sample_shapes[top]}; all files of a list must agree."
                )
        return table.num_rows


def _split(content: Bytes, count: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, Floats]:
    """The arrays by top of `count` rows, from the bytes of `load`."""
    sizes = [prod(shape) for shape in shapes.values()]
    parts = np.split(content.view(np.float32).reshape(count, sum(sizes)), np.cumsum(sizes)[:-1], axis=1)
    return {
        top: np.ascontiguousarray(part).reshape(count, *shape)
        for (top, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _names(config: Hdf5DataConfig) -> list[str]:
    content = read_file(config.source, "list of HDF5 files", MAX_LIST_BYTES)
    names = content.decode("utf-8", "surrogateescape").split()
    if not names:
        raise InputError(f"{config.source}: lists no HDF5 file. Write one path per line.")
    return names


def open_source(config: LayerConfig, seed: int, shuffled: bool) -> Source:
    """The source of one data layer. `shuffled`, or the layer's own `shuffle`, asks for a random order.
    Raises: InputError if the files, their records and the layer do not fit together."""
    if isinstance(config, Hdf5DataConfig):
        return Hdf5Source(config, seed, shuffled or config.shuffled)
    if isinstance(config, WindowDataConfig):
        return WindowSource(config, seed)
    own = isinstance(config, ImageDataConfig) and config.shuffled
    return ImageSource(config, seed, shuffled or own)


Shape = tuple[int, ...]
MAX_VALUES = (1 << 31) - 1  # of one blob, as in Caffe


@dataclass(frozen=True, slots=True)
class WithoutData:
    """Inputs of a net that no file provides."""

    batch_size: int = 1  # samples in one batch, where no data layer says it
    input_shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Blobs that a program would fill (batch first); here they are zeros, as Caffe leaves them."""


class BatchReader(Closing):
    """Any run of global samples of a net's data layers, transformed; holds no position.

    All layers read the same global samples. Layers with equally many records have the same shuffled order, and draw
    the same crops and flips for one sample (an image and its mask).
    `top_shapes` are the shapes of all arrays that `read` gives, batch first; `sources` are those of the layers.
    Raises: InputError if a source, its records and the transform do not fit together, or batch sizes differ.
    """

    def __init__(
        self,
        layers: Sequence[LayerConfig],
        training: bool,
        seed: int = 0,
        shuffled: bool = False,
        without: WithoutData | None = None,
    ) -> None:
        without = without or WithoutData()
        self.training = training
        self.sources = tuple(layer.source for layer in layers)
        self.batch_size = _common_batch_size(layers) if layers else without.batch_size
        self._inputs = dict(without.input_shapes)
        self._open: list[Source] = []
        try:
            for layer in layers:
                self._open.append(open_source(layer, seed, shuffled))
            self.top_shapes = self._shapes_of_tops() | self._inputs
        except BaseException:
            self.close()
            raise

    def _shapes_of_tops(self) -> dict[str, Shape]:
        samples = {top: shape for source in self._open for top, shape in source.sample_shapes.items()}
        shapes = {top: (self.batch_size, *shape) for top, shape in samples.items()}
        for top, shape in shapes.items():
            if prod(shape) > MAX_VALUES:
                text = " x ".join(map(str, shape))
                raise InputError(
                    f"{self.described}: top '{top}' would have shape {text}, more than {MAX_VALUES} values; give a "
                    "smaller batch_size."
                )
        return shapes

    def __len__(self) -> int:
        """The number of records of the first source; 0 without one."""
        return next(iter(self.lengths), 0)

    @property
    def lengths(self) -> list[int]:
        """The number of records of each source."""
        return [len(source) for source in self._open]

    @property
    def described(self) -> str:
        return ", ".join(map(str, self.sources)) or "a net without data layers"

    def read(self, first_sample: int, count: int) -> Tensors:
        """The global samples [first_sample, first_sample + count), by top, and SAMPLE_NUMBERS.
        Raises: InputError if a record is damaged or has been removed."""
        tensors: Tensors = {}
        for source in self._open:
            tensors |= source.read(first_sample, count)
        for name, shape in self._inputs.items():
            whole = shape[:1] == (self.batch_size,)
            tensors[name] = torch.zeros((count, *shape[1:]) if whole else shape)
        tensors[SAMPLE_NUMBERS] = torch.arange(first_sample, first_sample + count)
        return tensors

    @property
    def share(self) -> Share | None:
        """The share of the first source that has only a part of its records here; None: all are here."""
        return next((source.share for source in self._open if source.share is not None), None)

    def fingerprint(self) -> bytes:
        """A hash of what this process sees of the data set, the same for each share. Cost: three samples of a source.
        Raises: InputError if a record is damaged."""
        digest = hashlib.sha256(repr(self.top_shapes).encode())
        for source in self._open:
            if source.share is not None:
                digest.update(replace(source.share, number=0).to_json())
                continue
            for sample in (0, len(source) // 2, max(0, len(source) - 1)):
                for tensor in source.read(sample, 1).values():
                    digest.update(tensor.contiguous().numpy().tobytes())
        return digest.digest()

    @property
    def bytes_to_cache(self) -> int:
        """The bytes of a cache of all ranks together, estimated from the first record of each source."""
        return sum(len(records) * records.record_bytes for records in (source.records() for source in self._open))

    def fill_cache(self, setup: CacheSetup) -> None:
        """Read all records once into the memory of all ranks. Later batches are the same, and come from there.
        All ranks must call it together. Raises: InputError if a record is damaged or memory is short."""
        for source in self._open:
            source.fill_cache(setup)

    @property
    def cached_bytes(self) -> int:
        """The bytes of this rank's part of the cache."""
        return sum(source.cache.cached_bytes for source in self._open if source.cache is not None)

    @property
    def fetched_bytes(self) -> int:
        """The bytes that this rank has read from other ranks' memory so far."""
        return sum(source.cache.fetched_bytes for source in self._open if source.cache is not None)

    @property
    def remote_bytes(self) -> int:
        """Those of `fetched_bytes` that came from other hosts."""
        return sum(source.cache.remote_bytes for source in self._open if source.cache is not None)

    def close(self) -> None:
        for source in self._open:
            source.close()


def _common_batch_size(layers: Sequence[LayerConfig]) -> int:
    first = layers[0]
    for other in layers[1:]:
        if other.batch_size != first.batch_size:
            raise InputError(
                f"the data layers of one net have batch_size {first.batch_size} ({first.source}) and "
                f"{other.batch_size} ({other.source}); give them one."
            )
    return first.batch_size
