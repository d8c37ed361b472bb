"""Workers that share a center on simulated machines: whatever the delays, nothing they learn is lost or doubled.

Weights, gradients and rates are such that float32 rounds nothing: sums are compared to the last bit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np

from samovar.box.base import Center, Push, Versions
from samovar.box.window_center import WindowCenter
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import dissemination_barrier
from samovar.core.clock import Deadline
from samovar.core.layout import Layout, ParameterSpec
from samovar.strategies.base import Buffers, CenterSeat
from samovar.strategies.catalog import build_strategy
from samovar.strategies.center_steps import CenterSteps
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Array, Region
from samovar.transports.sim.world import SimConfig, SimRun, SimTransport, simulate
from tests.sim.harness import MAX_DELAYS_S, config_of, repeated_by

LAYOUT = Layout.pack([ParameterSpec("a", (5, 7)), ParameterSpec("b", (3,)), ParameterSpec("c", (40,))])
SIZE = LAYOUT.num_elements
RATE = np.float32(0.125)
ELASTIC = ("round-robin-easgd", "async-easgd", "async-measgd", "shm-easgd", "hybrid-easgd")
RULES = ("async-sgd", *ELASTIC)
OVERLAPPING = ("async-easgd", "async-measgd")
# Workers, and their exchanges: each exchange may take one bit more, and float32 has 24.
SHAPES = ((1, 8), (2, 4), (3, 3), (4, 3), (6, 2))
CHUNKS = (16, 31, 4096)
LONGEST_STEP_S = 100 * max(MAX_DELAYS_S)


class WrongSum(AssertionError):
    """Workers and center do not hold the start values plus the learned steps."""


class WrongOrder(AssertionError):
    """Updates came in another order than the rule says, or were not all counted."""


@dataclass(frozen=True)
class CenterCase:
    """A case drawn from a seed, like its delays, pauses and machine."""

    seed: int
    rule: str
    world_size: int
    num_exchanges: int
    period: int
    chunk_elements: int
    tries_again: bool
    overlaps: bool = False

    @classmethod
    def of_seed(cls, seed: int, rule: str | None = None) -> "CenterCase":
        draw = Random(seed)
        drawn, shape = draw.choice(RULES), draw.choice(SHAPES)
        period, chunk_elements = draw.choice((1, 2, 3)), draw.choice(CHUNKS)
        tries_again, overlaps = draw.random() < 0.5, draw.random() < 0.5
        return cls(seed, rule or drawn, *shape, period, chunk_elements, tries_again, overlaps)

    @property
    def strategy(self) -> StrategyConfig:
        settings: dict[str, Any] = {} if self.rule == "async-sgd" else {"moving_rate": 0.5}
        draw = Random(self.seed + 2)
        if self.overlaps and self.rule in OVERLAPPING:
            settings["overlap"] = "period"
        if self.rule in ("shm-easgd", "hybrid-easgd"):
            settings |= {"read_first": draw.random() < 0.5, "max_staleness_steps": draw.choice((None, 0, 2))}
        if self.rule == "hybrid-easgd":
            settings["group_size"] = draw.choice([size for size in (1, 2, 3) if self.world_size % size == 0])
        return StrategyConfig(self.rule, sync_period_steps=self.period, **settings)

    def config(self) -> SimConfig:
        return config_of(self.seed)


@dataclass(frozen=True)
class Parts:
    """The parts of a case; a planted mistake replaces one. Without a strategy, the case's rule chooses it."""

    center: Callable[..., Center] = WindowCenter
    strategy: type[CenterSteps] | None = None
    kind: str = "centers"


@dataclass(frozen=True)
class Ending:
    """A worker's weights, what its steps moved, the center in the end, and what that has counted."""

    weights: Array
    moved: Array
    center: Array
    versions: Versions
    num_updates: int


SOUND = Parts()


class Retried:
    """A center whose answers are lost now and then, so that its member makes the same update again."""

    def __init__(self, center: Center, random: Random, tries_again: bool) -> None:
        self._center = center
        self._random = random
        self._tries_again = tries_again

    def __getattr__(self, name: str) -> object:
        return getattr(self._center, name)

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        if self._loses_answer():
            self._center.accumulate(sequence, difference, deadline, momentum)
        return self._center.accumulate(sequence, difference, deadline, momentum)

    def accumulate_in_background(self, sequence: int, difference: Array) -> Push:
        def begin() -> Push:
            return self._center.accumulate_in_background(sequence, difference)

        return PushedAgain(begin) if self._loses_answer() else begin()

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        if self._loses_answer():
            self._center.exchange(sequence, weights, moving_rate, deadline)
        return self._center.exchange(sequence, weights, moving_rate, deadline)

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> Push:
        def begin() -> Push:
            return self._center.exchange_in_background(sequence, weights, moving_rate)

        return PushedAgain(begin) if self._loses_answer() else begin()

    def _loses_answer(self) -> bool:
        return self._tries_again and self._random.random() < 0.5


