"""What a box does for a remote member, each update once; no sockets here: the tests' simulated link runs the same code.

The answers to a member's exchanges are kept until they are written over by the next, so a lost one can be given again.
Of its requests to the board, which come one after the other, the last one's answer is kept.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from samovar.box.base import Versions
from samovar.box.board import NUM_WORDS, Member, MemberProgress, Origin, Rows
from samovar.box.bodies import Attachment, pack_rows, pack_word, unpack_progress, unpack_word
from samovar.box.buffers import BufferShape, Notes
from samovar.box.protocol import NOBODY, READING, Kind, Reply, Request, Shape
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed
from samovar.transports.base import Array


class Seat(Protocol):
    """A buffer as one remote member's place sees it; arrays cover whole chunks from `first_chunk` on.

    See `samovar.box.base.Center`; one call at a time on the center, and one on the board. `answers`, float32 (N,), is
    the member's own: what its last exchange left of its weights. So are `notes`: its incarnation, the number of its
    last request to the board, and that one's answer. Both live as long as the center, where the server's death is to
    cost nothing. NOBODY may only read, and has neither.
    """

    member: Member
    shape: Shape
    buffer: BufferShape
    token: int
    board: Rows
    answers: Array
    notes: Notes

    @property
    def lost_s(self) -> float:
        """Seconds that the member lost to others at the center so far."""
        ...

    def read(self, first_chunk: int, destination: Array, deadline: Deadline) -> Versions: ...

    def write(self, first_chunk: int, values: Array, deadline: Deadline) -> None: ...

    def read_velocity(self, first_chunk: int, destination: Array, deadline: Deadline) -> Versions: ...

    def write_velocity(self, first_chunk: int, values: Array, deadline: Deadline) -> None: ...

    def accumulate(
        self, first_chunk: int, sequence: int, difference: Array, momentum: float, deadline: Deadline
    ) -> Versions: ...

    def exchange(
        self,
        first_chunk: int,
        sequence: int,
        weights: Array,
        moved: Array,
        moving_rate: float,
        deadline: Deadline,
    ) -> Versions:
        """moved = x - d, before c += d shows; chunks that hold the sequence leave c and `moved` alone."""
        ...

    def post(self, progress: MemberProgress) -> None:
        """Show it in the member's row, beside where the member is."""
        ...

    def show_away(self, *, is_away: bool) -> None:
        """Show in the member's row whether it has a connection."""
        ...

    def close(self) -> None:
        """The member is not there any more; its place is free."""
        ...


class Host(Protocol):
    """The box as its server sees it. Calls may come from several threads at once."""

    def attach(self, attachment: Attachment, member: Member, origin: Origin) -> Seat:
        """The buffer's place for a new member (incarnation 0; its row where the index is one), or for an earlier one.

        Raises InputError where there is no such buffer, RankFailed where the member's place is another's by now.
        """
        ...

    def view(self, name: str) -> Seat:
        """The buffer for who only reads. Raises InputError where there is none."""
        ...

    def create(self, name: str, shape: BufferShape, attempt: int) -> bool:
        """Whether this attempt made the buffer; see `samovar.box.buffers.NamedBuffers.create`."""
        ...

    def drop(self, name: str) -> None:
        """Delete a buffer; who is attached keeps it. Raises InputError where there is none."""
        ...

    def names(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back: the reply, and its bodies."""

    reply: Reply
    versions: Versions
    body: Array | None = None


def answer(seat: Seat, request: Request, body: Array, deadline: Deadline) -> Answer:
    """Do what the request says with the member's center. Raises SamovarError where it cannot be done.

    `body` is float32, as many as the request says; for READ it is filled.
    """
    _check_member(seat, request)
    before_s = seat.lost_s
    versions, floats = _done(seat, request, body, deadline)
    num_bytes = 0 if floats is None else floats.nbytes
    return Answer(Reply.to(request, num_bytes, lost_s=seat.lost_s - before_s), versions, floats)


def _done(seat: Seat, request: Request, body: Array, deadline: Deadline) -> tuple[Versions, Array | None]:
    first, sequence = request.first_chunk, request.sequence
    match request.kind:
        case Kind.READ:
            return seat.read(first, body, deadline), body
        case Kind.READ_VELOCITY:
            return seat.read_velocity(first, body, deadline), body
        case Kind.WRITE:
            seat.write(first, body, deadline)
        case Kind.WRITE_VELOCITY:
            seat.write_velocity(first, body, deadline)
        case Kind.ACCUMULATE:
            return seat.accumulate(first, sequence, body, request.rate, deadline), None
        case Kind.EXCHANGE:  # of a chunk that holds the update already, the kept answer is given again
            kept = seat.answers[request.elements(seat.shape)]
            return seat.exchange(first, sequence, body, kept, request.rate, deadline), kept
        case _:
            raise AssertionError(request)
    return np.zeros(request.num_chunks, np.int64), None


def answer_on_board(seat: Seat, request: Request, body: bytes) -> bytes:
    """Do what the request says with the buffer's board. Raises SamovarError where it cannot be done.

    A member's posts and changes of words are numbered, and made one after the other: what was done is not done again.
    """
    match request.kind:
        case Kind.ROWS:
            return _rows(seat.board, request)
        case Kind.WORD:
            return pack_word(seat.board.word(_word_index(request)))
    _check_member(seat, request)
    _incarnation, last, kept = seat.notes
    if request.sequence <= last:
        return pack_word(int(kept))
    found = _changed(seat, request, body)
    seat.notes[2] = found
    seat.notes[1] = request.sequence
    return pack_word(found)


def _changed(seat: Seat, request: Request, body: bytes) -> int:
    match request.kind:
        case Kind.POST:
            seat.post(unpack_progress(body))
        case Kind.SET_WORD:
            seat.board.set_word(_word_index(request), unpack_word(body))
        case Kind.CLAIM_WORD:
            return seat.board.claim_word(_word_index(request), unpack_word(body))
        case _:
            raise AssertionError(request)
    return 0


def _rows(board: Rows, request: Request) -> bytes:
    if request.num_chunks == 0:
        return pack_rows(board.rows())
    stop = request.first_chunk + request.num_chunks
    if stop > board.max_members:
        raise InputError(f"row {stop - 1}: the board has rows 0 to {board.max_members - 1}")
    return pack_rows([board.row(index) for index in range(request.first_chunk, stop)])


def _word_index(request: Request) -> int:
    if request.first_chunk >= NUM_WORDS:
        raise InputError(f"word {request.first_chunk}: the board has words 0 to {NUM_WORDS - 1}")
    return request.first_chunk


def _check_member(seat: Seat, request: Request) -> None:
    if request.member != seat.member:
        raise RankFailed(f"member {request.member} is not {seat.member}: a newer one has its place")
    if seat.member == NOBODY and request.kind not in READING:
        raise InputError(f"{request.kind.name} is for members; join first")
