"""Whole runs of any strategy on simulated machines, under faults of every kind.

`safety`: faults at any time, and what is wrong is never taken for right. Workers in step that cannot continue end with
an error in time, and a second run from the last snapshot ends with the bits of a run without faults.
`liveness`: nothing that a run cannot survive. All workers that live must train to the end.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from random import Random
from typing import Any

import numpy as np

from samovar.collectives.engine import PlannedCollectives
from samovar.core.errors import DeadlineExceeded, NotFinite, SamovarError
from samovar.core.layout import Bucket, all_finite
from samovar.strategies.base import Buffers, Strategy, kind_of
from samovar.strategies.catalog import STRATEGIES, build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.transports.base import Array, Region
from samovar.transports.sim.window import SimWindow
from samovar.transports.sim.world import SimConfig, SimRun, SimTransport, simulate
from tests.sim.harness import MACHINES, MAX_DELAYS_S
from tests.sim.script import ALL, Died, Limits, RunFaults, acting_window
from tests.sim.steps import LAYOUT
from tests.unit.strategies import references

SIZE = LAYOUT.num_elements
WORLD_SIZE, NUM_STEPS, SNAPSHOT_EVERY = 8, 60, 10
STEP_S, WAIT_S, RATE = 1e-4, 0.05, np.float32(0.05)
MOST_ACTIONS = 300  # of a rank in a run, among which faults are drawn
SAFETY, LIVENESS = "safety", "liveness"
COLLECTIVES = ("tree", "ring", "kary-tree", "halving-doubling", "direct")
TOLERANCE = 1e-4


class WrongRun(AssertionError):
    """Weights differ from those of a run without faults, or a run did not end as it must."""


@dataclass(frozen=True)
class RunCase:
    """A case drawn from a seed, like its settings, machine and faults; `only` names the faults that are left."""

    seed: int
    strategy: str
    collective: str
    world_size: int
    num_steps: int
    mode: str
    only: str = ALL

    @classmethod
    def of_seed(cls, seed: int) -> "RunCase":
        draw = Random(seed)
        name, collective = draw.choice(STRATEGIES), draw.choice(COLLECTIVES)
        return cls(seed, name, collective, WORLD_SIZE, NUM_STEPS, draw.choice((SAFETY, LIVENESS)))

    @property
    def settings(self) -> StrategyConfig:
        """Periods divide the number of steps, so that the last step exchanges."""
        draw = Random(self.seed + 2)
        names = {setting.name: setting for setting in kind_of(self.strategy).traits.settings}
        own: dict[str, Any] = {}
        if "sync_period_steps" in names:
            own["sync_period_steps"] = draw.choice((1, 2, 4, 5))
        if self.strategy == "sync":
            own["overlap"] = draw.choice(("none", "backward", "full"))
            own["bucket_size_bytes"] = None if own["overlap"] == "none" else 128
        elif "overlap" in names:
            own["overlap"] = draw.choice(names["overlap"].choices)
        if "read_first" in names:
            own["read_first"] = draw.random() < 0.5
        if "max_staleness_steps" in names:
            own["max_staleness_steps"] = draw.choice((None, None, 3))
        if "worker_rate" in names and draw.random() < 0.5:
            own |= {"moving_rate": 0.0625, "worker_rate": draw.choice((0.25, 0.75))}  # a given rate does not change
        return StrategyConfig(self.strategy, self.collective, **own)

    @property
    def is_alone(self) -> bool:
        """Whether each worker trains at its own speed, whatever becomes of the others."""
        traits = kind_of(self.strategy).traits
        return traits.is_async and not traits.in_groups

    def config(self) -> SimConfig:
        draw = Random(self.seed + 1)
        machine, max_delay_s = draw.choice(MACHINES), draw.choice(MAX_DELAYS_S)
        return SimConfig(self.seed, machine, max_delay_s, check=self.seed % 8 == 0)

    def limits(self) -> Limits:
        is_fatal, has_center = self.mode == SAFETY, kind_of(self.strategy).traits.has_center
        return Limits(
            self.world_size,
            self.num_steps,
            MOST_ACTIONS,
            STEP_S,
            WAIT_S,
            dies=is_fatal or self.is_alone,
            fatal=is_fatal,
            sends=not self.is_alone,
            not_finite=is_fatal or (has_center and self.is_alone),
        )


@dataclass
class Ended:
    """The weights that each step of a worker met, the last ones and the center; or the error with which it ended."""

    trace: list[bytes] = field(default_factory=list)
    last: bytes = b""
    center: bytes = b""
    error: Exception | None = None


class Snapshots:
    """Those that are whole: a part of each rank's, of one step. A full disk leaves a part out."""

    def __init__(self, world_size: int, full_disks: set[int]) -> None:
        self._world_size, self._full_disks = world_size, full_disks
        self._parts: dict[int, dict[int, tuple[Array, Any]]] = {}

    def save(self, rank: int, step: int, weights: Array, state: Any) -> None:
        if not all_finite(weights):
            raise NotFinite(f"rank {rank}: weights of step {step} are not finite")
        if rank or step // SNAPSHOT_EVERY not in self._full_disks:
            self._parts.setdefault(step, {})[rank] = weights.copy(), state

    def newest(self) -> tuple[int, dict[int, tuple[Array, Any]]]:
        """The step after which it was made, and each rank's part; 0 and nothing, if there is none."""
        whole = [step for step, parts in self._parts.items() if len(parts) == self._world_size]
        return (max(whole), self._parts[max(whole)]) if whole else (0, {})


