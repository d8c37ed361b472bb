"""The protocol between a remote member and a box, byte by byte.

An operation on a center travels in parts of whole chunks, each with its own answer. A part says which update it belongs
to: (member, incarnation, sequence). So it may be sent again, come twice, late, or over another connection. A chunk that
holds the update already stays as it is, and the answer is the same. There are no sockets and clocks here: the tests'
simulated link runs the same code.

Requests and replies have one shape each, bodies that of their kind. A message of another size or without sense is
refused.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from samovar.box.base import Versions
from samovar.box.board import PROGRESS_BYTES, Member, MemberProgress, Origin, Row
from samovar.box.buffers import BufferShape
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed, SamovarError
from samovar.transports.secure import ConnectionLost

VERSION: Final = 3
# Of 1 MiB, a fifth more is computed for each byte: Python's share of a part does not depend on its size.
PART_BYTES: Final = 1 << 22
# An exchange sends one part while another comes back, so of a small center, too, there are several.
EXCHANGE_PARTS: Final = 4
MOST_CHUNK_BYTES: Final = 1 << 26
MOST_TEXT_BYTES: Final = 1 << 20
_FLOAT_BYTES: Final = 4
# kind, version, call, index, first chunk, number of chunks, incarnation, sequence, rate, body
_REQUEST = struct.Struct("<BB2xIiIIqqdI")
# kind, status, call, first chunk, number of chunks, sequence, body, lost
_REPLY = struct.Struct("<BB2xIIIqId")
MOST_NAME_BYTES: Final = 128
_ATTACHMENT = struct.Struct("<qqI")  # token, attempt, process
_SHAPE = struct.Struct("<qIBBqB")  # elements, members, velocity, locks, chunk elements, any numbers
_WELCOME = struct.Struct("<iqq")  # member, token
_CREATION = struct.Struct("<q")
_WORD = struct.Struct("<Q")
_ROW = struct.Struct("<iqIB")  # member, process, is it alive
_ORIGIN_BYTES = 20
_ROW_BYTES = _ROW.size + PROGRESS_BYTES + _ORIGIN_BYTES
MOST_ATTACHMENT_BYTES: Final = _ATTACHMENT.size + MOST_NAME_BYTES
MOST_CREATION_BYTES: Final = _CREATION.size + _SHAPE.size + MOST_NAME_BYTES
WORD_BYTES: Final = _WORD.size


class Kind(IntEnum):
    ATTACH = 1  # as a member; body: Attachment
    READ = 2
    WRITE = 3
    ACCUMULATE = 4
    EXCHANGE = 5
    DETACH = 6
    DROP = 7  # body: the buffer's name
    NAMES = 8
    READ_VELOCITY = 9
    WRITE_VELOCITY = 10
    CREATE = 11  # body: Creation
    WATCH = 12  # the board of a member, or center and board to read only; body: Attachment
    ROWS = 13  # from `first_chunk` on, `num_chunks` of them; 0: those that somebody has or had
    POST = 14  # body: Progress
    WORD = 15  # word `first_chunk`
    SET_WORD = 16  # body: the value
    CLAIM_WORD = 17  # body: the value


ON_CHUNKS = (Kind.READ, Kind.WRITE, Kind.ACCUMULATE, Kind.EXCHANGE, Kind.READ_VELOCITY, Kind.WRITE_VELOCITY)
READING = (Kind.READ, Kind.READ_VELOCITY)
_UPDATES = (Kind.ACCUMULATE, Kind.EXCHANGE, Kind.POST, Kind.SET_WORD, Kind.CLAIM_WORD)
_WITH_FLOATS = (Kind.WRITE, Kind.ACCUMULATE, Kind.EXCHANGE, Kind.WRITE_VELOCITY)
_MOST_BODY = dict.fromkeys(_WITH_FLOATS, MOST_CHUNK_BYTES) | {
    Kind.ATTACH: MOST_ATTACHMENT_BYTES,
    Kind.WATCH: MOST_ATTACHMENT_BYTES,
    Kind.DROP: MOST_NAME_BYTES,
    Kind.CREATE: MOST_CREATION_BYTES,
    Kind.POST: PROGRESS_BYTES,
    Kind.SET_WORD: WORD_BYTES,
    Kind.CLAIM_WORD: WORD_BYTES,
}
_ANSWERED_BY_FLOATS = (*READING, Kind.EXCHANGE)


class Status(IntEnum):
    DONE = 0
    REFUSED = 1  # InputError
    FAILED = 2  # RankFailed
    LATE = 3  # DeadlineExceeded
    NOT_FINITE = 4  # NotFinite
    FULL = 5  # ConnectionLost: it may be tried again


# Built once: messages are many.
_KINDS, _STATUSES = {int(kind): kind for kind in Kind}, {int(status): status for status in Status}
_ERRORS: dict[Status, type[SamovarError]] = {
    Status.REFUSED: InputError,
    Status.FAILED: RankFailed,
    Status.LATE: DeadlineExceeded,
    Status.NOT_FINITE: NotFinite,
    Status.FULL: ConnectionLost,
}
NOBODY: Final = Member(-1, 0)  # who is no member yet
_member = lru_cache(maxsize=1024)(Member)  # of each the same object: it is looked up at every request


def elements(shape: BufferShape, first_chunk: int, num_chunks: int) -> slice:
    """Those of a center's chunks. Raises SamovarError if these are not chunks of one part."""
    if not (1 <= num_chunks <= _part_chunks(shape) and 0 <= first_chunk <= shape.num_chunks - num_chunks):
        raise SamovarError(f"chunks {first_chunk} + {num_chunks} of {shape.num_chunks} are not a part")
    start = first_chunk * shape.chunk_elements
    return slice(start, min(start + num_chunks * shape.chunk_elements, shape.num_elements))


