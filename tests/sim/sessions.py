"""Ranks that come to a center on simulated machines: whatever the delays, none trains before the center is filled."""

import os
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

from samovar.box.board import Board, Member, MemberProgress, create_board
from samovar.box.buffers import BufferShape
from samovar.box.joining import BoxSeat
from samovar.box.window_center import WindowCenter
from samovar.core.clock import Deadline
from samovar.core.errors import RankFailed
from samovar.membership.members import LaunchMembers, still_lagging
from samovar.membership.ranks import LaunchRanks
from samovar.membership.session import Session
from samovar.strategies.box_terms import STOP_RULES
from samovar.transports.base import Array
from samovar.transports.sim.world import SimConfig, SimRun, SimTransport, simulate
from tests.sim.harness import MAX_DELAYS_S, config_of, repeated_by

SIZE, STEPS = 40, 5
LONGEST_S = 100 * max(MAX_DELAYS_S)


class WrongSession(AssertionError):
    """A rank trained on what was no first weights, waited for nobody, or counted steps back."""


@dataclass(frozen=True)
class SessionCase:
    """A case drawn from a seed. The first rank may be gone before it has filled the center."""

    seed: int
    world_size: int
    rule: str
    is_first_gone: bool

    @classmethod
    def of_seed(cls, seed: int) -> "SessionCase":
        draw = Random(seed)
        return cls(seed, draw.choice((1, 2, 3, 5)), draw.choice(STOP_RULES), draw.random() < 0.3)

    def config(self) -> SimConfig:
        return config_of(self.seed)


class SimCenter:
    """A place whose center lies in simulated windows; the board is memory of this process."""

    way_out = "look at the seed"

    def __init__(self, center: WindowCenter, board: Board) -> None:
        self._center, self.board = center, board

    def __str__(self) -> str:
        return "the simulated center"

    def seat(self, ranks: LaunchRanks, shape: BufferShape, deadline: Deadline, *, joins: bool) -> BoxSeat:
        del deadline, joins
        member = self.board.join(ranks.rank)
        center: Any = self._center  # which waits for no lock
        return BoxSeat(center, self.board, member, shape, lambda: self.board.leave(member))

    def drop(self) -> None:
        """Nobody else would come."""


def run_sessions(case: SessionCase, session: type[Session] = Session) -> SimRun[str]:
    """Raises what is wrong, with a note of the call that repeats it."""
    descriptor = create_board(case.world_size)
    try:
        gone: set[int] = set()
        program = partial(work, case, session, Board(descriptor), gone)
        run = simulate(program, case.world_size, case.config())
        check(case, run.results)
        return run
    except Exception as error:
        error.add_note(f"to repeat: {repeated_by('sessions', case)}")
        raise
    finally:
        os.close(descriptor)


def work(case: SessionCase, kind: type[Session], board: Board, gone: set[int], transport: SimTransport) -> str:
    """One rank: comes, fills or waits, trains, waits for the others' end. How it ended."""
    rank, random = transport.group.rank, Random(case.seed * 8 + transport.group.rank)
    center = WindowCenter(transport, SIZE, chunk_elements=16)
    ranks = LaunchRanks(transport, gone.__contains__, transport.sleep)
    shape, deadline = BufferShape(SIZE, case.world_size), partial(Deadline.after, 60.0)
    transport.sleep(LONGEST_S * random.random())
    session = kind(SimCenter(center, board), ranks, shape, deadline, lambda _: 0, sleep=transport.sleep)
    if rank == 0 and case.is_first_gone:
        transport.sleep(LONGEST_S * random.random())
        gone.add(0)
        return "gone"
    try:
        begin(session, center, transport, random)
    except RankFailed:
        return "ended"
    trained(case, session.seat.member, board, ranks, transport, random)
    lagging = partial(unfinished, board, case.world_size)
    if still_lagging(lagging, deadline, transport.sleep):
        raise WrongSession("the others did not end")
    session.close()
    return "trained"


def begin(session: Session, center: WindowCenter, transport: SimTransport, random: Random) -> None:
    """The first one writes its weights, and says so some time later."""
    forever = partial(transport.deadline, float("inf"))
    if session.fills:
        center.write(first_weights(), forever())
        transport.sleep(LONGEST_S * random.random())
        session.filled()
        return
    session.await_filled()
    found = np.zeros(SIZE, np.float32)
    center.read(found, forever())
    if found.tobytes() != first_weights().tobytes():
        raise WrongSession("began before the center had its first weights")


def trained(
    case: SessionCase, member: Member, board: Board, ranks: LaunchRanks, transport: SimTransport, random: Random
) -> None:
    members = LaunchMembers(board, member, case.world_size, ranks.first_left, case.rule, 0)
    before = 0
    for step in range(1, STEPS + 1):
        transport.sleep(LONGEST_S * random.random() ** 3)
        members.post(MemberProgress(steps=step, finished=step == STEPS))
        steps = members.run_steps()
        if steps < before or steps > STEPS:
            raise WrongSession(f"the run has {steps} steps after {before}")
        before = steps


def unfinished(board: Board, world_size: int) -> dict[int, int]:
    rows = [board.row(rank) for rank in range(world_size)]
    return {rank: row.progress.steps for rank, row in enumerate(rows) if row.is_alive and not row.progress.finished}


def check(case: SessionCase, endings: list[str]) -> None:
    wanted = ["gone", *["ended"] * (case.world_size - 1)] if case.is_first_gone else ["trained"] * case.world_size
    if endings != wanted:
        raise WrongSession(f"ranks ended as {endings}, and not {wanted}")


def first_weights() -> Array:
    return np.arange(1, SIZE + 1, dtype=np.float32)


class FilledTooSoon(Session):
    """Planted: does not wait for the first weights."""

    def await_filled(self) -> None:
        """At once."""


class NeverTold(Session):
    """Planted: a rank waits for a first one that is gone."""

    @property
    def _is_given_up(self) -> bool:
        return False

    @property
    def _is_filled(self) -> bool:
        return self._ranks.is_gone(0) or super()._is_filled