@dataclass(frozen=True)
class Parts:
    """The parts of a case; a planted mistake replaces one. `center` is a worker's `center_runs.LedgerCenter`."""

    build: Callable[..., Any] = build_strategy
    window: type[SimWindow] = SimWindow
    snapshots: type[Snapshots] = Snapshots
    center: Any = None


SOUND = Parts()


@dataclass(frozen=True)
class Job:
    """Steps from `first_step` on, of ranks that begin with `parts` of a snapshot, or with the first weights."""

    case: RunCase
    settings: StrategyConfig
    parts: Parts
    faults: RunFaults
    snapshots: Snapshots
    first_step: int = 0
    begun: dict[int, tuple[Array, Any]] = field(default_factory=dict)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return LAYOUT.buckets(self.settings.bucket_size_bytes)


def run_in_step(case: RunCase, parts: Parts, faults: RunFaults) -> SimRun[Ended]:
    """A run under faults. If it did not reach its end, another from the last snapshot, without them."""
    snapshots = parts.snapshots(case.world_size, faults.full_disks)
    job = Job(case, case.settings, parts, faults, snapshots)
    run = played(job)
    wanted = quiet(replace(case, seed=0, mode=LIVENESS, only=""), case.settings)
    check_traces(case, run.results, wanted)
    if case.mode == LIVENESS:
        require_ended(run.results)
    if any(ended.error for ended in run.results):
        check_errors(case, run.results)
        first_step, begun = snapshots.newest()
        again = played(replace(job, faults=RunFaults(), first_step=first_step, begun=begun))
        require_ended(again.results)
        check_traces(case, again.results, wanted, first_step)
        events = hashlib.sha256((run.event_hash + again.event_hash).encode()).hexdigest()
        run = replace(run, event_hash=events)
    return run


def played(job: Job) -> SimRun[Ended]:
    case, faults = job.case, job.faults
    held_s = faults.held_s if faults.cuts or faults.late else None
    window = acting_window(faults.act, job.parts.window)
    return simulate(partial(work, job), case.world_size, replace(case.config(), held_s=held_s), window)


def work(job: Job, transport: SimTransport) -> Ended:
    """One worker of a strategy in step. Its own death, and errors that it may end with, are how it ended."""
    ended = Ended()
    try:
        train(job, transport, ended)
    except (Died, SamovarError) as error:
        ended.error = error
        transport.die()
    return ended


