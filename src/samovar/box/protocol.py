"""What a remote member and a box say to each other: messages of fixed shape, and who still waits for which answer.

An operation on a center travels in parts of whole chunks, each with its own answer. A part says which update it belongs
to: (member, incarnation, sequence). So it may be sent again, come twice, late, or over another connection: a chunk that
holds the update already is left alone, and the answer is the same. No sockets here, no clocks: the tests' simulated
link runs the same code.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from samovar.box.base import Versions
from samovar.box.board import PROGRESS_BYTES, Member
from samovar.box.bodies import MOST_ATTACHMENT_BYTES, MOST_CREATION_BYTES, MOST_NAME_BYTES, WORD_BYTES
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed, SamovarError

VERSION: Final = 3
# Of 1 MiB, a fifth more is computed for each byte: Python's share of a part does not depend on its size.
PART_BYTES: Final = 1 << 22
# An exchange sends one part while another comes back, so of a small center, too, there are several.
EXCHANGE_PARTS: Final = 4
MOST_CHUNK_BYTES: Final = 1 << 26
MOST_TEXT_BYTES: Final = 1 << 20
_MOST_ELEMENTS: Final = 1 << 40
_FLOAT_BYTES: Final = 4
# kind, version, call, index, first chunk, number of chunks, incarnation, sequence, rate, body
_REQUEST = struct.Struct("<BB2xIiIIqqdI")
# kind, status, call, first chunk, number of chunks, sequence, body, lost
_REPLY = struct.Struct("<BB2xIIIqId")


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
ON_BOARD = (Kind.ROWS, Kind.POST, Kind.WORD, Kind.SET_WORD, Kind.CLAIM_WORD)
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


# Built once: messages are many.
_KINDS, _STATUSES = frozenset(Kind), frozenset(Status)
_ERRORS: dict[Status, type[SamovarError]] = {
    Status.REFUSED: InputError,
    Status.FAILED: RankFailed,
    Status.LATE: DeadlineExceeded,
    Status.NOT_FINITE: NotFinite,
}


# Who is no member yet.
NOBODY: Final = Member(-1, 0)


@dataclass(frozen=True, slots=True)
class Shape:
    """A center of `num_elements` float32, in chunks of `chunk_elements`."""

    num_elements: int
    chunk_elements: int

    def __post_init__(self) -> None:
        most = MOST_CHUNK_BYTES // _FLOAT_BYTES
        if not (1 <= self.num_elements <= _MOST_ELEMENTS and 1 <= self.chunk_elements <= most):
            raise SamovarError(
                f"a center of {self.num_elements} elements in chunks of {self.chunk_elements}: too large"
            )

    @property
    def num_chunks(self) -> int:
        return -(-self.num_elements // self.chunk_elements)

    def elements(self, first_chunk: int, num_chunks: int) -> slice:
        """Raises SamovarError where these are not chunks of one part."""
        if not (1 <= num_chunks <= self._part_chunks and 0 <= first_chunk <= self.num_chunks - num_chunks):
            raise SamovarError(f"chunks {first_chunk} + {num_chunks} of {self.num_chunks} are no part")
        start = first_chunk * self.chunk_elements
        return slice(start, min(start + num_chunks * self.chunk_elements, self.num_elements))

    def parts(self, least: int = 1) -> Iterator[tuple[int, int]]:
        """(first chunk, number of chunks) of each part, in order; `least` of them, where there are so many chunks."""
        count = min(self._part_chunks, -(-self.num_chunks // least))
        for first in range(0, self.num_chunks, count):
            yield first, min(count, self.num_chunks - first)

    @property
    def _part_chunks(self) -> int:
        return max(1, PART_BYTES // (_FLOAT_BYTES * self.chunk_elements))


@dataclass(frozen=True, slots=True)
class Request:
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
        """Raises SamovarError where no member of this version sends it."""
        kind, version, call, index, first, count, incarnation, sequence, rate, body = _REQUEST.unpack_from(header)
        if version != VERSION:
            raise SamovarError(f"a member speaks version {version} of the box's language, the box version {VERSION}")
        if kind not in _KINDS or not math.isfinite(rate) or sequence < 0 or index < -1 or incarnation < 0:
            raise SamovarError(f"no such request: kind {kind}, sequence {sequence}, rate {rate}, member {index}")
        if kind in _UPDATES and sequence == 0:
            raise SamovarError("no such request: updates are numbered from 1 on")
        request = cls(Kind(kind), call, Member(index, incarnation), first, count, sequence, rate, body)
        most = _MOST_BODY.get(request.kind, 0)
        if body > most:
            raise SamovarError(f"no such request: {request.kind.name} with {body} bytes, at most {most}")
        return request

    def elements(self, shape: Shape) -> slice:
        """What it is about. Raises SamovarError where its chunks are none, or its body has another size."""
        part = shape.elements(self.first_chunk, self.num_chunks)
        expected = _FLOAT_BYTES * (part.stop - part.start) if self.kind in _WITH_FLOATS else 0
        if self.body_bytes != expected:
            raise SamovarError(f"{self.kind.name} of {expected} bytes came with {self.body_bytes}")
        return part


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request: where DONE, versions of its chunks (int64) follow, then `body_bytes`; else a text.

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
        """Raises SamovarError where no box of this version sends it."""
        kind, status, call, first, count, sequence, body, lost_s = _REPLY.unpack_from(header)
        if kind not in _KINDS or status not in _STATUSES or body > max(MOST_CHUNK_BYTES, MOST_TEXT_BYTES):
            raise SamovarError(f"no such answer: kind {kind}, status {status}, {body} bytes")
        if not lost_s >= 0:
            raise SamovarError(f"no such answer: {lost_s} s lost")
        return cls(Kind(kind), Status(status), call, first, count, sequence, body, lost_s)

    @classmethod
    def to(cls, request: Request, body_bytes: int = 0, status: Status = Status.DONE, lost_s: float = 0.0) -> "Reply":
        chunks = request.first_chunk, request.num_chunks if status is Status.DONE else 0
        return cls(request.kind, status, request.call, *chunks, request.sequence, body_bytes, lost_s)

    def error(self, text: str) -> SamovarError:
        """What the box says went wrong."""
        return _ERRORS[self.status](text)


def status_of(error: SamovarError) -> Status:
    """How an answer tells of it; what is none of these is the box's own failure."""
    return next((status for status, kind in _ERRORS.items() if isinstance(error, kind)), Status.FAILED)


