"""The box's centers as its server works on them for remote members (see `samovar.box.serving`)."""

import json

from samovar.box.base import Versions
from samovar.box.board import Board, Member
from samovar.box.buffers import Buffers, describe
from samovar.box.mapped import MappedCenter
from samovar.box.protocol import NOBODY, Shape
from samovar.core.clock import Deadline
from samovar.transports.base import Array


class MappedSeat:
    """See `samovar.box.serving.Seat`."""

    def __init__(self, board: Board, center: MappedCenter, member: Member, answers: Array) -> None:
        self.member = member
        self.shape = Shape(center.num_elements, center.chunk_elements)
        self.answers = answers
        self._board = board
        self._center = center

    def read(self, first_chunk: int, destination: Array, deadline: Deadline) -> Versions:
        return self._center.read_chunks(first_chunk, destination, deadline)

    def write(self, first_chunk: int, values: Array, deadline: Deadline) -> None:
        self._center.write_chunks(first_chunk, values, deadline)

    def accumulate(
        self, first_chunk: int, sequence: int, difference: Array, momentum: float, deadline: Deadline
    ) -> Versions:
        return self._center.accumulate_chunks(first_chunk, sequence, difference, deadline, momentum)

    def exchange(
        self, first_chunk: int, sequence: int, weights: Array, moved: Array, moving_rate: float, deadline: Deadline
    ) -> Versions:
        return self._center.exchange_chunks(first_chunk, sequence, weights, moving_rate, deadline, moved)

    def close(self) -> None:
        self._center.close()
        self._board.leave(self.member)


class BufferHost:
    """See `samovar.box.serving.Host`."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def attach(self, name: str, member: Member) -> MappedSeat:
        buffer = self._buffers.get(name)
        board = Board(buffer.board)
        if member == NOBODY:
            member = board.join()
        else:
            board.adopt(member)
        try:
            center = MappedCenter(buffer.center, member)
        except BaseException:
            board.leave(member)
            raise
        return MappedSeat(board, center, member, self._buffers.answers(name, member.index, center.num_elements))

    def drop(self, name: str) -> None:
        self._buffers.drop(name)

    def describe(self) -> str:
        return json.dumps([describe(name, self._buffers.get(name)) for name in self._buffers.names()])
