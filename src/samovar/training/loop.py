"""The training loop of a rank: steps at a pace, and the reports, tests and snapshots between them by a schedule."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.frontends.caffe.solver import CaffeSolver, solver_config
from samovar.membership.progress_table import WorkerState
from samovar.report.steps import StepDone, StepTimes
from samovar.training.evaluation import TestResult
from samovar.training.step import StepLoss, Worker


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of signals so far: the number of a stop signal (0: none), and a count of snapshots."""

    stop_signal: int = 0
    num_snapshots: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which steps to take, and after which to do what; 0 means never. Steps count from 0.

    At the end of the steps: save, then one forward pass more, then a test, each if asked for. `is_prompt`: report a
    step as soon as it is done, at the price of waiting for the other ranks.
    """

    first_step: int
    num_steps: int
    test_interval: int = 0
    test_at_start: bool = True
    snapshot_interval: int = 0
    save_at_end: bool = True
    forward_at_end: bool = False
    test_at_end: bool = True
    is_prompt: bool = False


@dataclass(frozen=True, slots=True)
class StepMade:
    """One step of this rank: the learning rate was that of `rate_step`."""

    rate_step: int
    loss: StepLoss
    times: StepTimes
    seconds: float


class Observer:
    """An observer of training, which reports nothing. All ranks that have one see the same values, except times."""

    def step_done(self, done: StepDone) -> None:
        """A step is done."""

    def tested(self, steps_done: int, net: int, result: TestResult) -> None:
        """A test pass of test net `net` is over."""

    def forwarded(self, steps_done: int, loss: float) -> None:
        """Only for Caffe's own command: the loss of one more forward pass."""

    def workers_seen(self, states: Sequence[WorkerState]) -> None:
        """At a center: the progress of each worker, before the `step_done` that follows from it."""

    def ended(self) -> None:
        """Training is over."""


@dataclass(slots=True)
class Outcome:
    """The state of a run when its loop ends.

    This process took `num_steps`, in `seconds` without tests and snapshots. `test_outputs` and `test_loss` are those of
    the first test net with the present weights; empty if these were not tested.
    """

    steps_done: int
    stop_signal: int = 0
    train_loss: float = float("nan")
    num_samples: int = 0
    seconds: float = 0.0
    warm_samples: int = 0
    warm_seconds: float = 0.0
    test_outputs: dict[str, float] = field(default_factory=dict)
    test_loss: float | None = None
    num_steps: int = 0

    @property
    def samples_per_second(self) -> float:
        """Global samples per second of stepping; the process's first step, which warms up, is left out."""
        samples, seconds = self.num_samples - self.warm_samples, self.seconds - self.warm_seconds
        return samples / seconds if seconds > 0 else 0.0

    def add(self, done: StepDone) -> None:
        if self.num_steps == 0:
            self.warm_samples, self.warm_seconds = done.num_samples, done.seconds
        self.train_loss = done.loss
        self.num_steps += done.num_steps
        self.num_samples += done.num_samples
        self.seconds += done.seconds


class Duties:
    """The work for a run between its steps: reports, snapshots and tests, each when it is due.

    `evaluate()` gives the result of each test net in turn, `save(steps_done)` writes a snapshot. Before either,
    `settle()` reports all steps so far. Ranks in step all have these duties, and do the same at the same steps. Of
    asynchronous ranks one has them for all.
    """

    settle: Callable[[], None]

    def __init__(
        self,
        schedule: Schedule,
        evaluate: Callable[[], Iterator[TestResult]],
        save: Callable[[int], None],
        observer: Observer,
    ) -> None:
        self.outcome = Outcome(schedule.first_step)
        self.settle = lambda: None  # all steps are reported at once
        self._schedule = schedule
        self._evaluate = evaluate
        self._save = save
        self._observer = observer
        self._snapshots_made = 0
        self._saved_at: int | None = None

    def reached(self, steps_done: int) -> None:
        """Note the run's steps; earlier tests and snapshots no longer count."""
        self.outcome.steps_done = steps_done
        self.outcome.test_outputs, self.outcome.test_loss = {}, None
        self._saved_at = None

    def tell(self, done: StepDone) -> None:
        self.outcome.add(done)
        self._observer.step_done(done)

    def act(self, before: int, num_snapshots: int, *, leads: bool = True, tests: bool = True) -> None:
        """Save and test if that became due since `before` steps. Without `leads`, save only on request."""
        now, schedule = self.outcome.steps_done, self._schedule
        if num_snapshots > self._snapshots_made or (leads and _passed(schedule.snapshot_interval, before, now)):
            self._snapshots_made = max(num_snapshots, self._snapshots_made)
            self._save_once()
        if leads and tests and now < schedule.num_steps and _passed(schedule.test_interval, before, now):
            self.test()

    def test_at_start(self) -> None:
        if self._schedule.test_at_start:
            self.test()

    def test(self) -> None:
        self.settle()
        for net, result in enumerate(self._evaluate()):
            if net == 0:
                self.outcome.test_outputs, self.outcome.test_loss = result.outputs, result.loss
            self._observer.tested(self.outcome.steps_done, net, result)

    def finish(self, stop_signal: int, forward: Callable[[], float] | None = None) -> Outcome:
        """End the run: save, then show the loss of one more forward pass and test, unless a signal stopped it."""
        self.outcome.stop_signal = stop_signal
        if self._schedule.save_at_end:
            self._save_once()
        if not stop_signal:
            if self._schedule.forward_at_end and forward is not None:
                self._observer.forwarded(self.outcome.steps_done, forward())
            if self._schedule.test_at_end:
                self.test()
        self._observer.ended()
        return self.outcome

    def _save_once(self) -> None:
        if self._saved_at != self.outcome.steps_done:
            self._saved_at = self.outcome.steps_done
            self.settle()
            self._save(self.outcome.steps_done)


