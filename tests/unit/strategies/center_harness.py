"""Workers that share a center, each at its own speed, and the order in which the center took their updates."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from samovar.box.base import Center, Push, Versions
from samovar.box.board import Member
from samovar.box.mapped import MappedCenter, create_center
from samovar.box.window_center import WindowCenter
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import dissemination_barrier
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.core.stateful import State
from samovar.strategies.base import Buffers, CenterSeat
from samovar.strategies.catalog import build_strategy
from samovar.strategies.center_steps import CenterSteps
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.transports.base import Array, Region, Transport
from samovar.transports.sim.world import SimConfig, simulate
from tests.threads import on_threads
from tests.unit.strategies.harness import LAYOUT, NUM_ELEMENTS, RATE, Gradient, in_time

CHUNK_ELEMENTS = 24  # the last chunk is smaller
MAX_DELAY_S = 1e-3
AT_THE_END = -1
READS = ("read", "velocity")
START = np.random.default_rng(99).standard_normal(NUM_ELEMENTS).astype(np.float32)


@dataclass(frozen=True)
class Event:
    """A worker read a chunk, or its update came there, when it had made `num_steps` steps.

    `seen` and `made` name what the chunk held before and after: a version, or where there are no locks its bytes.
    """

    kind: str
    chunk: int
    rank: int
    num_steps: int
    seen: Any
    made: Any


@dataclass(frozen=True)
class Worked:
    """The end of a worker; `trace` holds its weights after every step."""

    weights: Array
    trace: list[Array]
    events: list[Event]
    strategy: CenterSteps
    center: Array
    state: State


@dataclass(frozen=True)
class Work:
    """The steps of every worker, from `start`, or from its state in `resumed`.

    `seed` draws the pauses between steps and the delays of messages, where they are simulated.
    """

    config: StrategyConfig
    gradient: Gradient
    num_steps: int
    seed: int = 0
    start: Array = field(default_factory=START.copy)
    center: Callable[..., Center] = WindowCenter
    longest_step_s: float = 0.1  # an exchange takes a few tens of messages
    first_step: int = 0
    resumed: tuple["Worked", ...] = ()


class RecordingCenter:
    """A center that notes what its member did with it, by the versions that it tells."""

    def __init__(self, center: Any, rank: int, events: list[Event]) -> None:
        self._center = center
        self._rank = rank
        self._events = events

    def __getattr__(self, name: str) -> object:
        return getattr(self._center, name)

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        return self._note("read", self._center.read(destination, deadline))

    def read_velocity(self, destination: Array, deadline: Deadline) -> Versions:
        return self._note("velocity", self._center.read_velocity(destination, deadline))

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        return self._note("update", self._center.accumulate(sequence, difference, deadline, momentum))

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        return self._note("exchange", self._center.exchange(sequence, weights, moving_rate, deadline))

    def accumulate_in_background(self, sequence: int, difference: Array) -> Push:
        return RecordedPush(self._center.accumulate_in_background(sequence, difference), self._note)

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> Push:
        """Noted where it is awaited, with the steps that had been made when it was sent."""
        sent_after = self._center.num_steps
        push = self._center.exchange_in_background(sequence, weights, moving_rate)
        return RecordedPush(push, lambda _kind, versions: self._note("exchange", versions, sent_after))

    def _note(self, kind: str, versions: Versions, num_steps: int | None = None) -> Versions:
        num_steps = self._center.num_steps if num_steps is None else num_steps
        for chunk, version in enumerate(versions.tolist()):
            seen = version if kind in READS else version - 1
            self._events.append(Event(kind, chunk, self._rank, num_steps, seen, version))
        return versions


class RecordedPush:
    """A push that is noted where it is awaited."""

    def __init__(self, push: Push, note: Callable[[str, Versions], Versions]) -> None:
        self._push = push
        self._note = note

    @property
    def versions(self) -> Versions:
        return self._push.versions

    def wait(self, deadline: Deadline) -> None:
        self._push.wait(deadline)
        self._note("update", self._push.versions)


def in_order(workers: list[Worked]) -> list[Event]:
    """Each chunk's updates as it took them, each read after the update that it saw, all else in a worker's order."""
    events = [event for worker in workers for event in worker.events]
    return sorted(events, key=lambda event: (event.chunk, event.made, event.kind in READS))


def work(job: Work, transport: Transport, pause: Callable[[float], None], deadline: Callable[[], Deadline]) -> Worked:
    """One worker's part."""
    rank, world_size = transport.group.rank, transport.group.world_size
    window = transport.open_window("model", 2 * NUM_ELEMENTS * 4, 0)
    weights, gradients = (Region.of(window, half * NUM_ELEMENTS * 4, NUM_ELEMENTS, np.float32) for half in range(2))
    collectives = PlannedCollectives(transport, lambda _num_bytes: "tree")
    barrier = collectives.planned("barrier", dissemination_barrier(rank, world_size), weights.part(0, 0))
    events: list[Event] = []
    center = opened(job, transport)
    recording: Any = RecordingCenter(center, rank, events)
    seat = CenterSeat(recording, rank == 0)
    weights.array[:] = job.resumed[rank].weights if job.resumed else job.start
    buffers = Buffers(weights, gradients)
    strategy: Any = build_strategy(job.config, collectives, LAYOUT.buckets(None), buffers, deadline, seat)
    if job.resumed:
        strategy.load_state_dict(job.resumed[rank].state)
    barrier.run(deadline())
    trace = list(take_steps(job, rank, strategy, buffers, center, pause))
    strategy.drain()
    barrier.run(deadline())
    center.num_steps = AT_THE_END
    worked = Worked(weights.array.copy(), trace, events, strategy, strategy.center().copy(), strategy.state_dict())
    center.close()
    return worked