class Operation:
    """One operation of a member on a whole center, until every part of it is answered."""

    def __init__(
        self, kind: Kind, call: int, member: Member, shape: Shape, sequence: int = 0, rate: float = 0.0
    ) -> None:
        self.versions: Versions = np.zeros(shape.num_chunks, np.int64)
        self._shape = shape
        self._left = {}
        for first, count in shape.parts(EXCHANGE_PARTS if kind is Kind.EXCHANGE else 1):
            part = shape.elements(first, count)
            body_bytes = _FLOAT_BYTES * (part.stop - part.start) if kind in _WITH_FLOATS else 0
            self._left[first] = Request(kind, call, member, first, count, sequence, rate, body_bytes)

    def unanswered(self) -> list[tuple[Request, slice]]:
        """The requests to send, again after every failure, and the elements that each is about."""
        return [(request, request.elements(self._shape)) for request in self._left.values()]

    @property
    def is_complete(self) -> bool:
        return not self._left

    def expected(self, reply: Reply) -> slice | None:
        """The elements that the answer's floats are; None where it answers nothing that is still open.

        Raises SamovarError where it contradicts its request.
        """
        request = self._left.get(reply.first_chunk)
        if request is None or (reply.kind, reply.call, reply.sequence) != (
            request.kind,
            request.call,
            request.sequence,
        ):
            return None
        part = request.elements(self._shape)
        expected = _FLOAT_BYTES * (part.stop - part.start) if reply.kind in _ANSWERED_BY_FLOATS else 0
        if (reply.num_chunks, reply.body_bytes) != (request.num_chunks, expected):
            raise SamovarError(f"{reply.kind.name} answered by {reply.num_chunks} chunks, {reply.body_bytes} bytes")
        return part

    def answered(self, reply: Reply, versions: Versions) -> None:
        """Note the answer, whose floats are where they belong."""
        del self._left[reply.first_chunk]
        self.versions[reply.first_chunk : reply.first_chunk + reply.num_chunks] = versions