def train(job: Job, transport: SimTransport, ended: Ended) -> None:
    rank, case = transport.group.rank, job.case
    weights, gradients = opened(transport)
    strategy = built(job, transport, weights, gradients)
    pace = Pace(job, transport, weights, gradients)
    for step in range(job.first_step, case.num_steps):
        ended.trace.append(pace.take_step(strategy, step))
        if (step + 1) % SNAPSHOT_EVERY == 0:
            state = strategy.state_dict()
            evaluated(strategy, weights.array, rank)
            job.snapshots.save(rank, step + 1, weights.array, state)
    ended.center = evaluated(strategy, weights.array, rank).tobytes()
    ended.last = weights.array.tobytes()


def evaluated(strategy: Strategy, weights: Array, rank: int) -> Array:
    """The weights to save and to test. Raises NotFinite, as `samovar.training.finite` does before it shows them."""
    strategy.drain()
    center = strategy.center()
    shown = weights if center is None else center
    if not all_finite(shown):
        raise NotFinite(f"rank {rank}: the evaluated weights are not finite")
    return shown


def opened(transport: SimTransport) -> tuple[Region, Region]:
    """Weights and gradients in one window."""
    window = transport.open_window("model", 2 * SIZE * 4, 0)
    weights, gradients = (Region.of(window, half * SIZE * 4, SIZE, np.float32) for half in range(2))
    return weights, gradients


def built(job: Job, transport: SimTransport, weights: Region, gradients: Region, seat: Any = None) -> Any:
    """The strategy with first weights, or those of a snapshot."""
    rank, case = transport.group.rank, job.case
    collectives = PlannedCollectives(transport, lambda _num_bytes: case.collective)
    buffers, deadline = Buffers(weights, gradients), partial(transport.deadline, WAIT_S)
    begun = job.begun.get(rank)
    weights.array[:] = start() if begun is None else begun[0]
    strategy = job.parts.build(job.settings, collectives, job.buckets, buffers, deadline, seat)
    if begun is not None:
        strategy.load_state_dict(begun[1])
    return strategy


class Pace:
    """A worker's steps in virtual time, with the hooks in the order in which the training loop calls them."""

    def __init__(self, job: Job, transport: SimTransport, weights: Region, gradients: Region) -> None:
        self._job, self._transport = job, transport
        self._weights, self._gradients = weights.array, gradients.array
        self._rank, self._buckets = transport.group.rank, job.buckets
        self._pauses = Random(job.case.seed * job.case.world_size + self._rank)
        self.moved = np.zeros(SIZE)

    def take_step(self, strategy: Strategy, step: int) -> bytes:
        """The weights that it met. Raises NotFinite if it leaves bad ones, and no center keeps such ones out."""
        transport, faults = self._transport, self._job.faults
        if stopped_s := faults.act(self._rank):
            transport.sleep(stopped_s)
        strategy.begin_step(step)
        for bucket in reversed(self._buckets):
            strategy.before_forward(bucket)
        met = self._weights.tobytes()
        transport.compute(STEP_S * faults.slow.get(self._rank, 1.0) * (0.5 + self._pauses.random()))
        transport.note(self._weights, writes=False, verb="backward")
        gradients = gradient(self._rank, step, self._weights)
        if (self._rank, step) in faults.broken:
            gradients[3] = np.nan
        for bucket in self._buckets:
            part = slice(bucket.start, bucket.stop)
            transport.note(self._gradients[part], writes=True, verb="backward")
            self._gradients[part] = gradients[part]
            strategy.gradient_final(bucket)
        strategy.finish_step(step, self._update)
        if not (strategy.traits.has_center or all_finite(self._weights)):
            raise NotFinite(f"rank {self._rank}: the weights are not finite after step {step}")
        return met

    def _update(self, bucket: Bucket, scale: float) -> None:
        part = slice(bucket.start, bucket.stop)
        gradients, weights, moved = self._gradients[part], self._weights[part], self.moved[part]
        self._transport.note(gradients, writes=False, verb="update")
        self._transport.note(weights, writes=True, verb="update")
        step = RATE * (np.float32(scale) * gradients)
        weights -= step
        moved -= step


