"""The training loop of one rank: steps, tests, snapshots, and stopping together."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from samovar.collectives.records import RecordExchange
from samovar.core.clock import Deadline
from samovar.worker.step import StepLoss, Worker

NUM_RECORD_FIELDS = 4  # loss, samples, stop signal, snapshot requests


@dataclass(frozen=True, slots=True)
class Requests:
    """What signals have asked of this run so far: a signal number (0: none), and a count."""

    stop_signal: int = 0
    num_snapshots: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which steps to take, and after which to do what; 0 means never. Steps count from 0."""

    first_step: int
    num_steps: int
    test_interval: int = 0
    test_at_start: bool = True
    snapshot_interval: int = 0


@dataclass(frozen=True, slots=True)
class StepDone:
    """All ranks' results of one step: mean loss over the global batch."""

    steps_done: int
    loss: float
    num_samples: int
    seconds: float


class Observer(Protocol):
    """Whoever wants to know how training goes; called on every rank, with equal values except times."""

    def step_done(self, done: StepDone) -> None: ...
    def tested(self, steps_done: int, outputs: dict[str, float]) -> None: ...


@dataclass(slots=True)
class Outcome:
    """Where a run stands when its loop ends.

    `num_steps` were taken by this process, `seconds` are spent in them, without tests and snapshots.
    `test_outputs` are of the weights as they are now; empty where those were not tested.
    """

    steps_done: int
    stop_signal: int = 0
    train_loss: float = float("nan")
    num_samples: int = 0
    seconds: float = 0.0
    warm_samples: int = 0
    warm_seconds: float = 0.0
    test_outputs: dict[str, float] = field(default_factory=dict)
    num_steps: int = 0

    @property
    def samples_per_second(self) -> float:
        """Global samples per second of stepping; the process's first step, which warms up, is left out."""
        samples, seconds = self.num_samples - self.warm_samples, self.seconds - self.warm_seconds
        return samples / seconds if seconds > 0 else 0.0


class Training:
    """Runs a worker through a schedule.

    Ranks agree at step boundaries on what signals asked for: each posts what it saw, and acts on what all
    posted one step earlier, so all act after the same step and none waits for the agreement.
    `at_boundary(steps_done)` tells what signals asked of this rank; `evaluate()` gives the test's outputs, None
    where there is no test; it and `save(steps_done)` are called on every rank where they are due.
    """

    def __init__(
        self,
        worker: Worker,
        records: RecordExchange,
        schedule: Schedule,
        evaluate: Callable[[], dict[str, float]] | None,
        observer: Observer,
        save: Callable[[int], None],
        at_boundary: Callable[[int], Requests],
        timeout_s: float,
    ) -> None:
        self._worker = worker
        self._records = records
        self._schedule = schedule
        self._evaluate = evaluate
        self._observer = observer
        self._save = save
        self._at_boundary = at_boundary
        self._timeout_s = timeout_s
        self._outcome = Outcome(schedule.first_step)
        self._posted_step_s: float | None = None
        self._snapshots_made = 0
        self._saved_at: int | None = None

    def run(self) -> Outcome:
        """Train to the schedule's end or until asked to stop; test and save at the end."""
        outcome, schedule = self._outcome, self._schedule
        if schedule.test_at_start and schedule.first_step == 0 and schedule.test_interval:
            self._test()
        for step in range(schedule.first_step, schedule.num_steps):
            self._step(step)
            if outcome.stop_signal:
                break
            if _is_due(schedule.test_interval, outcome.steps_done) and outcome.steps_done < schedule.num_steps:
                self._test()
        self._collect()
        self._save_once()
        if self._evaluate is not None and not outcome.stop_signal:
            self._test()
        return outcome

    def _step(self, step: int) -> None:
        started_s = time.monotonic()
        loss = self._worker.step(step)
        self._outcome.steps_done = step + 1
        self._outcome.test_outputs = {}  # those of the weights that were
        agreed = self._collect()
        self._post(loss, time.monotonic() - started_s)
        if agreed.num_snapshots > self._snapshots_made:
            self._snapshots_made = agreed.num_snapshots
            self._save_once()
        elif _is_due(self._schedule.snapshot_interval, step + 1):
            self._save_once()
        self._outcome.stop_signal = agreed.stop_signal

    def _post(self, loss: StepLoss, step_s: float) -> None:
        seen = self._at_boundary(self._outcome.steps_done)
        self._records.post([loss.loss, loss.num_samples, seen.stop_signal, seen.num_snapshots])
        self._posted_step_s = step_s

    def _collect(self) -> Requests:
        """Take in what all ranks posted at the last boundary; what they agreed to do."""
        if self._posted_step_s is None:
            return Requests()
        records = self._records.collect(Deadline.after(self._timeout_s))
        step_s, self._posted_step_s = self._posted_step_s, None
        self._account(records, step_s)
        return Requests(int(records[:, 2].max()), int(records[:, 3].max()))

    def _account(self, records: npt.NDArray[np.float64], step_s: float) -> None:
        losses, counts = records[:, 0], records[:, 1]
        outcome = self._outcome
        num_samples = int(counts.sum())
        outcome.train_loss = float((losses * counts).sum() / num_samples)
        if outcome.num_steps == 0:
            outcome.warm_samples, outcome.warm_seconds = num_samples, step_s
        outcome.num_steps += 1
        outcome.num_samples += num_samples
        outcome.seconds += step_s
        steps_done = self._schedule.first_step + outcome.num_steps
        self._observer.step_done(StepDone(steps_done, outcome.train_loss, num_samples, step_s))

    def _test(self) -> None:
        if self._evaluate is not None:
            self._outcome.test_outputs = self._evaluate()
            self._observer.tested(self._outcome.steps_done, self._outcome.test_outputs)

    def _save_once(self) -> None:
        if self._saved_at != self._outcome.steps_done:
            self._saved_at = self._outcome.steps_done
            self._save(self._outcome.steps_done)


def _is_due(interval: int, steps_done: int) -> bool:
    return interval > 0 and steps_done % interval == 0
