"""Buffers of a box as files: one safetensors file for each, which holds its own SHA-256.

Beside `center` (float32) and, where there is one, `velocity`, a file holds the `versions` of the chunks, the `words` of
the board, the `shape` that the buffer was made with, and the `sha256` of all these. To fill a buffer, `center` will do.
"""

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from samovar.box.board import NUM_WORDS
from samovar.box.buffers import Buffers, BufferShape
from samovar.box.joining import (
    BoxPlace,
    BoxSeat,
    buffer_names,
    create_buffer,
    look_at,
    mapped_seat,
    read_mapped,
    take_seat,
)
from samovar.checkpoint.arrays import Array, chunks, parse
from samovar.core.clock import Deadline
from samovar.core.durable import FileMark, publish_file, sync_folder
from samovar.core.errors import InputError, SamovarError

TIMEOUT_S: Final = 120.0
_SUFFIX: Final = ".safetensors"
_WHO: Final = "samovar box"


@dataclass(frozen=True, slots=True)
class Content:
    """What a file says of a buffer. Without a shape, one is made of `center` and `velocity`; without `words`, none."""

    shape: BufferShape
    arrays: dict[str, Array]

    @classmethod
    def of(cls, shape: BufferShape, arrays: dict[str, Array]) -> "Content":
        """What `samovar.box.joining.read_buffer` gave."""
        return cls(shape, arrays | {"shape": np.array(astuple(shape), np.int64)})

    @classmethod
    def read(cls, path: Path) -> "Content":
        """Raises InputError where the file is no snapshot of a buffer, or not as it was written."""
        try:
            arrays = parse(path.read_bytes())
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); give a file of `samovar box snapshot`"
            ) from error
        except ValueError as error:
            raise InputError(f"{path}: {error}; give a file of `samovar box snapshot`") from error
        written = arrays.pop("sha256", None)
        if written is not None and written.tobytes() != _digest(arrays):
            raise InputError(f"{path}: is damaged, its SHA-256 is another; take an earlier snapshot")
        return cls(_shape_in(path, arrays), arrays)

    def write(self, path: Path) -> FileMark:
        """Whole, or not at all; raises OSError."""
        return publish_file(path, chunks(self.arrays | {"sha256": np.frombuffer(self.digest(), np.uint8)}))

    def digest(self) -> bytes:
        return _digest(self.arrays)

    def load(self, place: BoxPlace, name: str) -> bool:
        """Put it into buffer `name`, which is made where there is none; whether it was made.

        Raises InputError where there is one of another size, or somebody is at work there.
        """
        deadline = Deadline.after(TIMEOUT_S)
        is_new = name not in buffer_names(place, _WHO, deadline) and create_buffer(
            place, name, self.shape, _WHO, deadline
        )
        _check_free(place, name, self.shape, deadline)
        with take_seat(place, name, _WHO, deadline) as seat:
            self.fill(seat, deadline)
        return is_new

    def fill(self, seat: BoxSeat, deadline: Deadline) -> None:
        seat.center.write(self.arrays["center"], deadline)
        if seat.shape.with_velocity:
            seat.center.write_velocity(self.arrays["velocity"], deadline)
        for index, value in enumerate(self.arrays.get("words", ())):
            seat.board.set_word(index, int(value))


