"""The named buffers of a box: a center and the board of its members each, which the box's memory holder has too."""

import mmap
import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from samovar.box.board import ENDED_WORD, MAX_MEMBERS, Board, create_board
from samovar.box.mapped import DEFAULT_CHUNK_ELEMENTS, MappedCenter, create_center
from samovar.core.closing import Closing
from samovar.core.errors import InputError, RankFailed
from samovar.core.host import create_empty, seal
from samovar.transports.base import Array

MAX_BUFFERS: Final = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FLOAT_BYTES = 4
_NOTES_BYTES = 64
# Numbers that a restarted server finds again.
Notes: TypeAlias = npt.NDArray[np.uint64]
# As native/center_file.cpp has them.
_MAX_ELEMENTS, _MAX_MEMBERS, _MAX_CHUNK_ELEMENTS = 1 << 40, 1024, 1 << 24


@dataclass(frozen=True, slots=True)
class BufferShape:
    """The settings of a new buffer (see `samovar.box.mapped.create_center`)."""

    num_elements: int
    max_members: int = MAX_MEMBERS
    with_velocity: bool = False
    with_locks: bool = True
    chunk_elements: int = DEFAULT_CHUNK_ELEMENTS
    takes_any: bool = False

    @property
    def num_chunks(self) -> int:
        return -(-self.num_elements // self.chunk_elements)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "BufferShape":
        """The shape in a message; raises InputError if it is none."""
        return cls(
            _number(given, "num_elements", _MAX_ELEMENTS),
            _number(given, "max_members", _MAX_MEMBERS),
            given.get("with_velocity") is True,
            given.get("with_locks") is True,
            _number(given, "chunk_elements", _MAX_CHUNK_ELEMENTS),
            given.get("takes_any") is True,
        )

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> "BufferShape":
        """The shape whose `astuple` this is, as numbers. Raises InputError if it is not one.

        Files of version 0.1 have five numbers: their centers take only finite values, as new ones do.
        """
        num_elements, max_members, with_velocity, with_locks, chunk_elements, takes_any = (*sizes, 0)[:6]
        numbers = {"num_elements": num_elements, "max_members": max_members, "chunk_elements": chunk_elements}
        flags = {"with_velocity": with_velocity, "with_locks": with_locks, "takes_any": takes_any}
        return cls.of(numbers | {name: bool(value) for name, value in flags.items()})

    @classmethod
    def of_center(cls, descriptor: int) -> "BufferShape":
        return cls.of_mapped(MappedCenter(descriptor))

    @classmethod
    def of_mapped(cls, center: MappedCenter) -> "BufferShape":
        return cls(**{field.name: getattr(center, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class Buffer(Closing):
    """Descriptors of a buffer's two files; the receiver owns them. `is_new`: made by this call."""

    center: int
    board: int
    is_new: bool = False

    def close(self) -> None:
        os.close(self.center)
        os.close(self.board)


@dataclass(frozen=True, slots=True)
class RemoteMemory:
    """The box's memory for one member of another host, float32 (N,): the answer to its last exchange.

    `notes`, uint64 (3,), are its incarnation, the number of its last request to the board, and that one's answer.
    """

    answers: Array
    notes: Notes

    @staticmethod
    def num_bytes(num_elements: int) -> int:
        return _NOTES_BYTES + num_elements * _FLOAT_BYTES

    @classmethod
    def of(cls, mapped: mmap.mmap, num_elements: int) -> "RemoteMemory":
        notes = np.frombuffer(mapped, np.uint64, 3)
        return cls(np.frombuffer(mapped, np.float32, num_elements, offset=_NOTES_BYTES), notes)


class Memory(Protocol):
    """A second holder of descriptors, next to a box's server (see `samovar.box.memory_holder.HeldMemory`)."""

    def get(self) -> dict[str, int]: ...
    def put(self, key: str, descriptor: int) -> None: ...
    def discard(self, key: str) -> None: ...


class NamedBuffers:
    """All buffers of a box, by name, including those of the memory holder. Several threads may use it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._descriptors = memory.get()
        for name in self.names():
            if f"board/{name}" not in self._descriptors:  # the last server died between the two
                self._discard(f"center/{name}")
        self.say_ended(is_ended=False)  # the last one may have been killed while it ended

    def names(self) -> list[str]:
        keys = list(self._descriptors)  # at once: members of other hosts may come meanwhile
        return sorted(key.removeprefix("center/") for key in keys if key.startswith("center/"))

    def create(
        self,
        name: str,
        shape: BufferShape,
        token: int | None = None,
        fill: Callable[[Buffer], None] = lambda _buffer: None,
    ) -> Buffer:
        """A new buffer of zeros, or the existing one of this name and shape. Raises InputError.

        A second attempt with the same `token`, of 63 bits, returns it as new again. A new one is kept when `fill` has
        filled it, or not at all.
        """
        token = token or new_token()
        require_name(name)
        with self._lock:
            if f"center/{name}" in self._descriptors:
                return self._existing(name, shape, token)
            if len(self.names()) >= MAX_BUFFERS:
                raise InputError(f"the box has {MAX_BUFFERS} buffers already; drop one")
            with ExitStack() as undone:
                made = {f"center/{name}": create_center(**asdict(shape))}
                undone.callback(os.close, made[f"center/{name}"])
                made[f"board/{name}"] = create_board(shape.max_members)
                undone.callback(os.close, made[f"board/{name}"])
                Board(made[f"board/{name}"]).claim_token(token)
                fill(Buffer(made[f"center/{name}"], made[f"board/{name}"]))
                for key, descriptor in made.items():
                    self._memory.put(key, descriptor)
                undone.pop_all()
            self._descriptors.update(made)
            return Buffer(made[f"center/{name}"], made[f"board/{name}"], is_new=True)

    def _existing(self, name: str, shape: BufferShape, token: int) -> Buffer:
        found = BufferShape.of_center(self._descriptors[f"center/{name}"])
        if found != shape:
            raise InputError(
                f"buffer {name!r} exists already with another shape: {found}, not {shape}; "
                "take another name, or drop it first"
            )
        buffer = self._buffer(name)
        return replace(buffer, is_new=Board(buffer.board).claim_token(token) == token)

    def held(self, name: str) -> Buffer:
        """The buffer of this name, for the caller to close, even if it is dropped meanwhile. Raises InputError."""
        with self._lock:
            buffer = self._buffer(name)
            return Buffer(os.dup(buffer.center), os.dup(buffer.board))

    def drop(self, name: str) -> None:
        """Forget a buffer; members that have it mapped keep it. Raises InputError if there is none."""
        with self._lock:
            self._buffer(name)
            remote = [key for key in self._descriptors if key.startswith(f"remote/{name}/")]
            for key in (*remote, f"board/{name}", f"center/{name}"):  # a server killed meanwhile leaves no orphan
                self._discard(key)

    def remote_memory(self, name: str, token: int, index: int, num_elements: int) -> RemoteMemory:
        """The memory here of the remote member in row `index`; it lives as long as the buffer, whose board has `token`.

        Raises InputError, or RankFailed, if the buffer was dropped since.
        """
        key = f"remote/{name}/{index}"
        with self._lock:
            if Board(self._buffer(name).board).claim_token(0) != token:
                raise RankFailed(f"buffer {name!r} was made again meanwhile, without this member; join again")
            if key not in self._descriptors:
                descriptor = create_empty()
                self._descriptors[key] = descriptor
                os.ftruncate(descriptor, RemoteMemory.num_bytes(num_elements))
                seal(descriptor)
                self._memory.put(key, descriptor)
            mapped = mmap.mmap(self._descriptors[key], RemoteMemory.num_bytes(num_elements))
        return RemoteMemory.of(mapped, num_elements)

    def say_ended(self, *, is_ended: bool) -> None:
        """Tell the programs that have the memory mapped whether it is a box's no longer."""
        with self._lock:
            for name in self.names():
                with suppress(InputError):  # another version's
                    Board(self._buffer(name).board).set_word(ENDED_WORD, int(is_ended))

    def close(self) -> None:
        """Close this process's descriptors; those of the memory holder stay."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    def _buffer(self, name: str) -> Buffer:
        """Raises InputError if there is none; a stranger's name is shown with escapes."""
        if f"center/{name}" not in self._descriptors:
            there = ", ".join(self.names()) or "none"
            raise InputError(f"no buffer {name[:64]!r}; there are: {there}")
        return Buffer(self._descriptors[f"center/{name}"], self._descriptors[f"board/{name}"])

    def _discard(self, key: str) -> None:
        self._memory.discard(key)
        os.close(self._descriptors.pop(key))


def require_name(name: object) -> None:
    """Raises InputError if a buffer cannot be called so."""
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InputError(f"a buffer cannot be called {name!r}; use letters, digits, '.', '_', '-', at most 64")


def new_token() -> int:
    """A unique number."""
    return secrets.randbits(62) + 1


def _number(given: Mapping[str, Any], name: str, most: int) -> int:
    number = given.get(name)
    if type(number) is not int or not 1 <= number <= most:
        raise InputError(f"a buffer's {name} is 1 to {most:,}, not {str(number)[:40]!r}")
    return number
