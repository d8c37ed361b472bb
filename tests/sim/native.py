"""The native executor of plans, one operation at a time: a seed draws which rank is next, so that no thread decides it.

All ranks live in this process and map one segment. They run `NativeChannel` and the native core's own operations.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from samovar.collectives.execute import NativeChannel
from samovar.collectives.plan import PlanFunction
from samovar.core.group import Group
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport, create_segment
from samovar.transports.sim.scheduler import Deadlock
from samovar.transports.sim.world import SimRun
from tests.conformance import cases
from tests.sim.harness import NUM_RUNS, Counted, SimCase, assert_cost, assert_result, enter, plan_of, repeated_by

# How many operations a rank does at most before another has its turn: schedules far apart, and close together.
LONGEST_TURNS = (1, 3, 1000)


class TurnsChannel(NativeChannel):
    """A channel whose runs are driven from outside."""

    def turns(self) -> Iterator[bool]:
        """One run; True after each operation, False instead where the next one waits."""
        self._program.begin()
        while not self._program.is_complete:
            yield self._program.perform_next()
        self._completed()

    def where(self) -> str:
        """The operation that comes next."""
        operations = self._memory.plan.operations
        return str(operations[min(self._program.position, len(operations) - 1)])


@dataclass(frozen=True)
class NativeParts:
    """The parts of a case; a planted mistake replaces one."""

    function: PlanFunction | None = None  # None: that of the case's collective
    channel: type[TurnsChannel] = TurnsChannel


SOUND = NativeParts()


class Rank:
    """One rank: fills its buffer, runs the plan, reads the result, again and again."""

    def __init__(self, case: SimCase, parts: NativeParts, transport: ShmTransport) -> None:
        self._case, self._transport = case, transport
        self._rank, world_size = transport.group.rank, transport.group.world_size
        self._window = transport.open_window("data", case.size * 8 + 8, 0)
        self._buffer = Region.of(self._window, 8, case.size, np.dtype(case.dtype).type)
        where = self._rank, world_size
        plan = parts.function(*where) if parts.function else plan_of(case.collective, *where)
        self.channel = parts.channel(case.collective, plan, transport, self._buffer)
        self.counted = Counted([], [])
        self.turns = self._turns()

    def _turns(self) -> Iterator[bool]:
        case, rank = self._case, self._rank
        result = self._buffer.array[slice(*cases.result_part(case.collective, rank, case.world_size, case.size))]
        for run in range(1, NUM_RUNS + 1):
            self._buffer.array[:] = cases.contribution(rank, run, case.size, case.dtype)
            sent_before = self._transport.bytes_sent
            enter(case, self._window)
            yield True
            yield from self.channel.turns()
            assert_result(case, run, rank, self._window, result)
            self.counted.steps.append(self.channel.last_steps)
            self.counted.bytes_sent.append(self._transport.bytes_sent - sent_before)
            yield True


def run_native(case: SimCase, parts: NativeParts = SOUND) -> SimRun[Counted]:
    """Raises what is wrong, with a note of the command that repeats it; messages are turns."""
    descriptor = create_segment(case.world_size)
    try:
        groups = [Group(rank, case.world_size) for rank in range(case.world_size)]
        ranks = [Rank(case, parts, ShmTransport(descriptor, group, oversubscribed=True)) for group in groups]
        order = take_turns(ranks, Random(case.seed + 1))
        assert_cost(case, [rank.counted for rank in ranks])
    except Exception as error:
        error.add_note(f"to repeat: {repeated_by('native', case)}")
        raise
    finally:
        os.close(descriptor)
    counted = [rank.counted for rank in ranks]
    sent = tuple(sum(each.bytes_sent) for each in counted)
    return SimRun(counted, 0.0, len(order), sent, hashlib.sha256(str(order).encode()).hexdigest())


def take_turns(ranks: Sequence[Rank], random: Random) -> list[int]:
    """The ranks that had their turns, in order. Raises Deadlock, and the errors of ranks."""
    longest, order = random.choice(LONGEST_TURNS), []
    going, waiting = set(range(len(ranks))), set[int]()
    while going:
        able = sorted(going - waiting)
        if not able:
            raise Deadlock("; ".join(f"rank {rank} stands at {ranks[rank].channel.where()}" for rank in sorted(going)))
        rank = random.choice(able)
        order.append(rank)
        did, goes_on = one_turn(ranks[rank], random.randint(1, longest))
        # Whatever it did may be what others wait for.
        waiting = set() if did else waiting | {rank}
        going -= set() if goes_on else {rank}
    return order


def one_turn(rank: Rank, most: int) -> tuple[bool, bool]:
    """Whether it did anything, and whether anything is left to do."""
    for done in range(most):
        progressed = next(rank.turns, None)
        if not progressed:
            return done > 0 or progressed is None, progressed is not None
    return True, True
