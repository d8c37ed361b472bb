"""Buffers of boxes as files: saved from boxes, loaded into them, and kept by a box for all that it has.

A buffer, or a part of one, is a safetensors file with its own SHA-256. It has `center` (float32) and, if the buffer has
one, `velocity`. It also has the `versions` of the chunks, the `words` of the board, the `shape` of the buffer, and the
`sha256` of all these. To fill a buffer, `center` is enough.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np

from samovar.box.board import NUM_WORDS
from samovar.box.buffers import Buffer, BufferShape, NamedBuffers
from samovar.box.endpoints import MOST_BOXES, Endpoints, create_shards, take_shards
from samovar.box.joining import (
    BoxSeat,
    buffer_names,
    create_buffer,
    look_at,
    mapped_seat,
    read_buffer,
    read_mapped,
    take_seat,
)
from samovar.box.shards import SHARD_WORDS, CenterShard, whole_of
from samovar.checkpoint.arrays import Array, chunks, parse
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, SamovarError
from samovar.core.files import FileMark, locked, publish_file, sync_folder
from samovar.strategies.box_terms import BoxWord, say_filled

TIMEOUT_S: Final = 120.0
_BY_PART: Final = ("center", "velocity", "versions")  # what follows one part after the other in the whole


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a buffer's file. Without `shape`, one is made from `center` and `velocity`."""

    shape: BufferShape
    arrays: dict[str, Array]

    @classmethod
    def of(cls, shape: BufferShape, arrays: dict[str, Array]) -> "Content":
        """From the result of `samovar.box.joining.read_buffer`."""
        return cls(shape, arrays | {"shape": np.array(astuple(shape), np.int64)})

    @classmethod
    def joined(cls, found: Mapping[str, "Content"]) -> "Content":
        """The center whose parts these are, in any order. The words are those of the first part.

        Raises InputError if parts are missing or belong to different centers.
        """
        if len(found) == 1:
            return next(iter(found.values()))
        contents = [found[where] for where in _in_order(found)]
        names = [name for name in _BY_PART if all(name in content.arrays for content in contents)]
        arrays = {name: np.concatenate([content.arrays[name] for content in contents]) for name in names}
        words = contents[0].arrays["words"].copy()
        words[list(SHARD_WORDS)] = 0
        return cls.of(whole_of([content.shape for content in contents]), arrays | {"words": words})

    @classmethod
    def read_all(cls, files: Sequence[Path]) -> "Content":
        """Read one file, or those of the parts of one center; raises InputError as `read` and `joined`."""
        if twice := [file for file in files if files.count(file) > 1]:
            raise InputError(f"{twice[0]}: is given twice; give each part once")
        return cls.joined({str(file): cls.read(file) for file in files})

    @classmethod
    def read(cls, path: Path) -> "Content":
        """Raises InputError if the file is not a snapshot of a buffer, or is damaged."""
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
            raise InputError(f"{path}: is damaged: its SHA-256 differs; use an earlier snapshot")
        shape = _shape_in(path, arrays)
        if not (
            shape.takes_any or all(np.isfinite(arrays[name]).all() for name in ("center", "velocity") if name in arrays)
        ):
            raise InputError(f"{path}: holds values that are not finite; give an earlier snapshot")
        return cls(shape, arrays)

    def write(self, path: Path, digest: bytes | None = None) -> FileMark:
        """Write it, whole or not at all; raises OSError. Give `digest` if it is known."""
        digest = digest or self.digest()
        return publish_file(path, chunks(self.arrays | {"sha256": np.frombuffer(digest, np.uint8)}))

    def digest(self) -> bytes:
        return _digest(self.arrays)

    @property
    def part(self) -> CenterShard | None:
        """Which part of a center this is; None: a whole one."""
        return CenterShard.among(self.arrays["words"].tolist()) if "words" in self.arrays else None

    def __str__(self) -> str:
        part = "" if self.part is None else f"{self.part}, "
        return f"{part}{self.shape.num_elements:,} elements"

    def fill(self, session: BoxSeat, deadline: Deadline) -> None:
        session.board.set_word(BoxWord.IS_READY, 0)  # nobody starts from a half of it, also if this fails
        session.center.write(self.arrays["center"], deadline)
        if session.shape.with_velocity:
            session.center.write_velocity(self.arrays["velocity"], deadline)
        # Without words it has weights, and no run's steps: who trains here begins at step 0, on the present terms.
        words = {BoxWord.STEPS: 0, BoxWord.GOAL: 0}
        given = dict(enumerate(self.arrays["words"].tolist())) if "words" in self.arrays else words
        for index, value in sorted(given.items(), reverse=True):  # the last word lets in those who wait
            if value or index not in SHARD_WORDS:  # a whole one may be cut for those who get it
                session.board.set_word(index, value)
        if given is words:
            say_filled(session.board)


