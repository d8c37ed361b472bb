"""`--collective auto`: the plan that a machine's figures promise to be fastest."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from samovar.collectives.plan import Combine, Notify, Plan, Put, Reduce, Wait
from samovar.collectives.plans import ALL_REDUCES
from samovar.core.calibration import CalibrationRecord, TransportFigures

# The order in which equals are preferred.
_CANDIDATES = ("direct", "kary-tree", "tree", "halving-doubling", "ring", "server")
_NEED_MAPPED_MEMORY = frozenset({"direct"})
ELEMENT_BYTES = 4


def choose_all_reduce(
    record: CalibrationRecord,
    world_size: int,
    num_bytes: int,
    mapped_memory: bool,
    oversubscribed: bool,
) -> str:
    """The name of the all-reduce with the smallest `predicted_s` for a buffer of `num_bytes` of float32.

    A pure function: every rank chooses the same, and a resumed run what the first one chose. Plans round
    differently, so the choice is part of what makes bits equal. Cost: O(P^2) per plan.
    """
    names = [name for name in _CANDIDATES if mapped_memory or name not in _NEED_MAPPED_MEMORY]
    return min(names, key=lambda name: predicted_s(record, name, world_size, num_bytes, oversubscribed))


def predicted_s(record: CalibrationRecord, name: str, world_size: int, num_bytes: int, oversubscribed: bool) -> float:
    """How long one run of the plan takes, at least: the largest of three bounds.

    1. The longest chain of the plan, steps x latency + bytes / bandwidth: a rank sends one message after the
       other, each takes one latency, and what it copies and adds takes its time.
    2. What all ranks read and write together, at the rate of all cores.
    3. Where ranks share cores: the second, a change of process for every turn of a rank (a turn ends where it has to
       wait), and the sending of every message.

    Bytes move at the rate of messages of the operation's size, read and written: in a cache faster than in memory.
    """
    function = ALL_REDUCES[name]
    plans = [function(rank, world_size) for rank in range(world_size)]
    figures = record.transports["shm"]
    latency_s = figures.shared_core_latency_s if oversubscribed else figures.spinning_latency_s
    timing = _Timing(plans, num_bytes // ELEMENT_BYTES, latency_s, figures)
    timing.run()
    # The rate of one rank is that of one core; all cores together are at most so many times as fast.
    together_s = timing.work_s * record.copy_bandwidth_one_bytes_per_s / record.copy_bandwidth_all_bytes_per_s
    if oversubscribed:
        switching_s = timing.num_turns * latency_s + timing.num_messages * figures.spinning_latency_s
        together_s += switching_s / record.cores
    return max(together_s, *(rank.clock_s for rank in timing.ranks))


@dataclass(slots=True)
class _Rank:
    plan: Plan
    clock_s: float = 0.0
    position: int = 0
    waits_on: int | None = None


class _Timing:
    """Runs the plans of all ranks with clocks instead of data."""

    def __init__(self, plans: Sequence[Plan], num_elements: int, latency_s: float, figures: TransportFigures) -> None:
        self.ranks = [_Rank(plan) for plan in plans]
        self.work_s = 0.0
        self.num_messages = 0
        self.num_turns = 0
        self._num_elements = num_elements
        self._latency_s = latency_s
        self._figures = figures
        self._arrivals_s: dict[tuple[int, int], float] = {}  # (receiver, slot)
        self._ready = deque(range(len(plans)))

    def run(self) -> None:
        while self._ready:
            number = self._ready.popleft()
            rank = self.ranks[number]
            rank.waits_on = None
            self.num_turns += 1
            while rank.position < len(rank.plan.operations) and self._perform(number, rank):
                rank.position += 1
        assert all(rank.waits_on is None for rank in self.ranks), f"{self.ranks[0].plan.name}: deadlock"

    def _perform(self, number: int, rank: _Rank) -> bool:
        operation = rank.plan.operations[rank.position]
        match operation:
            case Wait(slot=slot):
                return self._wait(rank, number, slot)
            case Put(peer=peer, chunk=chunk, slot=slot):
                self._work(rank, chunk, 2)
                self._send(rank, peer, slot)
            case Notify(peer=peer, slot=slot):
                self._send(rank, peer, slot)
            case Reduce(chunk=chunk, stagings=stagings):
                self._work(rank, chunk, len(stagings) + 2)
            case Combine(chunk=chunk, ranks=ranks, into=into):
                self._work(rank, chunk, len(ranks) + len(into))
        return True

    def _wait(self, rank: _Rank, number: int, slot: int) -> bool:
        arrival_s = self._arrivals_s.get((number, slot))
        if arrival_s is None:
            rank.waits_on = slot
            return False
        rank.clock_s = max(rank.clock_s, arrival_s)
        return True

    def _send(self, rank: _Rank, peer: int, slot: int) -> None:
        self.num_messages += 1
        rank.clock_s += self._latency_s
        self._arrivals_s[peer, slot] = rank.clock_s
        if self.ranks[peer].waits_on == slot:
            self._ready.append(peer)

    def _work(self, rank: _Rank, chunk: int, num_passes: int) -> None:
        """Read or write a chunk so many times; a put is two passes at the measured bandwidth."""
        start, stop = rank.plan.chunk_bounds(chunk, self._num_elements)
        chunk_bytes = (stop - start) * ELEMENT_BYTES
        seconds = num_passes * chunk_bytes / (2 * self._figures.bandwidth_at(chunk_bytes)) if chunk_bytes else 0.0
        rank.clock_s += seconds
        self.work_s += seconds
