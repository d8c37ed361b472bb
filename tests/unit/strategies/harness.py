"""Ranks that train a small problem with a strategy: as threads over shared memory, or simulated."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.execute import Channel
from samovar.collectives.plan import Plan
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket, Layout, ParameterSpec
from samovar.core.stateful import State
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Region, Transport
from samovar.transports.sim.world import SimConfig, SimTransport, simulate
from tests.threads import on_threads

Array = npt.NDArray[np.float32]
# gradient(rank, step, x) of a rank's weights, of the dtype of x
Gradient = Callable[[int, int, npt.NDArray[np.floating]], npt.NDArray[np.floating]]

LAYOUT = Layout.pack([ParameterSpec("a", (5, 7)), ParameterSpec("b", (1,)), ParameterSpec("c", (40,))])
NUM_ELEMENTS = LAYOUT.num_elements
RATE = 0.125
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Job:
    """Every rank's steps [first_step, num_steps) from `start`, or from its state in `resumed`."""

    config: StrategyConfig
    gradient: Gradient
    num_steps: int
    start: Array
    first_step: int = 0
    resumed: tuple["Left", ...] = ()
    drain_each_step: bool = False
    frozen: tuple[slice, ...] = ()


@dataclass(frozen=True)
class Left:
    """A rank's weights and center at the end; `trace` holds its weights after every step, `centers` the center."""

    weights: Array
    center: Array | None
    state: State
    trace: list[Array] = field(default_factory=list)
    centers: list[Array | None] = field(default_factory=list)


class PlainCollectives(PlannedCollectives):
    """Runs plans in Python, where `start` does nothing and `finish` all of it."""

    def planned(self, name: str, plan: Plan, buffer: Region) -> Channel:
        return Channel(name, plan, self.transport, buffer)


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


def train(
    job: Job,
    transport: Transport,
    engine: type[PlannedCollectives] = PlannedCollectives,
    deadline: Callable[[], Deadline] = in_time,
) -> Left:
    """One rank's part of the job, with the hooks in the order in which the worker's step calls them."""
    rank = transport.group.rank
    window = transport.open_window("model", 2 * NUM_ELEMENTS * 4, 0)
    weights = Region.of(window, 0, NUM_ELEMENTS, np.float32)
    gradients = Region.of(window, NUM_ELEMENTS * 4, NUM_ELEMENTS, np.float32)
    buckets = LAYOUT.buckets(job.config.bucket_size_bytes)
    collectives = engine(transport, lambda _num_bytes: job.config.collective)
    weights.array[:] = job.resumed[rank].weights if job.resumed else job.start
    buffers = Buffers(weights, gradients, frozen=job.frozen)
    strategy = build_strategy(job.config, collectives, buckets, buffers, deadline)
    if job.resumed:
        strategy.load_state_dict(job.resumed[rank].state)
    met, centers = [], []
    for step in range(job.first_step, job.num_steps):
        met.append(take_step(job, strategy, step, buckets, weights.array, gradients.array, rank))
        if job.drain_each_step:
            strategy.drain()
            centers.append(copied(strategy.center()))
    state = strategy.state_dict()
    strategy.drain()
    trace = [*met[1:], weights.array.copy()]
    return Left(weights.array.copy(), copied(strategy.center()), state, trace, centers)


def take_step(
    job: Job,
    strategy: Strategy,
    step: int,
    buckets: tuple[Bucket, ...],
    weights: Array,
    gradients: Array,
    rank: int,
) -> Array:
    """The weights that the step's forward pass met, each bucket's when it was its turn."""

    def update(bucket: Bucket, scale: float) -> None:
        part = slice(bucket.start, bucket.stop)
        weights[part] -= np.float32(RATE) * (np.float32(scale) * gradients[part])

    strategy.begin_step(step)
    met = np.zeros_like(weights)
    for bucket in reversed(buckets):
        strategy.before_forward(bucket)
        met[bucket.start : bucket.stop] = weights[bucket.start : bucket.stop]
    gradients[:] = job.gradient(rank, step, weights)
    for bucket in buckets:
        strategy.gradient_final(bucket)
    strategy.finish_step(step, update)
    return met


def copied(array: Array | None) -> Array | None:
    return None if array is None else array.copy()


def on_shm(job: Job, world_size: int, engine: type[PlannedCollectives] = PlannedCollectives) -> list[Left]:
    """Every rank a thread on one segment."""
    return on_threads(world_size, lambda transport: train(job, transport, engine))


def on_sim(job: Job, world_size: int, seed: int) -> list[Left]:
    """Every rank simulated, messages delayed as the seed says."""

    def program(transport: SimTransport) -> Left:
        return train(job, transport, deadline=lambda: transport.deadline(math.inf))

    return simulate(program, world_size, SimConfig(seed, max_delay_s=1e-3)).results


def same(ones: list[Left], others: list[Left]) -> bool:
    """The same bits of weights, centers and state on every rank, after every step."""
    return [bits(left) for left in ones] == [bits(left) for left in others]


def bits(left: Left) -> list[bytes | None]:
    state = [value.tobytes() if isinstance(value, np.ndarray) else str(value).encode() for value in left.state.values()]
    arrays = [left.weights, left.center, *left.trace]
    return [None if array is None else array.tobytes() for array in arrays] + state


def resume(job: Job, left: list[Left], num_steps: int) -> Job:
    """The job that goes on where `left` ended."""
    return replace(job, first_step=job.num_steps, num_steps=num_steps, resumed=tuple(left))