def _in_order(found: Mapping[str, Content]) -> list[str]:
    """Places of the parts, the first one first."""
    parts: dict[int, str] = {}
    (first, like), *_ = found.items()
    for where, content in found.items():
        part = content.part
        if part is None or like.part is None:
            raise InputError(f"{where if part is None else first} is a whole center, not a part of one; give it alone")
        if part.set_number != like.part.set_number or _cut(content.shape) != _cut(like.shape):
            raise InputError(f"{where} is {part} of a different center than {first}; give the parts of one center")
        if part.index in parts:
            raise InputError(f"{where} is {part}, and so is {parts[part.index]}; give each part once")
        parts[part.index] = where
    assert like.part is not None
    if missing := [str(index + 1) for index in range(min(like.part.count, MOST_BOXES)) if index not in parts]:
        raise InputError(f"part {', '.join(missing)} of {like.part.count} is missing; give all parts of the center")
    return [parts[index] for index in sorted(parts)]


def _cut(shape: BufferShape) -> BufferShape:
    return replace(shape, num_elements=1)


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
    sizes = arrays["shape"].reshape(-1).tolist()
    if len(sizes) not in (5, 6) or (sizes[0], bool(sizes[2])) != (shape.num_elements, shape.with_velocity):
        raise InputError(f"{path}: its `shape` is not that of its `center`; give a file of `samovar box snapshot`")
    return BufferShape.of_sizes(sizes)