def check_traces(case: RunCase, workers: list[Ended], wanted: list[Ended], first_step: int = 0) -> None:
    """Each step met the bits of a run without faults, and no worker is exchanges ahead of others."""
    for rank, (ended, right) in enumerate(zip(workers, wanted, strict=True)):
        for number, weights in enumerate(ended.trace):
            if weights != right.trace[first_step + number]:
                raise WrongRun(f"rank {rank} meets other weights in step {first_step + number}")
        if not ended.error and (ended.last, ended.center) != (right.last, right.center):
            raise WrongRun(f"rank {rank} ends with other weights or another center")
    steps = [len(ended.trace) for ended in workers]
    ahead = 2 * (case.settings.sync_period_steps or 1)
    if max(steps) - min(steps) > ahead:
        raise WrongRun(f"ranks made {steps} steps: some continued without the others")


def check_errors(case: RunCase, workers: list[Ended]) -> None:
    """An error says which rank and what; a worker ends with one only if something was wrong."""
    errors = [ended.error for ended in workers if ended.error is not None]
    strangers = [error for error in errors if not isinstance(error, (Died, DeadlineExceeded, NotFinite))]
    if strangers:
        raise strangers[0]
    if any(not {"rank", "member"} & set(str(error).split()) for error in errors if not isinstance(error, Died)):
        raise WrongRun(f"an error of {case.strategy} names nobody: {errors}")


def require_ended(workers: list[Ended]) -> None:
    for rank, ended in enumerate(workers):
        if ended.error is not None:
            raise WrongRun(f"rank {rank} did not train to the end: {ended.error!r}") from ended.error


@lru_cache(maxsize=256)
def quiet(case: RunCase, settings: StrategyConfig) -> list[Ended]:
    """The run without faults, which follows the rule of its strategy in float64."""
    ended = played(Job(case, settings, SOUND, RunFaults(), Snapshots(case.world_size, set()))).results
    require_ended(ended)
    require_rule(case, resolved(settings, case.world_size), ended)
    return ended


def require_rule(case: RunCase, settings: StrategyConfig, workers: list[Ended]) -> None:
    """For strategies whose rule is a plain loop; the others have such tests of their own."""
    loops: dict[str, Callable[..., references.Traces]] = {
        "sync": references.sync,
        "local-sgd": partial(references.local_sgd, period=settings.sync_period_steps),
        "sync-easgd": partial(
            references.sync_easgd,
            period=settings.sync_period_steps,
            moving_rate=settings.moving_rate,
            own=settings.worker_rate or settings.moving_rate,
        ),
    }
    if case.strategy not in loops:
        return

    def gradients(step: int, x: np.ndarray) -> np.ndarray:
        return np.stack([gradient(rank, step, x[rank]) for rank in range(case.world_size)])

    x = np.tile(start().astype(float), (case.world_size, 1))
    weights, _ = loops[case.strategy](x, gradients, case.num_steps, float(RATE))
    for rank, ended in enumerate(workers):
        last = np.frombuffer(ended.last, np.float32)
        if np.abs(last - weights[-1][rank]).max() > TOLERANCE:
            raise WrongRun(f"rank {rank} without faults: not the rule of {case.strategy}")


@cache
def start() -> Array:
    return np.random.default_rng(99).standard_normal(SIZE).astype(np.float32)


@cache
def _problem(rank: int, step: int) -> tuple[Array, Array]:
    """Curvatures of a rank's loss, and where its batch of this step has its minimum."""
    curvatures = np.random.default_rng(rank).uniform(0.2, 2.0, SIZE).astype(np.float32)
    return curvatures, np.random.default_rng([rank, step]).standard_normal(SIZE).astype(np.float32)


def gradient(rank: int, step: int, weights: np.ndarray) -> np.ndarray:
    curvatures, minimum = _problem(rank, step)
    return (curvatures * (weights - minimum)).astype(weights.dtype, copy=False)
