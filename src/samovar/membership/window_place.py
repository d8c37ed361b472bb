"""A center in windows of a library (MPI, GASPI): it is with rank 0, and the others reach it without a server."""

import struct
import time
import zlib
from collections.abc import Callable

import numpy as np

from samovar.box.board import NUM_WORDS, PROGRESS_BYTES, Member, MemberProgress, Row
from samovar.box.buffers import BufferShape
from samovar.box.joining import BoxSeat
from samovar.box.window_center import WindowCenter
from samovar.core.clock import Deadline
from samovar.core.errors import RankFailed
from samovar.membership.ranks import Ranks
from samovar.membership.session import OwnCenter
from samovar.transports.base import Window
from samovar.transports.looking import LookingTransport

_FIRST_LIFE = 1
_WORD_BYTES = 8
_HOST = 0  # the rank with the words
_CHECK = struct.Struct("<Q")
_READ_AGAIN_S = 0.001


class WindowsCenter(OwnCenter):
    """A `samovar.membership.session.CenterPlace`: every rank takes a seat, in the row of its number.

    A rank that dies inside a chunk of the center holds its lock; the others end with an error that names it.
    """

    def __init__(self, transport: LookingTransport) -> None:
        self._transport = transport

    def seat(self, ranks: Ranks, shape: BufferShape, _deadline: Deadline, *, joins: bool) -> BoxSeat:
        """All ranks take theirs together."""
        assert not joins, "a job joins a box"
        center = WindowCenter(
            self._transport, shape.num_elements, with_velocity=shape.with_velocity, with_locks=shape.with_locks
        )
        board = WindowBoard(self._transport)
        return BoxSeat(center, board, Member(ranks.rank, _FIRST_LIFE), shape, center.close)


class WindowBoard:
    """A `samovar.box.board.Rows`: a rank's row is in its own memory, and the words are in that of rank 0.

    A row ends with a checksum. A rank that reads a row while it is written reads it again.
    """

    def __init__(self, transport: LookingTransport) -> None:
        self.max_members = transport.group.world_size
        self._rank = transport.group.rank
        self._lost: Callable[[int], str | None] = transport.lost
        num_bytes = NUM_WORDS * _WORD_BYTES + PROGRESS_BYTES + _CHECK.size
        self._window: Window = transport.open_window("board", num_bytes, 0)
        self._seen = [MemberProgress()] * self.max_members
        self.post(Member(self._rank, _FIRST_LIFE), MemberProgress())

    def row(self, index: int) -> Row:
        is_alive = index == self._rank or self._lost(index) is None
        if is_alive:
            try:
                self._seen[index] = self._read(index)
            except RankFailed:
                is_alive = False
        return Row(Member(index, _FIRST_LIFE), int(is_alive), is_alive, self._seen[index])

    def rows(self) -> list[Row]:
        return [self.row(index) for index in range(self.max_members)]

    def post(self, member: Member, progress: MemberProgress) -> None:
        assert member.index == self._rank, member
        data = progress.pack()
        row = np.frombuffer(data + _CHECK.pack(zlib.crc32(data)), np.uint8)
        self._window.put(self._rank, NUM_WORDS * _WORD_BYTES, row)

    def word(self, index: int) -> int:
        return self._window.fetch_add(_HOST, index * _WORD_BYTES, 0)

    def set_word(self, index: int, value: int) -> None:
        before = self.word(index)
        while (found := self._window.compare_swap(_HOST, index * _WORD_BYTES, before, value)) != before:
            before = found

    def claim_word(self, index: int, value: int) -> int:
        return self._window.compare_swap(_HOST, index * _WORD_BYTES, 0, value) or value

    def _read(self, index: int) -> MemberProgress:
        """The row, or what this rank saw of it last if its writer was stopped in the middle."""
        row = np.empty(PROGRESS_BYTES + _CHECK.size, np.uint8)
        for _ in range(10):
            self._window.get(index, NUM_WORDS * _WORD_BYTES, row)
            data, (check,) = row[:PROGRESS_BYTES].tobytes(), _CHECK.unpack(row[PROGRESS_BYTES:].tobytes())
            if zlib.crc32(data) == check:
                return MemberProgress.unpack(data)
            time.sleep(_READ_AGAIN_S)
        return self._seen[index]
