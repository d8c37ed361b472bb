"""Rows of listed HDF5 files, in the order of Caffe's HDF5Data: file by file, then from the first again."""

from collections import OrderedDict
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.errors import InputError
from samovar.data.cache import Bytes, CacheSetup, Int64s, RecordCache
from samovar.data.config import Hdf5DataConfig
from samovar.data.datasets import ListedFiles
from samovar.data.order import SampleOrder, sample_indices
from samovar.data.shares import Share
from samovar.formats.caffe.files import read_file
from samovar.formats.caffe.hdf5 import Hdf5Table, is_hdf5

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
