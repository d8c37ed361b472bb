"""Plans of an all-reduce on a simulated cluster: what each costs and takes, and which is the fastest."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from samovar.collectives.cost import cost
from samovar.collectives.engine import all_reduce_plan
from samovar.collectives.execute import open_channel
from samovar.collectives.plan import PlanFunction
from samovar.collectives.plans import ALL_REDUCE_NAMES, dissemination_barrier
from samovar.core.machine import MachineModel
from samovar.predict.cluster import Cluster
from samovar.report.profile import BYTES_OF_A_FLOAT
from samovar.strategies.bucketing import ExchangeModel
from samovar.transports.base import Region
from samovar.transports.sim.world import SimTransport, simulated

_IN_A_NODE = ("direct", "halving-doubling", "ring", "kary-tree", "tree")
_BETWEEN_NODES = ("halving-doubling", "kary-tree", "tree", "ring")
TWO_LEVEL = "two-level"
_WORTH_TRYING = 0.9  # a plan with many messages is tried if it may take that part of the time of the best so far
_ELEMENTS_OF_A_WORKER = 64
_MOST_OF_A_RING = 256  # workers; its messages grow with their square, and are compared no further


@dataclass(frozen=True, slots=True)
class PlanCost:
    """One all-reduce: messages on the longest chain, bytes that the busiest rank sends, messages of all, seconds."""

    name: str
    steps: int
    bytes_per_rank: int
    num_messages: int
    seconds: float


class Plans:
    """The plans for a number of workers on a cluster; seconds are simulated, once for each size."""

    def __init__(self, cluster: Cluster, num_workers: int) -> None:
        self._cluster = cluster
        self._num_workers = num_workers
        self._seconds: dict[tuple[str, int], float] = {}
        self._fastest: dict[int, str] = {}

    @property
    def candidates(self) -> tuple[str, ...]:
        """The plans among which `auto` chooses: two levels if several nodes have several workers, as in a job."""
        size = self._cluster.node.workers
        if self._num_workers <= size:
            return _IN_A_NODE
        return (TWO_LEVEL,) if size > 1 else _BETWEEN_NODES

    def fastest(self, num_bytes: int) -> str:
        """The candidate with the least simulated seconds; sizes between two powers of four have the same."""
        size = _rounded(num_bytes)
        if size not in self._fastest:
            best, best_s = self.candidates[0], math.inf
            for name in self.candidates:
                could_be_best = self._least_s(name, size) < _WORTH_TRYING * best_s
                if could_be_best and (taken_s := self.seconds(name, size)) < best_s:
                    best, best_s = name, taken_s
            self._fastest[size] = best
        return self._fastest[size]

    def seconds(self, name: str, num_bytes: int) -> float:
        """Virtual seconds of one all-reduce of float32."""
        key = (name, num_bytes)
        if key not in self._seconds:
            self._seconds[key] = all_reduce_s(self._function(name), self._num_workers, num_bytes, self._cluster.machine)
        return self._seconds[key]

    def exchange_model(self, collective: Callable[[int], str], num_bytes: int, hidden_fraction: float) -> ExchangeModel:
        """A line through two simulated exchanges, a tiny one and one of all bytes, as `--bucket auto` takes it."""
        tiny, num_bytes = BYTES_OF_A_FLOAT * self._num_workers, _rounded(num_bytes)
        latency_s = self.seconds(collective(tiny), tiny)
        added_s = self.seconds(collective(num_bytes), num_bytes) - latency_s
        return ExchangeModel(latency_s, num_bytes / added_s if added_s > 0 else math.inf, hidden_fraction)

    def cost(self, name: str, num_bytes: int) -> PlanCost:
        """Counted from the plan itself, and timed."""
        function, size = self._function(name), self._num_workers
        counted = cost([function(rank, size) for rank in range(size)], num_bytes // BYTES_OF_A_FLOAT)
        seconds = self.seconds(name, num_bytes)
        return PlanCost(name, counted.steps, max(counted.bytes_sent), counted.num_messages, seconds)

    def costs(self, num_bytes: int) -> list[PlanCost]:
        """Of all plans that can run there, the fastest first."""
        size = self._cluster.node.workers
        unfit = {TWO_LEVEL} if size == 1 else set()
        unfit |= {"ring"} if self._num_workers > _MOST_OF_A_RING else set()
        names = [
            name for name in ALL_REDUCE_NAMES if name not in unfit | ({"direct"} if self._num_workers > size else set())
        ]
        return sorted((self.cost(name, num_bytes) for name in names), key=lambda one: one.seconds)

    def _function(self, name: str) -> PlanFunction:
        return partial(all_reduce_plan, name, self._cluster.node.workers)

    def _least_s(self, name: str, num_bytes: int) -> float:
        """Below this no run of the plan comes: a plan with many messages need not be tried if another is faster."""
        if name != "ring":
            return 0.0
        hops, share = 2 * (self._num_workers - 1), num_bytes // self._num_workers
        machine = self._cluster.machine
        link = machine.link if machine.ranks_per_host == 1 else machine.host_link
        return hops * link.message_s(share)


@cache
def plans_for(cluster: Cluster, num_workers: int) -> Plans:
    """The same ones for every question, so no exchange is simulated twice."""
    return Plans(cluster, num_workers)


def all_reduce_s(function: PlanFunction, num_workers: int, num_bytes: int, machine: MachineModel) -> float:
    """Virtual seconds of one run, from the moment at which all ranks begin together."""
    num_elements = max(1, min(num_bytes // BYTES_OF_A_FLOAT, _ELEMENTS_OF_A_WORKER * max(num_workers, 64)))
    magnification = max(num_bytes, 1) / (BYTES_OF_A_FLOAT * num_elements)
    results = simulated(partial(_reduce_once, function, num_elements), num_workers, machine, magnification).results
    return max(end_s for _, end_s in results) - max(start_s for start_s, _ in results)


def _reduce_once(function: PlanFunction, num_elements: int, transport: SimTransport) -> tuple[float, float]:
    rank, world_size = transport.group.rank, transport.group.world_size
    window = transport.open_window("data", num_elements * BYTES_OF_A_FLOAT, 0)
    buffer = Region.of(window, 0, num_elements, np.float32)
    reduce = open_channel("all-reduce", function(rank, world_size), transport, buffer)
    barrier = open_channel("barrier", dissemination_barrier(rank, world_size), transport, buffer)
    barrier.run(transport.deadline(math.inf))
    start_s = transport.now_s
    reduce.run(transport.deadline(math.inf))
    end_s = transport.now_s
    barrier.run(transport.deadline(math.inf))
    return start_s, end_s


def _rounded(num_bytes: int) -> int:
    """Up to a power of four."""
    return 1 << 2 * ((max(1, num_bytes) - 1).bit_length() + 1 >> 1)


def whole_powers(least: int, most: int) -> Sequence[int]:
    """`least`, and its doubles up to `most`, which is the last."""
    found = [least]
    while 2 * found[-1] < most:
        found.append(2 * found[-1])
    return [*found, most] if most > found[-1] else found