def parts(shape: BufferShape, least: int = 1) -> Iterator[tuple[int, int]]:
    """(first chunk, number of chunks) of each part, in order; at least `least` of them if there are enough chunks."""
    count = min(_part_chunks(shape), -(-shape.num_chunks // least))
    for first in range(0, shape.num_chunks, count):
        yield first, min(count, shape.num_chunks - first)


def _part_chunks(shape: BufferShape) -> int:
    return max(1, PART_BYTES // (_FLOAT_BYTES * shape.chunk_elements))


class Request(NamedTuple):
    """`call` numbers a member's operations; an update is (member, sequence). `rate`: moving rate, or momentum."""

    kind: Kind
    call: int
    member: Member = NOBODY
    first_chunk: int = 0
    num_chunks: int = 0
    sequence: int = 0
    rate: float = 0.0
    body_bytes: int = 0

    def pack(self) -> bytes:
        chunks = self.member.index, self.first_chunk, self.num_chunks
        rest = self.member.incarnation, self.sequence, self.rate, self.body_bytes
        return _REQUEST.pack(self.kind, VERSION, self.call, *chunks, *rest)

    @classmethod
    def unpack(cls, header: bytes) -> "Request":
        """Raises SamovarError if no member of this version sends it."""
        kind, version, call, index, first, count, incarnation, sequence, rate, body = _REQUEST.unpack_from(header)
        if version != VERSION:
            raise InputError(
                f"a member speaks version {version} of the box's language, the box version {VERSION}; use one version "
                "of Samovar"
            )
        if kind not in _KINDS or not math.isfinite(rate) or sequence < 0 or index < -1 or incarnation < 0:
            raise SamovarError(f"no such request: kind {kind}, sequence {sequence}, rate {rate}, member {index}")
        if sequence == 0 and kind in _UPDATES:
            raise SamovarError("no such request: updates are numbered from 1 on")
        request = cls(_KINDS[kind], call, _member(index, incarnation), first, count, sequence, rate, body)
        if body > (most := _MOST_BODY.get(request.kind, 0)):
            raise SamovarError(f"no such request: {request.kind.name} with {body} bytes, at most {most}")
        return request

    def elements(self, shape: BufferShape) -> slice:
        """Its elements. Raises SamovarError if it names no chunks, or its body has another size."""
        part = elements(shape, self.first_chunk, self.num_chunks)
        expected = _FLOAT_BYTES * (part.stop - part.start) if self.kind in _WITH_FLOATS else 0
        if self.body_bytes != expected:
            raise SamovarError(f"{self.kind.name} of {expected} bytes came with {self.body_bytes}")
        return part


class Reply(NamedTuple):
    """The answer to one request: if DONE, versions of its chunks (int64) follow, then `body_bytes`; else a text.

    `lost_s` is what the member lost to others meanwhile.
    """

    kind: Kind
    status: Status
    call: int
    first_chunk: int = 0
    num_chunks: int = 0
    sequence: int = 0
    body_bytes: int = 0
    lost_s: float = 0.0

    def pack(self) -> bytes:
        chunks = self.first_chunk, self.num_chunks
        rest = self.sequence, self.body_bytes, self.lost_s
        return _REPLY.pack(self.kind, self.status, self.call, *chunks, *rest)

    @classmethod
    def unpack(cls, header: bytes) -> "Reply":
        """Raises SamovarError if no box of this version sends it."""
        kind, status, call, first, count, sequence, body, lost_s = _REPLY.unpack_from(header)
        if kind not in _KINDS or status not in _STATUSES or body > max(MOST_CHUNK_BYTES, MOST_TEXT_BYTES):
            raise SamovarError(f"no such answer: kind {kind}, status {status}, {body} bytes")
        if not lost_s >= 0:
            raise SamovarError(f"no such answer: {lost_s} s lost")
        return cls(_KINDS[kind], _STATUSES[status], call, first, count, sequence, body, lost_s)

    @classmethod
    def to(cls, request: Request, body_bytes: int = 0, status: Status = Status.DONE, lost_s: float = 0.0) -> "Reply":
        chunks = request.first_chunk, request.num_chunks if status is Status.DONE else 0
        return cls(request.kind, status, request.call, *chunks, request.sequence, body_bytes, lost_s)

    def error(self, text: str) -> SamovarError:
        """The box's error."""
        return _ERRORS[self.status](text)


def status_of(error: Exception) -> Status:
    """The status that reports an error; any other error is the box's own failure."""
    return next((status for status, kind in _ERRORS.items() if isinstance(error, kind)), Status.FAILED)


class Operation:
    """One operation of a member on chunks from `first_chunk` on, of this `shape`, until every part is answered."""

    def __init__(
        self,
        kind: Kind,
        call: int,
        member: Member,
        shape: BufferShape,
        sequence: int = 0,
        rate: float = 0.0,
        first_chunk: int = 0,
    ) -> None:
        self.versions: Versions = np.zeros(shape.num_chunks, np.int64)
        self.num_elements, self._first_chunk = shape.num_elements, first_chunk
        self._left: dict[int, tuple[Request, slice]] = {}
        for first, count in parts(shape, EXCHANGE_PARTS if kind is Kind.EXCHANGE else 1):
            part, place = elements(shape, first, count), first_chunk + first
            body_bytes = _FLOAT_BYTES * (part.stop - part.start) if kind in _WITH_FLOATS else 0
            self._left[place] = (Request(kind, call, member, place, count, sequence, rate, body_bytes), part)

    def unanswered(self) -> list[tuple[Request, slice]]:
        """The requests to send, again after every failure, and the elements that each is about."""
        return list(self._left.values())

    @property
    def is_complete(self) -> bool:
        return not self._left

    def expected(self, reply: Reply) -> slice | None:
        """The elements that the answer's floats are; None if it answers nothing that is still open.

        Raises SamovarError if it contradicts its request.
        """
        if reply.first_chunk not in self._left:
            return None
        request, part = self._left[reply.first_chunk]
        if (reply.kind, reply.call, reply.sequence) != (request.kind, request.call, request.sequence):
            return None
        expected = _FLOAT_BYTES * (part.stop - part.start) if reply.kind in _ANSWERED_BY_FLOATS else 0
        if (reply.num_chunks, reply.body_bytes) != (request.num_chunks, expected):
            raise SamovarError(f"{reply.kind.name} answered by {reply.num_chunks} chunks, {reply.body_bytes} bytes")
        return part

    def answered(self, reply: Reply, versions: Versions) -> None:
        """Note the answer, whose floats are in their place."""
        del self._left[reply.first_chunk]
        place = reply.first_chunk - self._first_chunk
        self.versions[place : place + reply.num_chunks] = versions


def pack_name(name: str) -> bytes:
    """Raises InputError if no buffer can be called so."""
    encoded = name.encode(errors="backslashreplace")  # of the command line's bytes that are no text
    if not 1 <= len(encoded) <= MOST_NAME_BYTES:
        raise InputError(f"the name of a center has 1 to {MOST_NAME_BYTES} bytes, got {name!r}")
    return encoded


def unpack_name(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise SamovarError("a center's name must be text (UTF-8)") from error


@dataclass(frozen=True, slots=True)
class Attachment:
    """Which buffer a connection is for; `token` is its board's, 0 for the present buffer of this name.

    `attempt` is a number of this attachment, so that a repeated one makes no second member.
    """

    name: str
    process_id: int
    token: int = 0
    attempt: int = 0

    def pack(self) -> bytes:
        return _ATTACHMENT.pack(self.token, self.attempt, self.process_id) + pack_name(self.name)

    @classmethod
    def unpack(cls, body: bytes) -> "Attachment":
        _require(len(body) > _ATTACHMENT.size, "an attachment", body)
        token, attempt, process_id = _ATTACHMENT.unpack_from(body)
        _require(token >= 0 and attempt >= 0, "an attachment", body)
        return cls(unpack_name(body[_ATTACHMENT.size :]), process_id, token, attempt)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to an attachment: the buffer's shape, the member's identity, and the board's token."""

    shape: BufferShape
    member: Member
    token: int

    def pack(self) -> bytes:
        return _WELCOME.pack(self.member.index, self.member.incarnation, self.token) + _pack_shape(self.shape)

    @classmethod
    def unpack(cls, body: bytes) -> "Welcome":
        _require(len(body) == _WELCOME.size + _SHAPE.size, "a welcome", body)
        index, incarnation, token = _WELCOME.unpack_from(body)
        return cls(_unpack_shape(body[_WELCOME.size :]), _member(index, incarnation), token)


@dataclass(frozen=True, slots=True)
class Creation:
    """A buffer to make; `attempt` tells a second try from another process's request."""

    name: str
    shape: BufferShape
    attempt: int

    def pack(self) -> bytes:
        return _CREATION.pack(self.attempt) + _pack_shape(self.shape) + pack_name(self.name)

    @classmethod
    def unpack(cls, body: bytes) -> "Creation":
        start = _CREATION.size + _SHAPE.size
        _require(len(body) > start, "a creation", body)
        (attempt,) = _CREATION.unpack_from(body)
        _require(attempt > 0, "a creation", body)
        return cls(unpack_name(body[start:]), _unpack_shape(body[_CREATION.size : start]), attempt)


def pack_word(value: int) -> bytes:
    return _WORD.pack(value)


def unpack_word(body: bytes) -> int:
    _require(len(body) == _WORD.size, "a word", body)
    return int(_WORD.unpack(body)[0])


def unpack_progress(body: bytes) -> MemberProgress:
    _require(len(body) == PROGRESS_BYTES, "a post", body)
    return MemberProgress.unpack(body)


def pack_rows(rows: Sequence[Row]) -> bytes:
    return b"".join(map(_pack_row, rows))


def unpack_rows(body: bytes) -> list[Row]:
    _require(len(body) % _ROW_BYTES == 0, "rows", body)
    return [_unpack_row(body[start : start + _ROW_BYTES]) for start in range(0, len(body), _ROW_BYTES)]


def _pack_row(row: Row) -> bytes:
    head = _ROW.pack(row.member.index, row.member.incarnation, row.process_id, row.is_alive)
    origin = Origin(row.host, 0).pack() if row.host else bytes(_ORIGIN_BYTES)
    return head + row.progress.pack() + origin


def _unpack_row(data: bytes) -> Row:
    index, incarnation, process_id, is_alive = _ROW.unpack_from(data)
    progress = MemberProgress.unpack(data[_ROW.size :])
    origin = Origin.unpack(data[_ROW.size + PROGRESS_BYTES :])
    host = "" if origin is None else origin.host
    return Row(Member(index, incarnation), process_id, bool(is_alive), progress, host)


@lru_cache(maxsize=16)
def _pack_shape(shape: BufferShape) -> bytes:
    try:
        return _SHAPE.pack(*astuple(shape))
    except struct.error as error:
        raise InputError(f"no buffer has the shape {shape}") from error


@lru_cache(maxsize=16)
def _unpack_shape(data: bytes) -> BufferShape:
    """Raises InputError if no buffer has it."""
    return BufferShape.of_sizes(_SHAPE.unpack(data))


def _require(is_right: bool, what: str, body: bytes) -> None:
    if not is_right:
        raise SamovarError(f"{len(body)} bytes are not {what}")
