"""An HDF5 file as a table: arrays side by side, whose first axis counts the same rows.

Only what is read is loaded, a batch at a time, converted to float32 by HDF5 itself (as Caffe has it done). Links
to other files and arrays that lie in other files are refused, and so are those that declare more than they hold.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError

MAX_ROW_VALUES = 64 << 20
MAX_CHUNK_BYTES = 256 << 20
_MAX_AXES = 32
_FAILURES = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, UnicodeError, MemoryError)

Floats = npt.NDArray[np.float32]


class Hdf5Table:
    """The arrays `names` of one file; `row_shapes` are their shapes without the first axis, by name.

    Raises: InputError naming the file where it is damaged, lacks an array, or their rows differ in number.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path = path
        with self._reading():
            if not path.is_file():
                raise InputError(f"{path}: is no regular file; a list names HDF5 files")
            self._file = h5py.File(path, "r", locking=False)
            self._size_bytes = self._present_size_bytes()
        try:
            with self._reading():
                self._arrays = {name: self._array(name) for name in names}
            self.num_rows = self._common_rows()
        except BaseException:
            self.close()
            raise
        self.row_shapes = {name: tuple(array.shape[1:]) for name, array in self._arrays.items()}

    def read(self, name: str, rows: npt.NDArray[np.int64], into: Floats) -> None:
        """Put rows of one array into `into`, float32 (len(rows), *row shape).

        Cost: one read for each run of consecutive rows; a compressed array is unpacked chunk by chunk.
        """
        array = self._arrays[name]
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        with self._reading():
            for run in np.split(np.arange(len(rows)), breaks):
                if len(run):
                    first, count = int(rows[run[0]]), len(run)
                    part = np.s_[int(run[0]) : int(run[0]) + count]
                    array.read_direct(into, np.s_[first : first + count], part)
            if self._present_size_bytes() < self._size_bytes:  # behind the end HDF5 reads zeros
                raise InputError(f"{self._path}: was cut short while it was read. Copy or convert it again.")

    def close(self) -> None:
        """Give the file back; may be called again."""
        with contextlib.suppress(*_FAILURES):
            self._file.close()

    def _present_size_bytes(self) -> int:
        return os.fstat(self._file.id.get_vfd_handle()).st_size

    def _array(self, name: str) -> h5py.Dataset:
        found = self._member(name)
        where = f"{self._path}: dataset '{name}'"
        if not isinstance(found, h5py.Dataset):
            present = ", ".join(list(self._file)[:20]) or "none"
            raise InputError(f"{self._path}: has no dataset '{name}', which the layer's top asks for; it has {present}")
        if found.dtype.kind not in "fiu" or not 1 <= found.ndim <= _MAX_AXES:
            raise InputError(f"{where} is {found.dtype} of shape {found.shape}; it must be numbers with rows")
        if found.is_virtual or found.external:
            raise InputError(f"{where} lies in another file; it must lie in this one")
        _check_sizes(found, where)
        return found

    def _member(self, name: str) -> object:
        owner: object = self._file
        for part in name.split("/"):
            link = owner.get(part, getlink=True) if isinstance(owner, h5py.Group) and part else None
            if link is None:
                return None
            if not isinstance(link, h5py.HardLink):
                raise InputError(f"{self._path}: '{name}' is a link to elsewhere; it must be in the file itself")
            owner = owner[part]  # type: ignore[index]
        return owner

    def _common_rows(self) -> int:
        counts = {name: int(array.shape[0]) for name, array in self._arrays.items()}
        if len(set(counts.values())) != 1:
            listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise InputError(f"{self._path}: the datasets differ in their number of rows: {listed}")
        return next(iter(counts.values()))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{self._path}: is no sound HDF5 file, or was cut short: {reason}") from error


def _check_sizes(array: h5py.Dataset, where: str) -> None:
    row = prod(array.shape[1:])
    chunk_bytes = prod(array.chunks or ()) * array.dtype.itemsize
    if not 1 <= row <= MAX_ROW_VALUES:
        raise InputError(f"{where} has rows of shape {array.shape[1:]}; a row has 1 to {MAX_ROW_VALUES:,} values")
    if array.chunks and chunk_bytes > MAX_CHUNK_BYTES:
        raise InputError(
            f"{where} has chunks of {chunk_bytes:,} bytes; at most {MAX_CHUNK_BYTES:,} are unpacked at once"
        )
    stored, declared = array.id.get_storage_size(), array.size * array.dtype.itemsize
    packed = array.id.get_create_plist().get_nfilters() > 0
    if (stored == 0 < declared) or (declared > stored and not packed):
        raise InputError(
            f"{where} has shape {array.shape}, which is {declared:,} bytes, but holds {stored:,}; the file is damaged"
        )
