"""HDF5 files with arrays in them: opened for reading without following them out of themselves, and made in memory.

An HDF5 file may hold links to other files, arrays whose numbers lie in other files, and arrays that declare a size
which they do not have. None of these is in what Caffe writes; they are refused.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.formats.caffe.files import HDF5_MAGIC

MAX_DEPTH = 16
MAX_GROUPS = 100_000
_MAX_RATIO = 16  # of an array's bytes to its stored ones; Caffe compresses none, trained weights shrink little
_FAILURES = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, UnicodeError)


def is_hdf5(path: Path) -> bool:
    """Whether `path` is a file that begins as an HDF5 file does; False where it cannot be read."""
    try:
        with path.open("rb") as file:
            return path.is_file() and file.read(len(HDF5_MAGIC)) == HDF5_MAGIC
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def open_hdf5(path: Path, kind: str) -> Iterator[h5py.File]:
    """The file, open for reading; `kind` ("caffemodel") is for the message.

    Raises InputError, naming the file, where it is damaged, also when that shows only while it is read.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except _FAILURES as error:
        raise InputError(
            f"{path}: is not a sound HDF5 {kind}, or was cut short: {' '.join(str(error).split())[:200]}"
        ) from error


def group_of(owner: h5py.Group, name: str, where: str) -> h5py.Group:
    """The group `name` of `owner`; InputError, starting with `where`, if there is none."""
    found = _member(owner, name, where)
    if not isinstance(found, h5py.Group):
        raise InputError(f"{where}: has no group '{name}', which such a file must have; is it of another kind?")
    return found


def array_of(owner: h5py.Group, name: str, where: str) -> npt.NDArray[np.float32]:
    """The numbers of the dataset `name` of `owner`, float32, C-contiguous; InputError if there are none."""
    found = _numbers(owner, name, where)
    return np.array(found[()], np.float32, order="C")


def count_of(owner: h5py.Group, name: str, where: str) -> int:
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
        raise InputError(f"{where}: the numbers of '{name}' lie in another file; they must lie in this one")
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
    if not isinstance(found, h5py.Dataset) or found.shape != () or found.dtype.kind != "S":
        raise InputError(f"{where}: has no text in '{name}', where such a file must have it")
    value: bytes = found[()]
    return value.rstrip(b"\0").decode("utf-8")


def names_of(owner: h5py.Group) -> tuple[str, ...]:
    """The members' names, in the file's order."""
    return tuple(owner)


def holders(group: h5py.Group, where: str) -> dict[str, h5py.Group]:
    """Every group inside `group` by its path there ("inception_3a/1x1"), in the file's order.

    Raises InputError for more than 16 levels or 100,000 groups: a group may hold itself.
    """
    found: dict[str, h5py.Group] = {}
    waiting = [("", group)]
    while waiting:
        path, owner = waiting.pop()
        if path.count("/") >= MAX_DEPTH or len(found) + len(waiting) > MAX_GROUPS:
            raise InputError(f"{where}: has groups deeper than {MAX_DEPTH}, or more than {MAX_GROUPS} of them")
        if path:
            found[path] = owner
        members = [(name, _member(owner, name, where)) for name in names_of(owner)]
        inner = [(f"{path}/{name}".lstrip("/"), member) for name, member in members if isinstance(member, h5py.Group)]
        waiting += reversed(inner)
    return found


@contextlib.contextmanager
def made_in_memory(content: bytearray) -> Iterator[h5py.File]:
    """A new file, whose bytes are in `content` afterwards, in a form that HDF5 1.8 reads.

    Raises InputError for names that HDF5 cannot hold side by side: "a" with an array "0", and "a/0".
    """
    try:
        with h5py.File.in_memory(libver="earliest") as file:
            yield file
            file.flush()
            content += file.id.get_file_image()
    except _FAILURES as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"HDF5 cannot hold this net's names: {reason}; use snapshot_format: BINARYPROTO") from error


def put_text(file: h5py.File, name: str, text: str) -> None:
    """A dataset of text that ends with a zero byte, as C programs read it."""
    content = text.encode() + b"\0"
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(content))
    kind.set_strpad(h5py.h5t.STR_NULLTERM)
    dataset = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create(h5py.h5s.SCALAR))
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(content, f"S{len(content)}"), mtype=kind)


def _member(owner: h5py.Group, name: str, where: str) -> object:
    """None where there is none; InputError for a link that leads elsewhere."""
    link = owner.get(name, getlink=True)
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        raise InputError(f"{where}: '{name}' is a link to elsewhere; it must be in the file itself")
    return owner[name]
