"""The cost of plans: counted from the plans themselves, and predicted from a machine's figures.

`--collective auto` is the plan that the figures promise to be fastest. The choice is a pure function: every rank makes
the same one, and so does a resumed run. Plans round differently, so it is part of what makes bits equal.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from samovar.collectives.plan import Combine, Notify, Plan, Put, Reduce, Wait
from samovar.collectives.plans import ALL_REDUCES
from samovar.core.errors import InputError
from samovar.core.machine import NOMINAL, CalibrationRecord, TransportFigures

# The order in which equals are preferred.
_CANDIDATES = ("direct", "kary-tree", "tree", "halving-doubling", "ring", "server")
_BETWEEN_HOSTS = ("halving-doubling", "ring", "kary-tree", "tree", "server")
_NEED_MAPPED_MEMORY = frozenset({"direct"})
ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """`steps`: messages on the longest chain, where a rank sends one message after the other.

    `bytes_sent[r]`: payload that rank r writes into other ranks' memory. `num_messages`: puts and
    notifications of all ranks.
    """

    steps: int
    bytes_sent: tuple[int, ...]
    num_messages: int


def cost(
    plans: Sequence[Plan], num_elements: int, element_bytes: int = 4, message_bytes: Callable[[int], int] | None = None
) -> Cost:
    """The cost of one collective, given the plans of ranks 0 to P-1.

    Where plans run encoded, `message_bytes` is the size of a message of a number of elements. Raises ValueError, with
    who waits for whom, if the plans deadlock.
    """
    counting = _Counting(plans, num_elements, message_bytes or (lambda count: count * element_bytes))
    counting.run()
    steps = max((int(rank.clock) for rank in counting.ranks), default=0)
    return Cost(steps, tuple(counting.bytes_sent), counting.num_messages)


def put_bytes(plan: Plan, put: Put, num_elements: int, size_of: Callable[[int], int]) -> int:
    """Bytes of a put: a part of a sum is one message, what is complete one for each of its cells."""
    if put.staging is not None:
        start, stop = plan.chunk_bounds(put.chunk, num_elements)
        return size_of(stop - start)
    bounds = (plan.cell_bounds(cell, num_elements) for cell in plan.cells(put.chunk))
    return sum(size_of(stop - start) for start, stop in bounds)


def choose_all_reduce(
    record: CalibrationRecord, world_size: int, num_bytes: int, mapped_memory: bool, oversubscribed: bool
) -> str:
    """The name of the all-reduce with the smallest `predicted_s` for a buffer of `num_bytes` of float32.

    Cost: O(P^2) per plan.
    """
    names = [name for name in _CANDIDATES if mapped_memory or name not in _NEED_MAPPED_MEMORY]
    return min(names, key=lambda name: predicted_s(record, name, world_size, num_bytes, oversubscribed))


def choose_between(record: CalibrationRecord, world_size: int, num_bytes: int) -> str:
    """The same between hosts, by `predicted_between_s`. Cost: O(P^2 log P) per plan."""
    return min(_BETWEEN_HOSTS, key=lambda name: predicted_between_s(record, name, world_size, num_bytes))


def require_messages(collective: str) -> None:
    """Raise InputError for a plan that cannot run between hosts."""
    if collective in _NEED_MAPPED_MEMORY:
        raise InputError(
            f"collective: {collective} needs memory that all ranks map; with tcp, mpi or gaspi choose another, or auto"
        )


def chosen_between(
    record: CalibrationRecord, host_sizes: Sequence[int] | None, world_size: int
) -> Callable[[int], str]:
    """The plan for a number of bytes where ranks are on several hosts: two-level if a host has several ranks, else the
    best for each size. `host_sizes` is None if hosts do not have consecutive ranks.
    """
    if host_sizes is not None and max(host_sizes) > 1:
        return lambda _num_bytes: "two-level"
    return cache(lambda num_bytes: choose_between(record, world_size, num_bytes))


def predicted_s(record: CalibrationRecord, name: str, world_size: int, num_bytes: int, oversubscribed: bool) -> float:
    """How long one run of the plan takes, at least: the largest of three bounds.

    1. The longest chain of the plan, steps x latency + bytes / bandwidth. A rank sends one message after the
       other, each takes one latency, and its copies and sums take their time.
    2. All that ranks read and write together, at the rate of all cores.
    3. Where ranks share cores: the second, a change of process for every turn of a rank (a turn ends where it has to
       wait), and the sending of every message.

    Bytes move at the rate of messages of the operation's size, read and written: in a cache faster than in memory.
    """
    figures = record.transports["shm"]
    latency_s = figures.shared_core_latency_s if oversubscribed else figures.spinning_latency_s
    timing = _Timing(_plans(name, world_size), num_bytes // ELEMENT_BYTES, latency_s, figures)
    timing.run()
    # The rate of one rank is that of one core; all cores together are at most so many times as fast.
    together_s = timing.work_s * record.copy_bandwidth_one_bytes_per_s / record.copy_bandwidth_all_bytes_per_s
    if oversubscribed:
        switching_s = timing.num_turns * latency_s + timing.num_messages * figures.spinning_latency_s
        together_s += switching_s / record.cores
    return max(together_s, *(rank.clock for rank in timing.ranks))


def predicted_between_s(record: CalibrationRecord, name: str, world_size: int, num_bytes: int) -> float:
    """How long one run of the plan takes where each rank's link sends and receives at once, a message at a time.

    A message of B bytes takes its sender's link B / W(B) seconds, then one latency until it arrives. Messages of
    several ranks to one go over that one's link one after the other. Sums are made at the rate of memory. Ranks have
    memory and cores of their own. If they share them, all plans move the same bytes in all, except halving-doubling
    if the number of ranks is not a power of two.
    """
    num_elements = num_bytes // ELEMENT_BYTES
    link = record.transports.get("tcp") or NOMINAL.transports["tcp"]  # a record may be of one host alone
    timing = _Links(_plans(name, world_size), num_elements, link, record.transports["shm"])
    timing.run()
    return max(rank.clock for rank in timing.ranks)


def _plans(name: str, world_size: int) -> list[Plan]:
    return [ALL_REDUCES[name](rank, world_size) for rank in range(world_size)]


@dataclass(slots=True)
class _Rank:
    """How far one rank has come in its plan; `clock` counts what its class of dry run says."""

    number: int
    plan: Plan
    clock: float = 0
    position: int = 0
    waits_on: int | None = None
    receives_until_s: float = 0.0


class _DryRun:
    """Runs the plans of all ranks with clocks instead of data: who awaits a message takes over its clock, if larger.

    Sending one takes `message` of its sender's clock.
    """

    def __init__(self, plans: Sequence[Plan], num_elements: int, message: float) -> None:
        self.ranks = [_Rank(number, plan) for number, plan in enumerate(plans)]
        self.num_messages = 0
        self.num_turns = 0
        self._num_elements = num_elements
        self._message = message
        self._arrivals: dict[tuple[int, int], float] = {}  # (receiver, slot)
        self._ready = deque(self.ranks)

    def run(self) -> None:
        """Raises ValueError if the plans deadlock."""
        while self._ready:
            rank = self._ready.popleft()
            self.num_turns += 1
            while self._perform(rank):
                pass
        self._require_end()

    def _require_end(self) -> None:
        stuck = [f"rank {rank.number} for slot {rank.waits_on}" for rank in self.ranks if rank.waits_on is not None]
        if stuck:
            raise ValueError(f"{self.ranks[0].plan.name}: deadlock, waiting: {', '.join(stuck)}")

    def _perform(self, rank: _Rank) -> bool:
        """The next operation; whether there was one, and it is done."""
        rank.waits_on = None
        if rank.position == len(rank.plan.operations):
            return False
        operation = rank.plan.operations[rank.position]
        match operation:
            case Wait(slot=slot):
                if (rank.number, slot) not in self._arrivals:
                    rank.waits_on = slot
                    return False
                rank.clock = max(rank.clock, self._arrivals[rank.number, slot])
            case Notify(peer=peer, slot=slot):
                self._send(rank, peer, slot, 0)
            case Put(peer=peer, slot=slot):
                self._move(rank, operation)
                self._send(rank, peer, slot, self._count(rank, operation.chunk))
            case Reduce() | Combine():
                self._move(rank, operation)
        rank.position += 1
        return True

    def _move(self, rank: _Rank, operation: Put | Reduce | Combine) -> None:
        """Count the rank's own reads and writes."""
        raise NotImplementedError

    def _send(self, rank: _Rank, peer: int, slot: int, _num_elements: int) -> None:
        rank.clock += self._message
        self._arrive(peer, slot, rank.clock)

    def _arrive(self, peer: int, slot: int, clock: float) -> None:
        self.num_messages += 1
        self._arrivals[peer, slot] = clock
        if self.ranks[peer].waits_on == slot:
            self._wake(self.ranks[peer])

    def _wake(self, rank: _Rank) -> None:
        self._ready.append(rank)

    def _count(self, rank: _Rank, chunk: int) -> int:
        start, stop = rank.plan.chunk_bounds(chunk, self._num_elements)
        return stop - start


