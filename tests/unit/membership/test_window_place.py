"""The board of a center in windows: every row, the words of all, and rows that are half written or of lost ranks."""

from typing import Any

import numpy as np

from samovar.box.board import NUM_WORDS, Member, MemberProgress
from samovar.box.buffers import BufferShape
from samovar.collectives.engine import PlannedCollectives
from samovar.core.clock import Deadline
from samovar.membership.job_center import WindowBoard, WindowsCenter
from samovar.membership.ranks import JobRanks
from tests.threads import on_threads

WORLD_SIZE = 3


def in_time() -> Deadline:
    return Deadline.after(60.0)


def ranks_of(transport: Any) -> JobRanks:
    return JobRanks(PlannedCollectives(transport, lambda _num_bytes: "tree"), in_time)


def test_every_rank_sees_every_row_and_the_same_words() -> None:
    def rank(transport: Any) -> tuple[list[int], list[bool], int, int]:
        ranks = ranks_of(transport)
        board = WindowBoard(transport)
        board.post(Member(ranks.rank, 1), MemberProgress(steps=10 + ranks.rank, finished=ranks.rank == 1))
        won = board.claim_word(3, 5 + ranks.rank)
        ranks.show()
        rows = board.rows()
        if ranks.rank == 0:
            board.set_word(NUM_WORDS - 1, 2**63)
        ranks.show()
        return [row.progress.steps for row in rows], [row.progress.finished for row in rows], won, board.word(14)

    found = on_threads(WORLD_SIZE, rank)
    assert [steps for steps, _, _, _ in found] == [[10, 11, 12]] * WORLD_SIZE
    assert [finished for _, finished, _, _ in found] == [[False, True, False]] * WORLD_SIZE
    assert len({won for _, _, won, _ in found}) == 1
    assert [last for _, _, _, last in found] == [2**63] * WORLD_SIZE


def test_a_row_that_is_half_written_or_of_a_lost_rank_stays_as_it_was_seen() -> None:
    def rank(transport: Any) -> list[tuple[int, bool]]:
        ranks = ranks_of(transport)
        board = WindowBoard(transport)
        board.post(Member(ranks.rank, 1), MemberProgress(steps=10 + ranks.rank))
        ranks.show()
        board.rows()
        ranks.show()
        if ranks.rank == 1:
            row = board._window.local[NUM_WORDS * 8 :]
            row[:8] = np.frombuffer(np.uint64(77).tobytes(), np.uint8)  # its checksum is of the old row
        ranks.show()
        board._lost = lambda index: "gone" if index == 2 else None
        rows = [(row.progress.steps, row.is_alive) for row in board.rows()]
        ranks.show()
        return rows

    found = on_threads(WORLD_SIZE, rank)
    assert found[0] == [(10, True), (11, True), (12, False)]


def test_seats_are_rows_by_rank_at_one_center() -> None:
    shape = BufferShape(100, WORLD_SIZE)

    def rank(transport: Any) -> tuple[int, float]:
        ranks = ranks_of(transport)
        with WindowsCenter(transport).seat(ranks, shape, in_time(), joins=False) as seat:
            if ranks.rank == 0:
                seat.center.write(np.ones(100, np.float32), in_time())
            ranks.show()
            seat.center.accumulate(1, np.full(100, 2.0, np.float32), in_time())
            ranks.show()
            center = np.empty(100, np.float32)
            seat.center.read(center, in_time())
            ranks.show()
            return seat.member.index, float(center.min())

    assert on_threads(WORLD_SIZE, rank) == [(number, 7.0) for number in range(WORLD_SIZE)]
