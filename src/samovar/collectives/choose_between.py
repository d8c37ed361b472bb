"""`--collective auto` where messages travel: the plan that a link of each rank's own promises to be fastest."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from samovar.collectives.choose import ELEMENT_BYTES
from samovar.collectives.plan import Combine, Notify, Operation, Plan, Put, Reduce, Wait
from samovar.collectives.plans import ALL_REDUCES
from samovar.core.calibration import CalibrationRecord, TransportFigures

# The order in which equals are preferred.
_CANDIDATES = ("halving-doubling", "ring", "kary-tree", "tree", "server")


def choose_between(record: CalibrationRecord, world_size: int, num_bytes: int, transport: str = "tcp") -> str:
    """The name of the all-reduce with the smallest `predicted_between_s` for a buffer of `num_bytes` of float32.

    A pure function, as `samovar.collectives.choose.choose_all_reduce`. Cost: O(P^2 log P) per plan.
    """
    return min(_CANDIDATES, key=lambda name: predicted_between_s(record, name, world_size, num_bytes, transport))


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
class _Rank:
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
        self.ranks = [_Rank(plan) for plan in plans]
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

    def _perform(self, number: int, rank: _Rank) -> Sequence[int]:
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

    def _send(self, rank: _Rank, peer: int, slot: int, num_bytes: int) -> list[int]:
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

    def _chunk_bytes(self, rank: _Rank, chunk: int) -> int:
        start, stop = rank.plan.chunk_bounds(chunk, self._num_elements)
        return (stop - start) * ELEMENT_BYTES


def _seconds(num_bytes: int, figures: TransportFigures) -> float:
    return num_bytes / figures.bandwidth_at(num_bytes) if num_bytes else 0.0