class Pace(Protocol):
    """When a rank steps, and which ranks it waits for: `samovar.training.in_step`, `samovar.training.async_pace`."""

    @property
    def steps_done(self) -> int:
        """The steps that this rank has done."""

    def begin(self) -> None:
        """Wait until this rank may step."""

    def next_rate_step(self) -> int | None:
        """The step whose learning rate the next update takes; None if the run is over for this rank."""

    def stepped(self, made: StepMade) -> None:
        """Show the step to the others, and do the duties that are due."""

    def end(self) -> Outcome | None:
        """The result of the run, on the ranks that report it."""


def train_at(pace: Pace, worker: Worker) -> Outcome | None:
    """Run a worker at its pace to the end of the run. Raises SamovarError."""
    pace.begin()
    while (rate_step := pace.next_rate_step()) is not None:
        started_s = time.monotonic()
        loss = worker.step(pace.steps_done, rate_step)
        pace.stepped(StepMade(rate_step, loss, worker.times, time.monotonic() - started_s))
    return pace.end()


def _passed(interval: int, before: int, now: int) -> bool:
    return interval > 0 and now // interval > before // interval


def make_schedule(config: RunConfig, caffe: CaffeSolver, first_step: int) -> Schedule:
    """The schedule from step `first_step`; InputError if no steps are left, or the policy ends before them."""
    num_steps = num_steps_of(config, caffe)
    if first_step > num_steps:
        raise InputError(
            f"--snapshot {config.snapshot}: it has {first_step} steps, but the run ends at {num_steps}; "
            "raise max_iter or --iterations"
        )
    solver_config(caffe).policy.rate(max(0, num_steps - 1))  # a policy that ends before the run says so now
    if config.by_caffe:
        return _as_caffe(caffe, first_step, num_steps)
    # Without a step this run has nothing new to save, and perhaps less.
    save_at_end = first_step < num_steps or not config.keeps_snapshot
    return _plain(caffe, first_step, num_steps, save_at_end=save_at_end)


def num_steps_of(config: RunConfig, caffe: CaffeSolver) -> int:
    """--iterations, else the solver's max_iter."""
    return caffe.max_iter if config.iterations is None else config.iterations


def first_step(config: RunConfig, schedule: Schedule) -> int:
    """The step whose batches are read first. Caffe starts at the first record, even when it resumes."""
    if config.by_caffe and config.snapshot is not None and not config.snapshot.is_dir():
        return 0
    return schedule.first_step


def _plain(caffe: CaffeSolver, first_step: int, num_steps: int, *, save_at_end: bool) -> Schedule:
    """Test at the end in any case."""
    return Schedule(
        first_step,
        num_steps,
        test_interval=caffe.test_interval,
        test_at_start=caffe.test_initialization and first_step == 0 and caffe.test_interval > 0,
        snapshot_interval=caffe.snapshot,
        save_at_end=save_at_end,
    )


def _as_caffe(caffe: CaffeSolver, first_step: int, num_steps: int) -> Schedule:
    """Test at the end if it is due, after a forward pass for the display; save at the end if the solver says so."""
    interval = caffe.test_interval
    return Schedule(
        first_step,
        num_steps,
        test_interval=interval,
        test_at_start=_divides(interval, first_step)
        and first_step < num_steps
        and (first_step > 0 or caffe.test_initialization),
        snapshot_interval=caffe.snapshot,
        save_at_end=caffe.snapshot_after_train and (first_step < num_steps or not _divides(caffe.snapshot, num_steps)),
        forward_at_end=_divides(caffe.display, num_steps),
        test_at_end=_divides(interval, num_steps),
        is_prompt=True,
    )


def _divides(interval: int, number: int) -> bool:
    return interval > 0 and number % interval == 0
