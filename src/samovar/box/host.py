"""The box's buffers as its server works on them for remote members (see `samovar.box.answering`)."""

from dataclasses import replace

import numpy as np

from samovar.box.base import Versions
from samovar.box.board import Board, Member, MemberProgress, Origin, Rows
from samovar.box.bodies import Attachment
from samovar.box.buffers import BufferShape, NamedBuffers, RemoteMemory
from samovar.box.mapped import MappedCenter
from samovar.box.protocol import NOBODY, Shape
from samovar.core.clock import Deadline
from samovar.core.errors import RankFailed
from samovar.transports.base import Array


class MappedSeat:
    """See `samovar.box.answering.Seat`."""

    def __init__(
        self,
        board: Board,
        center: MappedCenter,
        member: Member,
        memory: RemoteMemory | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.member = member
        self.shape = Shape(center.num_elements, center.chunk_elements)
        self.buffer = BufferShape.of_mapped(center)
        self.token = board.claim_token(0)
        self.board: Rows = board
        self.answers = np.empty(0, np.float32) if memory is None else memory.answers
        self.notes = np.zeros(3, np.uint64) if memory is None else memory.notes
        self._board = board
        self._center = center
        self._origin = origin

    @property
    def lost_s(self) -> float:
        return self._center.lock_wait_s

    def read(self, first_chunk: int, destination: Array, deadline: Deadline) -> Versions:
        return self._center.read_chunks(first_chunk, destination, deadline)

    def write(self, first_chunk: int, values: Array, deadline: Deadline) -> None:
        self._center.write_chunks(first_chunk, values, deadline)

    def read_velocity(self, first_chunk: int, destination: Array, deadline: Deadline) -> Versions:
        return self._center.read_velocity_chunks(first_chunk, destination, deadline)

    def write_velocity(self, first_chunk: int, values: Array, deadline: Deadline) -> None:
        self._center.write_velocity_chunks(first_chunk, values, deadline)

    def accumulate(
        self, first_chunk: int, sequence: int, difference: Array, momentum: float, deadline: Deadline
    ) -> Versions:
        return self._center.accumulate_chunks(first_chunk, sequence, difference, deadline, momentum)

    def exchange(
        self, first_chunk: int, sequence: int, weights: Array, moved: Array, moving_rate: float, deadline: Deadline
    ) -> Versions:
        return self._center.exchange_chunks(first_chunk, sequence, weights, moving_rate, deadline, moved)

    def post(self, progress: MemberProgress) -> None:
        self._board.post(self.member, progress, self._origin)

    def show_away(self, *, is_away: bool) -> None:
        row = self._board.row(self.member.index)
        if row.member == self.member and row.progress.away != is_away:
            self.post(replace(row.progress, away=is_away))

    def close(self) -> None:
        self._center.close()
        if self.member != NOBODY:
            self._board.leave(self.member)


class BufferHost:
    """See `samovar.box.answering.Host`."""

    def __init__(self, buffers: NamedBuffers) -> None:
        self._buffers = buffers

    def attach(self, attachment: Attachment, member: Member, origin: Origin) -> MappedSeat:
        with self._buffers.held(attachment.name) as buffer:
            board = Board(buffer.board)
            _check_token(board, attachment)
            if member.incarnation == 0:
                member = board.join(member.index if member.index >= 0 else None)
            else:
                board.adopt(member)
            try:
                center = MappedCenter(buffer.center, member)
                seat = MappedSeat(board, center, member, self._memory(attachment.name, member, center), origin)
                seat.post(replace(board.row(member.index).progress, away=False))
            except BaseException:
                board.leave(member)
                raise
        return seat

    def _memory(self, name: str, member: Member, center: MappedCenter) -> RemoteMemory:
        memory = self._buffers.remote_memory(name, member.index, center.num_elements)
        if memory.notes[0] != member.incarnation:
            memory.notes[:] = member.incarnation, 0, 0
        return memory

    def view(self, name: str) -> MappedSeat:
        with self._buffers.held(name) as buffer:
            return MappedSeat(Board(buffer.board), MappedCenter(buffer.center), NOBODY)

    def create(self, name: str, shape: BufferShape, attempt: int) -> bool:
        return self._buffers.create(name, shape, attempt).is_new

    def drop(self, name: str) -> None:
        self._buffers.drop(name)

    def names(self) -> list[str]:
        return self._buffers.names()


def _check_token(board: Board, attachment: Attachment) -> None:
    if attachment.token not in (0, board.claim_token(0)):
        raise RankFailed(f"buffer {attachment.name!r} was made anew, without this member; join anew")