class _Counting(_DryRun):
    """A clock counts messages."""

    def __init__(self, plans: Sequence[Plan], num_elements: int, size_of: Callable[[int], int]) -> None:
        super().__init__(plans, num_elements, message=1)
        self.bytes_sent = [0] * len(plans)
        self._size_of = size_of

    def _move(self, rank: _Rank, operation: Put | Reduce | Combine) -> None:
        match operation:
            case Put():
                self.bytes_sent[rank.number] += put_bytes(rank.plan, operation, self._num_elements, self._size_of)
            case Combine(chunk=chunk, into=into):
                num_others = sum(peer != rank.number for peer in into)
                self.bytes_sent[rank.number] += num_others * self._size_of(self._count(rank, chunk))


class _Timing(_DryRun):
    """A clock counts seconds in shared memory, where a put is two passes at the measured bandwidth."""

    def __init__(self, plans: Sequence[Plan], num_elements: int, latency_s: float, figures: TransportFigures) -> None:
        super().__init__(plans, num_elements, latency_s)
        self.work_s = 0.0
        self._figures = figures

    def _move(self, rank: _Rank, operation: Put | Reduce | Combine) -> None:
        match operation:
            case Put():
                num_passes = 2
            case Reduce(stagings=stagings):
                num_passes = len(stagings) + 2
            case Combine(ranks=ranks, into=into):
                num_passes = len(ranks) + len(into)
        chunk_bytes = self._count(rank, operation.chunk) * ELEMENT_BYTES
        seconds = num_passes * chunk_bytes / (2 * self._figures.bandwidth_at(chunk_bytes)) if chunk_bytes else 0.0
        rank.clock += seconds
        self.work_s += seconds


