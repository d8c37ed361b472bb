"""The box's work for its remote members, each update once.

There are no sockets here: the tests' simulated link runs the same code.
The answers to a member's last exchange are kept until the next one, so a lost answer can be sent again. Requests to the
board come one after the other, and the last answer is kept.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from samovar.box.base import Versions
from samovar.box.board import NUM_WORDS, Board, Member, MemberProgress, Origin, Rows
from samovar.box.buffers import BufferShape, NamedBuffers, RemoteMemory
from samovar.box.mapped import MappedCenter
from samovar.box.protocol import (
    NOBODY,
    READING,
    Attachment,
    Kind,
    Reply,
    Request,
    pack_rows,
    pack_word,
    unpack_progress,
    unpack_word,
)
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed
from samovar.transports.base import Array


class Seat:
    """A buffer as one remote member's place sees it; one call at a time on the center, and one on the board.

    `answers` and `notes` are the member's own (see `RemoteMemory`), and live as long as the center: the server's death
    costs nothing. NOBODY may only read, and has neither. `origin` is the member's host.
    """

    def __init__(
        self,
        board: Board,
        center: MappedCenter,
        member: Member,
        memory: RemoteMemory | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.board = board
        self.center = center
        self.member = member
        self.shape = BufferShape.of_mapped(center)
        self.token = board.claim_token(0)
        self.answers = np.empty(0, np.float32) if memory is None else memory.answers
        self.notes = np.zeros(3, np.uint64) if memory is None else memory.notes
        self._origin = origin

    def post(self, progress: MemberProgress) -> None:
        """Show it in the member's row, together with the member's host."""
        self.board.post(self.member, progress, self._origin)

    def show_away(self, *, is_away: bool) -> None:
        """Show in the member's row whether it has a connection."""
        row = self.board.row(self.member.index)
        if row.member == self.member and row.progress.away != is_away:
            self.post(replace(row.progress, away=is_away))

    def close(self) -> None:
        """Free the place of the member, which has left."""
        self.center.close()
        if self.member != NOBODY:
            self.board.leave(self.member)


class BufferHost:
    """The buffers of a box as its server works on them for remote members; for several threads at once."""

    def __init__(self, buffers: NamedBuffers) -> None:
        self.buffers = buffers

    def attach(self, attachment: Attachment, member: Member, origin: Origin) -> Seat:
        """The buffer's place for a new member (incarnation 0; its row where the index is one), or for an earlier one.

        Raises InputError if there is no such buffer, RankFailed if another member has the place by now.
        """
        with self.buffers.held(attachment.name) as buffer:
            board = Board(buffer.board)
            if attachment.token not in (0, board.claim_token(0)):
                raise RankFailed(f"buffer {attachment.name!r} was made again, without this member; join again")
            if member.incarnation == 0:
                member = board.join(member.index if member.index >= 0 else None)
            else:
                board.adopt(member)
            try:
                center = MappedCenter(buffer.center, member)
                seat = Seat(board, center, member, self._memory(attachment.name, board, member, center), origin)
                seat.post(replace(board.row(member.index).progress, away=False))
            except BaseException:
                board.leave(member)
                raise
        return seat

    def _memory(self, name: str, board: Board, member: Member, center: MappedCenter) -> RemoteMemory:
        memory = self.buffers.remote_memory(name, board.claim_token(0), member.index, center.num_elements)
        if memory.notes[0] != member.incarnation:
            memory.notes[:] = member.incarnation, 0, 0
        return memory

    def view(self, name: str) -> Seat:
        """The buffer, to read only. Raises InputError if there is none."""
        with self.buffers.held(name) as buffer:
            return Seat(Board(buffer.board), MappedCenter(buffer.center), NOBODY)


class Answer(NamedTuple):
    """A reply and its bodies."""

    reply: Reply
    versions: Versions
    body: Array | None = None


def answer(seat: Seat, request: Request, body: Array, deadline: Deadline) -> Answer:
    """Carry out the request at the member's center. Raises SamovarError if that fails.

    `body` is float32, as many as the request says; for READ it is filled.
    """
    _check_member(seat, request)
    before_s = seat.center.lock_wait_s
    versions, floats = _done(seat, request, body, deadline)
    num_bytes = 0 if floats is None else floats.nbytes
    return Answer(Reply.to(request, num_bytes, lost_s=seat.center.lock_wait_s - before_s), versions, floats)


def _done(seat: Seat, request: Request, body: Array, deadline: Deadline) -> tuple[Versions, Array | None]:
    center, first, sequence = seat.center, request.first_chunk, request.sequence
    match request.kind:
        case Kind.READ:
            return center.read_chunks(first, body, deadline), body
        case Kind.READ_VELOCITY:
            return center.read_velocity_chunks(first, body, deadline), body
        case Kind.WRITE:
            center.write_chunks(first, body, deadline)
        case Kind.WRITE_VELOCITY:
            center.write_velocity_chunks(first, body, deadline)
        case Kind.ACCUMULATE:
            return center.accumulate_chunks(first, sequence, body, deadline, request.rate), None
        case Kind.EXCHANGE:  # of a chunk that holds the update already, the kept answer is given again
            kept = seat.answers[request.elements(seat.shape)]
            return center.exchange_chunks(first, sequence, body, request.rate, deadline, kept), kept
        case _:
            raise AssertionError(request)
    return np.zeros(request.num_chunks, np.int64), None


def answer_on_board(seat: Seat, request: Request, body: bytes) -> bytes:
    """Carry out the request at the buffer's board. Raises SamovarError if that fails.

    A member's posts and changes of words are numbered, and made one after the other; a repeated one changes nothing.
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