class Snapshots:
    """Keeps the files of a box's `buffers` in `folder`, every `every_s` on a thread of its own.

    A context manager: at its beginning buffers that only the folder has are made and filled, at its end everything is
    written once more. `tell` is what people are told by. Raises InputError where the folder cannot be used, or another
    box has it.
    """

    def __init__(self, buffers: Buffers, folder: Path, every_s: float, tell: Callable[[str], None]) -> None:
        self._buffers = buffers
        self._folder = folder
        self._every_s = every_s
        self._tell = tell
        self._written: dict[str, bytes] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="samovar-snapshots", daemon=True)
        self._lock = _locked_folder(folder)

    def __enter__(self) -> "Snapshots":
        self._restore()
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ending.set()
        self._thread.join()
        os.close(self._lock)

    def write(self) -> None:
        """Those that changed are written, the files of those that were dropped go. Raises OSError, SamovarError."""
        names = self._buffers.names()
        for name in names:
            with self._buffers.held(name) as buffer:
                content = Content.of(*read_mapped(buffer, Deadline.after(TIMEOUT_S)))
            digest = content.digest()
            if self._written.get(name) != digest:
                content.write(self._path(name))
                self._written[name] = digest
        for name in set(self._written) - set(names):
            self._path(name).unlink(missing_ok=True)
            sync_folder(self._folder)
            del self._written[name]

    def _restore(self) -> None:
        there = self._buffers.names()
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            name = path.name.removesuffix(_SUFFIX)
            if name in there or name.startswith("."):
                continue
            try:
                content = Content.read(path)
                self._buffers.create(name, content.shape)
                with self._buffers.held(name) as buffer, mapped_seat(buffer) as seat:
                    content.fill(seat, Deadline.after(TIMEOUT_S))
            except SamovarError as error:
                self._tell(f"not loaded: {error}")
            else:
                self._written[name] = content.digest()
                self._tell(f"loaded from {path}: {name}")

    def _serve(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._ending.wait(self._every_s)
            try:
                self.write()
            except OSError as error:
                self._tell(f"--box-snapshot {self._folder}: nothing can be written ({error.strerror}); make room")
            except SamovarError as error:  # dropped this moment, say
                self._tell(f"--box-snapshot {self._folder}: {error}")

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"


def _locked_folder(folder: Path) -> int:
    """A descriptor that keeps other boxes out as long as it is open."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"--box-snapshot {folder}: {error.strerror}; give a folder that can be written") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise InputError(f"--box-snapshot {folder}: another box writes there; give another folder") from error
    if not os.access(folder, os.W_OK):
        os.close(descriptor)
        raise InputError(f"--box-snapshot {folder}: cannot be written; give another folder")
    return descriptor


def _check_free(place: BoxPlace, name: str, wanted: BufferShape, deadline: Deadline) -> None:
    found = look_at(place, name, _WHO, deadline)
    shape = found.shape
    if (shape.num_elements, shape.with_velocity) != (wanted.num_elements, wanted.with_velocity):
        raise InputError(
            f"buffer {name!r} of {place} has {_words_of(shape)}, and the file {_words_of(wanted)}; drop it first, or "
            "load into another"
        )
    if alive := [str(row.member.index) for row in found.rows if row.is_alive]:
        raise InputError(f"buffer {name!r} of {place}: members {', '.join(alive)} are at work there; end them first")


def _words_of(shape: BufferShape) -> str:
    return f"{shape.num_elements:,} elements {'with' if shape.with_velocity else 'without'} velocity"


def _shape_in(path: Path, arrays: dict[str, Array]) -> BufferShape:
    center, velocity, words = arrays.get("center"), arrays.get("velocity"), arrays.get("words")
    if center is None or center.dtype != np.float32 or center.ndim != 1 or not center.size:
        raise InputError(
            f"{path}: has no float32 array `center` of one dimension; give a file of `samovar box snapshot`"
        )
    if velocity is not None and (velocity.dtype, velocity.shape) != (center.dtype, center.shape):
        raise InputError(f"{path}: its `velocity` is not like its `center`; give a file of `samovar box snapshot`")
    if words is not None and (words.dtype != np.uint64 or words.shape != (NUM_WORDS,)):
        raise InputError(f"{path}: its `words` are not {NUM_WORDS} of 64 bits; use one version of Samovar")
    shape = BufferShape(center.size, with_velocity=velocity is not None)
    if "shape" not in arrays:
        return shape
    sizes = [int(size) for size in arrays["shape"].reshape(-1)]
    if len(sizes) != 5 or (sizes[0], bool(sizes[2])) != (shape.num_elements, shape.with_velocity):
        raise InputError(f"{path}: its `shape` is not that of its `center`; give a file of `samovar box snapshot`")
    return BufferShape.of_sizes(sizes)


def _digest(arrays: dict[str, Array]) -> bytes:
    """Of the arrays, by name."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()
