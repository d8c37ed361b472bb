"""HDF5 files: groups of arrays as Caffe writes them, tables of rows (`Hdf5Table`), and files made in memory.

An HDF5 file may hold links to other files, arrays whose numbers are in other files, and arrays that claim a wrong
size. All of these are refused.
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
from samovar.core.files import start_of
from samovar.formats.caffe.schema import HDF5_MAGIC

MAX_DEPTH = 16
MAX_GROUPS = 100_000
_MAX_RATIO = 16  # of an array's bytes to its stored ones; Caffe compresses none, trained weights shrink little
_MAX_TEXT_BYTES = 1 << 16
_FAILURES = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError)

MAX_ROW_VALUES = 64 << 20
MAX_CHUNK_BYTES = 256 << 20
_MAX_AXES = 32

Floats = npt.NDArray[np.float32]


def is_hdf5(path: Path) -> bool:
    """Whether `path` is a file that begins like an HDF5 file; False if it cannot be read."""
    return start_of(path, len(HDF5_MAGIC)) == HDF5_MAGIC


@contextlib.contextmanager
def open_hdf5(path: Path, kind: str) -> Iterator[h5py.File]:
    """The file, open for reading; `kind` ("caffemodel") is for the message.
    Raises InputError, naming the file, if it is damaged, also if that shows only while it is read."""
    with _sound(path, kind), h5py.File(path, "r", locking=False) as file:
        yield file


@contextlib.contextmanager
def _sound(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise InputError(f"{path}: is not a sound HDF5 {kind}, or was cut short: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def group_of(owner: h5py.Group, name: str, where: str) -> h5py.Group:
    """The group `name` of `owner`; InputError, starting with `where`, if there is none."""
    found = _member(owner, name, where)
    if not isinstance(found, h5py.Group):
        raise InputError(f"{where}: has no group '{name}', which this kind of file needs; give the right file")
    return found


def array_of(owner: h5py.Group, name: str, where: str) -> npt.NDArray[np.float32]:
    """The numbers of the dataset `name` of `owner`, float32, C-contiguous; InputError if there are none."""
    found = _numbers(owner, name, where)
    return np.array(found[()], np.float32, order="C")


def steps_of(owner: h5py.Group, name: str, where: str) -> int:
    """A number of steps, which Caffe stores as an array of one; InputError if there is none."""
    found = _numbers(owner, name, where)
    value = found[()].ravel() if found.size == 1 else [-1]
    if not 0 <= value[0] < 2**31:
        raise InputError(f"{where}: '{name}' is not one number of steps; the file is damaged")
    return int(value[0])


def _numbers(owner: h5py.Group, name: str, where: str) -> h5py.Dataset:
    found = _member(owner, name, where)
    if not isinstance(found, h5py.Dataset) or found.dtype.kind not in "fiu":
        raise InputError(f"{where}: has no numbers in '{name}', where such a file must have them")
    if found.is_virtual or found.external:
        raise InputError(f"{where}: the numbers of '{name}' are in another file; they must be in this one")
    stored, declared = found.id.get_storage_size(), found.size * found.dtype.itemsize
    if declared > stored * _MAX_RATIO:
        raise InputError(
            f"{where}: '{name}' has shape {found.shape}, which is {declared} bytes, but holds {stored}; "
            "the file is damaged"
        )
    return found


def text_of(owner: h5py.Group, name: str, where: str) -> str:
    """The text of the dataset `name` of `owner`; InputError if there is none."""
    found = _member(owner, name, where)
    if (
        not isinstance(found, h5py.Dataset)
        or found.shape != ()
        or found.dtype.kind != "S"
        or found.dtype.itemsize > _MAX_TEXT_BYTES
    ):
        raise InputError(f"{where}: has no text in '{name}', where such a file must have it")
    value: bytes = found[()]
    return value.rstrip(b"\0").decode("utf-8")


def holders(group: h5py.Group, where: str) -> dict[str, h5py.Group]:
    """Every group inside `group` by its path there ("inception_3a/1x1"), in the file's order.
    Raises InputError for more than 16 levels or 100,000 groups: a group may hold itself."""
    found: dict[str, h5py.Group] = {}
    waiting = [("", group)]
    while waiting:
        path, owner = waiting.pop()
        if path.count("/") >= MAX_DEPTH or len(found) + len(waiting) > MAX_GROUPS:
            raise InputError(f"{where}: has groups deeper than {MAX_DEPTH}, or more than {MAX_GROUPS} of them")
        if path:
            found[path] = owner
        members = [(name, _member(owner, name, where)) for name in owner]
        inner = [(f"{path}/{name}".lstrip("/"), member) for name, member in members if isinstance(member, h5py.Group)]
        waiting += reversed(inner)
    return found


@contextlib.contextmanager
def made_in_memory(content: bytearray) -> Iterator[h5py.File]:
    """A new file, whose bytes are in `content` afterwards, in a form that HDF5 1.8 reads.
    Raises InputError for names that HDF5 cannot hold together: "a" with an array "0", and "a/0"."""
    try:
        with h5py.File.in_memory(libver="earliest") as file:
            yield file
            file.flush()
            content += file.id.get_file_image()
    except _FAILURES as error:
        advice = "use snapshot_format: BINARYPROTO"
        raise InputError(f"HDF5 cannot hold this net's names: {_reason(error)}; {advice}") from error


def put_text(file: h5py.File, name: str, text: str) -> None:
    """A dataset of text that ends with a zero byte, as C programs read it."""
    content = text.encode() + b"\0"
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(content))
    kind.set_strpad(h5py.h5t.STR_NULLTERM)
    dataset = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create(h5py.h5s.SCALAR))
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(content, f"S{len(content)}"), mtype=kind)


def _member(owner: h5py.Group, name: str, where: str, shown: str = "") -> object:
    """The member, or None; InputError for a link that leads elsewhere."""
    link = owner.get(name, getlink=True)
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        raise InputError(f"{where}: '{shown or name}' is a link to elsewhere; it must be in the file itself")
    return owner[name]


class Hdf5Table:
    """The arrays `names` of one file, whose first axis counts the same rows; `row_shapes` are the other axes', by name.

    HDF5 loads a batch at a time and converts it to float32, as in Caffe.

    Raises: InputError naming the file if it is damaged, lacks an array, or the arrays' numbers of rows differ.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path = path
        with _sound(path, "file"):
            if not path.is_file():
                raise InputError(f"{path}: is not a regular file; a list names HDF5 files")
            self._file = h5py.File(path, "r", locking=False)
            self._size_bytes = self._present_size_bytes()
        try:
            with _sound(path, "file"):
                self._arrays = {name: self._array(name) for name in names}
            self.num_rows = self._common_rows()
        except BaseException:
            self.close()
            raise
        self.row_shapes = {name: tuple(array.shape[1:]) for name, array in self._arrays.items()}

    def read(self, name: str, rows: npt.NDArray[np.int64], into: Floats) -> None:
        """Put rows of one array into `into`, float32 (len(rows), *row shape).
        Cost: one read for each run of consecutive rows; a compressed array is unpacked chunk by chunk."""
        array = self._arrays[name]
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        with _sound(self._path, "file"):
            for run in np.split(np.arange(len(rows)), breaks):
                if len(run):
                    first, count = int(rows[run[0]]), len(run)
                    part = np.s_[int(run[0]) : int(run[0]) + count]
                    array.read_direct(into, np.s_[first : first + count], part)
            if self._present_size_bytes() < self._size_bytes:  # behind the end HDF5 reads zeros
                raise InputError(f"{self._path}: was cut short while it was read. Copy or convert it again.")

    def close(self) -> None:
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
            raise InputError(f"{where} is in another file; it must be in this one")
        _check_sizes(found, where)
        return found

    def _member(self, name: str) -> object:
        owner: object = self._file
        for part in name.split("/"):
            owner = _member(owner, part, str(self._path), name) if isinstance(owner, h5py.Group) and part else None
        return owner

    def _common_rows(self) -> int:
        counts = {name: int(array.shape[0]) for name, array in self._arrays.items()}
        if len(set(counts.values())) != 1:
            listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise InputError(f"{self._path}: the datasets differ in their number of rows: {listed}")
        return next(iter(counts.values()))


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