class _Links(_DryRun):
    """A clock counts seconds between hosts; operations run in the order of time, as links are shared."""

    def __init__(
        self, plans: Sequence[Plan], num_elements: int, link: TransportFigures, memory: TransportFigures
    ) -> None:
        super().__init__(plans, num_elements, link.sleeping_latency_s)
        self._link = link
        self._memory = memory
        self._agenda = [(0.0, number) for number in range(len(plans))]

    def run(self) -> None:
        while self._agenda:
            rank = self.ranks[heapq.heappop(self._agenda)[1]]
            if self._perform(rank):
                self._wake(rank)
        self._require_end()

    def _wake(self, rank: _Rank) -> None:
        heapq.heappush(self._agenda, (rank.clock, rank.number))

    def _send(self, rank: _Rank, peer: int, slot: int, num_elements: int) -> None:
        receiver, on_link_s = self.ranks[peer], _seconds(num_elements * ELEMENT_BYTES, self._link)
        sent_s = rank.clock + on_link_s
        rank.clock = sent_s + self._message
        receiver.receives_until_s = max(sent_s, receiver.receives_until_s + on_link_s)
        self._arrive(peer, slot, receiver.receives_until_s + self._message)

    def _move(self, rank: _Rank, operation: Put | Reduce | Combine) -> None:
        match operation:
            case Reduce(chunk=chunk, stagings=stagings):
                size = self._count(rank, chunk) * ELEMENT_BYTES
                rank.clock += (len(stagings) + 2) * _seconds(size, self._memory) / 2
            case Combine():
                raise AssertionError(f"plan {rank.plan.name!r} needs memory that all ranks map")


def _seconds(num_bytes: int, figures: TransportFigures) -> float:
    return num_bytes / figures.bandwidth_at(num_bytes) if num_bytes else 0.0