def _digest(arrays: dict[str, Array]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


_WHO: Final = "samovar box"


def saved(places: Endpoints, name: str, timeout_s: float = TIMEOUT_S) -> Content:
    """Read buffer `name` from the boxes: from several boxes, the whole center.

    Raises InputError if these are not the parts of one center, or a box has none.
    """
    deadline = Deadline.after(timeout_s)
    found = {
        f"buffer {name!r} of {place}": Content.of(*read_buffer(place, name, _WHO, deadline)) for place in places.boxes
    }
    return Content.joined(found)


def load(content: Content, places: Endpoints, name: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Fill buffer `name`, which is made if it is missing; returns whether it was made.

    A whole center is divided among several boxes. A part goes into one box. Raises InputError if there is a different
    buffer of this name, or a worker trains there.
    """
    deadline = Deadline.after(timeout_s)
    if content.part is not None and len(places.boxes) > 1:
        raise InputError(
            f"{content.part} of a center goes into one box, not {len(places.boxes)}; give the files of all "
            f"{content.part.count} parts, or one box"
        )
    is_new = _make(content, places, name, deadline)
    _check_free(content, places, name, deadline, is_new=is_new)
    if len(places.boxes) > 1:
        session = take_shards(places, name, _WHO, deadline)
    else:
        session = take_seat(places.boxes[0], name, _WHO, deadline)
    with session:
        content.fill(session, deadline)
    return is_new


def _make(content: Content, places: Endpoints, name: str, deadline: Deadline) -> bool:
    """Whether this call made the buffer or its parts; InputError if only some boxes have one."""
    there = [place for place in places.boxes if name in buffer_names(place, _WHO, deadline)]
    if len(places.boxes) == 1:
        return not there and create_buffer(places.boxes[0], name, content.shape, _WHO, deadline)
    if 0 < len(there) < len(places.boxes):
        raise InputError(f"{Endpoints(tuple(there))} has a buffer {name!r}, the others have none; drop it first")
    return not there and create_shards(places, name, content.shape, _WHO, deadline) is None


def _check_free(content: Content, places: Endpoints, name: str, deadline: Deadline, *, is_new: bool) -> None:
    found = {place: look_at(place, name, _WHO, deadline) for place in places.boxes}
    where, shape = f"buffer {name!r} of {places}", whole_of([look.shape for look in found.values()])
    if (shape.num_elements, shape.with_velocity) != (content.shape.num_elements, content.shape.with_velocity):
        raise InputError(
            f"{where} has {_words_of(shape)}, and the file {_words_of(content.shape)}; drop it first, or load into "
            "another"
        )
    if len(found) == 1 and not is_new:
        _check_part(next(iter(found.values())).part, content.part, where)
    for place, look in found.items():
        if alive := [str(row.member.index) for row in look.rows if row.is_alive]:
            members = f"members {', '.join(alive)}"
            raise InputError(f"buffer {name!r} of {place}: {members} are at work there; end them first")


def _check_part(there: CenterShard | None, given: CenterShard | None, where: str) -> None:
    """A part differs from a whole center and from other parts, even with the same number of elements."""
    if (there and (there.index, there.count)) == (given and (given.index, given.count)):
        return
    has, gets = (f"{part} of a center" if part else "a whole center" for part in (there, given))
    raise InputError(f"{where} is {has}, and the file {gets}; drop it first, or give --box all boxes of that center")


def _words_of(shape: BufferShape) -> str:
    return f"{shape.num_elements:,} elements {'with' if shape.with_velocity else 'without'} velocity"


_SUFFIX: Final = ".safetensors"


class Snapshots:
    """Keeps the files of a box's `buffers` in `folder`, written every `every_s` on its own thread.

    A context manager. At its beginning it makes and fills the buffers that only the folder has. At its end it writes
    everything again, and raises SamovarError if it cannot. `tell` shows a line to people. Raises InputError if the
    folder cannot be used, or another box uses it.
    """

    def __init__(self, buffers: NamedBuffers, folder: Path, every_s: float, tell: Callable[[str], None]) -> None:
        self._buffers = buffers
        self._folder = folder
        self._every_s = every_s
        self._tell = tell
        self._written: dict[str, bytes] = {}
        self._refused: set[str] = set()  # names of files that were not loaded
        self._failure = ""  # of the last save
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="samovar-snapshots", daemon=True)
        self._lock = _locked_folder(folder)

    def __enter__(self) -> "Snapshots":
        for unfinished in self._folder.glob(".*.partial"):
            unfinished.unlink()
        self._restore()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        self._ending.set()
        self._thread.join()
        os.close(self._lock)
        if self._failure and kind is None:
            raise SamovarError(f"{self._failure}. The memory is kept for --keep seconds: start the box again in time")

    def write(self) -> None:
        """Write the buffers that changed, and delete the files of dropped ones. Raises OSError, SamovarError."""
        names = self._buffers.names()
        for name in names:
            with self._buffers.held(name) as buffer:
                content = Content.of(*read_mapped(buffer, Deadline.after(TIMEOUT_S)))
            digest = content.digest()
            if self._written.get(name) != digest:
                self._set_aside(name)
                content.write(self._path(name), digest)
                self._written[name] = digest
        for name in set(self._written) - set(names):
            self._path(name).unlink(missing_ok=True)
            sync_folder(self._folder)
            del self._written[name]

    def _restore(self) -> None:
        there = self._buffers.names()
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            name = path.name.removesuffix(_SUFFIX)
            if name in there:
                self._written[name] = b""  # older than the buffer, and goes with it
            if name in there or name.startswith("."):
                continue
            try:
                content = Content.read(path)
                self._buffers.create(name, content.shape, fill=partial(_fill, content))
            except (SamovarError, MemoryError) as error:
                self._refused.add(name)
                reason = str(error) or "memory is short"
                self._tell(f"not loaded: {reason if str(path) in reason else f'{path}: {reason}'}")
            else:
                self._written[name] = content.digest()
                self._tell(f"loaded from {path}: {name}")

    def _set_aside(self, name: str) -> None:
        """Before a new buffer is saved: a file that was not loaded may be the only copy of another center."""
        if name not in self._refused:
            return
        path = self._path(name)
        paths = (path.with_name(f"{path.name}.refused-{number}") for number in count(1))
        kept = next(free for free in paths if not free.exists())
        with suppress(FileNotFoundError):  # somebody has moved it already
            path.rename(kept)
            self._say(f"{path} was not loaded, and a new buffer takes its name: the old file is {kept} now")
        self._refused.remove(name)

    def _serve(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._ending.wait(self._every_s)
            self._failure = ""
            try:
                self.write()
            except OSError as error:
                self._failure = f"--box-snapshot {self._folder}: nothing can be written ({error.strerror}); make room"
            except (SamovarError, MemoryError) as error:  # dropped this moment, say
                self._failure = f"--box-snapshot {self._folder}: {str(error) or 'memory is short'}"
            if self._failure and not is_over:
                self._say(self._failure)

    def _say(self, text: str) -> None:
        with suppress(OSError):  # nobody reads it any more
            self._tell(text)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"


def _fill(content: Content, buffer: Buffer) -> None:
    with mapped_seat(buffer) as session:
        content.fill(session, Deadline.after(TIMEOUT_S))


def _locked_folder(folder: Path) -> int:
    """A descriptor that keeps other boxes out as long as it is open."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = locked(folder, f"--box-snapshot {folder}: another box writes there; give another folder")
    except OSError as error:
        raise InputError(f"--box-snapshot {folder}: {error.strerror}; give a folder that can be written") from error
    if not os.access(folder, os.W_OK):
        os.close(descriptor)
        raise InputError(f"--box-snapshot {folder}: cannot be written; give another folder")
    return descriptor
