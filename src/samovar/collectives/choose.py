"""`--collective auto`: the plan that a machine's figures promise to be fastest."""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from samovar.collectives.plan import Combine, Notify, Operation, Plan, Put, Reduce, Wait
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


# The order in which equals are preferred.
_BETWEEN_HOSTS = ("halving-doubling", "ring", "kary-tree", "tree", "server")


def choose_between(record: CalibrationRecord, world_size: int, num_bytes: int, transport: str = "tcp") -> str:
    """The name of the all-reduce with the smallest `predicted_between_s` for a buffer of `num_bytes` of float32.

    A pure function, as `samovar.collectives.choose.choose_all_reduce`. Cost: O(P^2 log P) per plan.
    """
    return min(_BETWEEN_HOSTS, key=lambda name: predicted_between_s(record, name, world_size, num_bytes, transport))


def predicted_between_s(
    record: CalibrationRecord, name: str, world_size: int, num_bytes: int, transport: str = "tcp"
) -> float:
    """How long one run of the plan takes where each rank's link sends and receives at once, a message at a time.

    A message of B bytes takes its sender's link B / W(B) seconds, then one latency until it is there; what several
    ranks send to one goes over that one's link one after the other. Sums are made at the rate of memory. Ranks have
    memory and cores of their own; where they share them, all plans move the same bytes in all, halving-doubling of a
    number of ranks that is no power of two excepted.
    """
    plans = [ALL_REDUCES[name](rank, world_size) for rank in range(world_size)]
    timing = _Links(plans, num_bytes // ELEMENT_BYTES, record.transports[transport], record.transports["shm"])
    timing.run()
    return max(rank.clock_s for rank in timing.ranks)


@dataclass(slots=True)
class _RankBetween:
    plan: Plan
    clock_s: float = 0.0
    receives_until_s: float = 0.0
    position: int = 0

    @property
    def operation(self) -> Operation | None:
        operations = self.plan.operations
        return operations[self.position] if self.position < len(operations) else None


class _Links:
    """Runs the plans of all ranks with clocks instead of data, in the order of their clocks."""

    def __init__(
        self, plans: Sequence[Plan], num_elements: int, link: TransportFigures, memory: TransportFigures
    ) -> None:
        self.ranks = [_RankBetween(plan) for plan in plans]
        self._num_elements = num_elements
        self._link = link
        self._memory = memory
        self._arrivals_s: dict[tuple[int, int], float] = {}  # (receiver, slot)
        self._waiting: set[tuple[int, int]] = set()

    def run(self) -> None:
        ready = [(0.0, number) for number in range(len(self.ranks))]
        while ready:
            number = heapq.heappop(ready)[1]
            rank = self.ranks[number]
            for woken in self._perform(number, rank):
                heapq.heappush(ready, (self.ranks[woken].clock_s, woken))
        assert not self._waiting, f"{self.ranks[0].plan.name}: deadlock"

    def _perform(self, number: int, rank: _RankBetween) -> Sequence[int]:
        """One operation; who may go on after it."""
        operation, going_on = rank.operation, [number]
        match operation:
            case None:
                return ()
            case Wait(slot=slot):
                if (number, slot) not in self._arrivals_s:
                    self._waiting.add((number, slot))
                    return ()
                rank.clock_s = max(rank.clock_s, self._arrivals_s[number, slot])
            case Put(peer=peer, chunk=chunk, slot=slot):
                going_on += self._send(rank, peer, slot, self._chunk_bytes(rank, chunk))
            case Notify(peer=peer, slot=slot):
                going_on += self._send(rank, peer, slot, 0)
            case Reduce(chunk=chunk, stagings=stagings):
                size = self._chunk_bytes(rank, chunk)
                rank.clock_s += (len(stagings) + 2) * _seconds(size, self._memory) / 2
            case Combine():
                raise AssertionError(f"plan {rank.plan.name!r} needs memory that all ranks map")
        rank.position += 1
        return going_on

    def _send(self, rank: _RankBetween, peer: int, slot: int, num_bytes: int) -> list[int]:
        """The peer, where it waits for this."""
        receiver, on_link_s = self.ranks[peer], _seconds(num_bytes, self._link)
        latency_s = self._link.sleeping_latency_s
        sent_s = rank.clock_s + on_link_s
        rank.clock_s = sent_s + latency_s
        receiver.receives_until_s = max(sent_s, receiver.receives_until_s + on_link_s)
        self._arrivals_s[peer, slot] = receiver.receives_until_s + latency_s
        if (peer, slot) not in self._waiting:
            return []
        self._waiting.remove((peer, slot))
        return [peer]

    def _chunk_bytes(self, rank: _RankBetween, chunk: int) -> int:
        start, stop = rank.plan.chunk_bounds(chunk, self._num_elements)
        return (stop - start) * ELEMENT_BYTES


def _seconds(num_bytes: int, figures: TransportFigures) -> float:
    return num_bytes / figures.bandwidth_at(num_bytes) if num_bytes else 0.0