def opened(job: Work, transport: Transport) -> Any:
    """The center that this worker sees; it carries the number of its steps, for those who note events."""
    config = resolved(job.config, transport.group.world_size)
    settings = {"with_velocity": config.traits.has_velocity, "with_locks": config.traits.has_locks}
    center: Any = job.center(transport, NUM_ELEMENTS, **settings, chunk_elements=CHUNK_ELEMENTS)
    center.num_steps = 0
    return center


def take_steps(
    job: Work, rank: int, strategy: CenterSteps, buffers: Buffers, center: Any, pause: Callable[[float], None]
) -> Iterator[Array]:
    """The hooks in the order in which a step calls them; gives the weights after each step."""
    weights, gradients = buffers.weights.array, buffers.gradients.array
    pauses = Random(f"{job.seed} {rank}")

    def update(_bucket: Bucket, scale: float) -> None:
        weights[:] -= np.float32(RATE) * (np.float32(scale) * gradients)

    for step in range(job.first_step, job.num_steps):
        strategy.begin_step(step)
        pause(job.longest_step_s * pauses.random() ** 3)
        gradients[:] = job.gradient(rank, step, weights)
        for bucket in LAYOUT.buckets(None):
            strategy.gradient_final(bucket)
        center.num_steps = step + 1
        strategy.finish_step(step, update)
        yield weights.copy()


def on_box(job: Work, world_size: int) -> list[Worked]:
    """Every worker a thread, at the native center."""
    config = resolved(job.config, world_size)
    settings = {"with_velocity": config.traits.has_velocity, "with_locks": config.traits.has_locks}
    descriptor = create_center(NUM_ELEMENTS, world_size, **settings, chunk_elements=CHUNK_ELEMENTS)

    def attached(transport: Transport, *_sizes: int, **_settings: Any) -> MappedCenter:
        return MappedCenter(descriptor, Member(transport.group.rank, 1))

    try:
        return on_shm(replace(job, center=attached), world_size)
    finally:
        os.close(descriptor)


def on_shm(job: Work, world_size: int) -> list[Worked]:
    """Every worker a thread on one segment."""
    return on_threads(world_size, lambda transport: work(job, transport, lambda _seconds: None, in_time))


def on_sim(job: Work, world_size: int) -> list[Worked]:
    """Every worker simulated, its messages and steps delayed as the seed says."""

    def program(transport) -> Worked:
        return work(job, transport, transport.sleep, lambda: transport.deadline(math.inf))

    config = SimConfig(job.seed, max_delay_s=MAX_DELAY_S, check=job.config.traits.has_locks)
    return simulate(program, world_size, config).results