class PushedAgain:
    """A push whose answer is lost."""

    def __init__(self, begin: Callable[[], Push]) -> None:
        self._push = begin()
        self._begin = begin

    @property
    def versions(self) -> Versions:
        return self._push.versions

    def wait(self, deadline: Deadline) -> None:
        self._push.wait(deadline)
        self._push = self._begin()
        self._push.wait(deadline)


def run_center(case: CenterCase, parts: Parts = SOUND) -> SimRun[Ending]:
    """Raises what is wrong, with a note of the call that repeats it."""
    try:
        run = simulate(partial(work, case, parts), case.world_size, case.config())
        check(case, run.results)
    except Exception as error:
        error.add_note(f"to repeat: {repeated_by(parts.kind, case)}")
        raise
    return run


def work(case: CenterCase, parts: Parts, transport: SimTransport) -> Ending:
    """One worker, with pauses before its steps, some of them long."""
    rank, world_size = transport.group.rank, transport.group.world_size
    window = transport.open_window("model", 2 * SIZE * 4, 0)
    weights, gradients = (Region.of(window, half * SIZE * 4, SIZE, np.float32) for half in range(2))
    collectives = PlannedCollectives(transport, lambda _num_bytes: "tree")
    barrier = collectives.planned("barrier", dissemination_barrier(rank, world_size), weights.part(0, 0))
    center = parts.center(transport, SIZE, chunk_elements=case.chunk_elements)
    random, forever = Random(case.seed * world_size + rank), partial(transport.deadline, math.inf)
    retried: Any = Retried(center, random, case.tries_again)
    seat = CenterSeat(retried, rank == 0)
    weights.array[:] = start()
    buckets = LAYOUT.buckets(None)
    strategy: Any = build_strategy(case.strategy, collectives, buckets, Buffers(weights, gradients), forever, seat)
    strategy.__class__ = parts.strategy or type(strategy)
    barrier.run(forever())
    moved = np.zeros(SIZE, np.float32)

    def update(_bucket, scale: float) -> None:
        step = RATE * (np.float32(scale) * gradients.array)
        weights.array[:] -= step
        moved[:] -= step

    for step in range(case.num_exchanges * case.period):
        strategy.begin_step(step)
        transport.sleep(LONGEST_STEP_S * random.random() ** 3)
        transport.note(gradients.array, writes=True, verb="backward")
        gradients.array[:] = gradient(rank, step)
        for bucket in buckets:
            strategy.gradient_final(bucket)
        strategy.finish_step(step, update)
    strategy.drain()
    barrier.run(forever())
    found = np.zeros(SIZE, np.float32)
    versions = center.read(found, forever())
    return Ending(weights.array.copy(), moved, found, versions, strategy.num_updates)


def check(case: CenterCase, workers: list[Ending]) -> None:
    center, versions = workers[0].center.astype(float), workers[0].versions
    num_updates = sum(worker.num_updates for worker in workers)
    if (versions != num_updates).any():
        raise WrongOrder(f"{num_updates} updates were made, the chunks have counted {versions}")
    group_size = case.strategy.group_size or 1
    leaders = workers[::group_size]
    moved = sum(worker.moved.astype(float) for worker in leaders)
    own = 0.0 if case.rule == "async-sgd" else sum(worker.weights.astype(float) for worker in leaders)
    num_copies = 1 if case.rule == "async-sgd" else len(leaders) + 1
    if (own + center != num_copies * start().astype(float) + moved).any():
        raise WrongSum(f"workers and center: off by {np.abs(own + center - num_copies * start() - moved).max()}")
    for index, worker in enumerate(workers):
        leader = leaders[index // group_size]
        if worker.weights.tobytes() != leader.weights.tobytes():
            raise WrongSum(f"worker {index} has other weights than the first of its group")
        if worker.center.tobytes() != workers[0].center.tobytes():
            raise WrongOrder("the center still changed when all had drained")
    if case.rule == "round-robin-easgd" and center.tobytes() != in_turns(case).tobytes():
        raise WrongOrder("not in the order of ranks")


def in_turns(case: CenterCase) -> Array:
    """The center when workers exchange in the order of ranks."""
    c = start().astype(float)
    x = [c.copy() for _ in range(case.world_size)]
    for step in range(case.num_exchanges * case.period):
        for rank in range(case.world_size):
            x[rank] -= RATE * gradient(rank, step)
            if (step + 1) % case.period == 0:
                difference = 0.5 * (x[rank] - c)
                x[rank], c = x[rank] - difference, c + difference
    return c


@cache
def start() -> Array:
    return np.arange(SIZE, dtype=np.float32) - 40


@cache
def gradient(rank: int, step: int) -> Array:
    """Whole numbers, of which an eighth is one too; of two and of three workers the mean as well."""
    return 48 * np.random.default_rng([rank, step]).integers(-2, 2, SIZE).astype(np.float32)
