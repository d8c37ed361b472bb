"""The training loop of one rank: steps, tests, snapshots, and stopping together."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from samovar.collectives.records import RecordExchange
from samovar.core.clock import Deadline
from samovar.training.evaluation import TestResult
from samovar.training.finite import FiniteCheck
from samovar.training.step import StepLoss, Worker
from samovar.training.times import StepTimes

NUM_RECORD_FIELDS = 5  # loss, samples, stop signal, snapshot requests, arrival at the exchange


@dataclass(frozen=True, slots=True)
class Requests:
    """What signals have asked of this run so far: a signal number (0: none), and a count."""

    stop_signal: int = 0
    num_snapshots: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which steps to take, and after which to do what; 0 means never. Steps count from 0.

    At the end of the steps: save, then one forward pass more, then a test, each if asked for. `is_prompt`: a step is
    told of as soon as it is done, at the price of waiting for the other ranks.
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
class StepDone:
    """All ranks' results of one step: mean loss over the global batch.

    `times` are this rank's own. `last_rank` came to the exchange last, `late_s` after the median of the others; None
    where the step had no exchange, or there are no others. `num_steps` were done since the last that was told.
    """

    steps_done: int
    loss: float
    num_samples: int
    seconds: float
    times: StepTimes
    last_rank: int | None
    late_s: float
    num_steps: int = 1


class Observer(Protocol):
    """Whoever wants to know how training goes; called on every rank, with equal values except times."""

    def step_done(self, done: StepDone) -> None: ...
    def tested(self, steps_done: int, net: int, result: TestResult) -> None: ...
    def forwarded(self, steps_done: int, loss: float) -> None: ...
    def ended(self) -> None: ...


@dataclass(slots=True)
class Outcome:
    """Where a run stands when its loop ends.

    `num_steps` were taken by this process, `seconds` are spent in them, without tests and snapshots.
    `test_outputs` are those of the first test net with the weights as they are now; empty where those were not tested.
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
    `at_boundary(steps_done)` tells what signals asked of this rank; `evaluate()` gives the result of each test net in
    turn, and `forward()` the loss of one more forward pass; they and `save(steps_done)` are called on every rank
    where they are due.
    """

    def __init__(
        self,
        worker: Worker,
        records: RecordExchange,
        schedule: Schedule,
        evaluate: Callable[[], Iterator[TestResult]],
        forward: Callable[[], StepLoss],
        observer: Observer,
        save: Callable[[int], None],
        at_boundary: Callable[[int], Requests],
        finite: FiniteCheck,
        timeout_s: float,
    ) -> None:
        self._worker = worker
        self._records = records
        self._schedule = schedule
        self._evaluate = evaluate
        self._forward = forward
        self._observer = observer
        self._save = save
        self._at_boundary = at_boundary
        self._finite = finite
        self._timeout_s = timeout_s
        self._outcome = Outcome(schedule.first_step)
        self._posted: tuple[float, StepTimes] | None = None
        self._agreed = Requests()
        self._snapshots_made = 0
        self._saved_at: int | None = None

    def run(self) -> Outcome:
        """Train to the schedule's end or until asked to stop; test and save at the end."""
        outcome, schedule = self._outcome, self._schedule
        if schedule.test_at_start:
            self._test()
        for step in range(schedule.first_step, schedule.num_steps):
            self._step(step)
            if outcome.stop_signal:
                break
            if _is_due(schedule.test_interval, outcome.steps_done) and outcome.steps_done < schedule.num_steps:
                self._test()
        self._collect()
        if schedule.save_at_end:
            self._save_once()
        if not outcome.stop_signal:
            self._finish()
        self._observer.ended()
        return outcome

    def _finish(self) -> None:
        if self._schedule.forward_at_end:
            loss = self._forward()
            self._records.post([loss.loss, loss.num_samples, 0, 0, math.nan])
            losses = self._records.collect(Deadline.after(self._timeout_s))[:, :2]
            self._observer.forwarded(self._outcome.steps_done, _mean(losses))
        if self._schedule.test_at_end:
            self._test()

    def _step(self, step: int) -> None:
        started_s = time.monotonic()
        loss = self._worker.step(step)
        self._finite.after_step(step + 1, step, loss.loss)
        self._outcome.steps_done = step + 1
        self._outcome.test_outputs = {}  # those of the weights that were
        agreed = self._collect()
        self._post(step, loss, time.monotonic() - started_s)
        if self._schedule.is_prompt:
            agreed = self._collect()
        if agreed.num_snapshots > self._snapshots_made:
            self._snapshots_made = agreed.num_snapshots
            self._save_once()
        elif _is_due(self._schedule.snapshot_interval, step + 1):
            self._save_once()
        self._outcome.stop_signal = agreed.stop_signal

    def _post(self, step: int, loss: StepLoss, step_s: float) -> None:
        seen, times = self._at_boundary(self._outcome.steps_done), self._worker.times
        arrived_s = times.arrived_s if self._worker.exchanges_at(step) else math.nan
        self._records.post([loss.loss, loss.num_samples, seen.stop_signal, seen.num_snapshots, arrived_s])
        self._posted = step_s, times

    def _collect(self) -> Requests:
        """Take in what all ranks posted at the last boundary; what they agreed to do."""
        if self._posted is None:
            return self._agreed
        records = self._records.collect(Deadline.after(self._timeout_s))
        (step_s, times), self._posted = self._posted, None
        self._account(records, step_s, times)
        self._agreed = Requests(int(records[:, 2].max()), int(records[:, 3].max()))
        return self._agreed

    def _account(self, records: npt.NDArray[np.float64], step_s: float, times: StepTimes) -> None:
        outcome = self._outcome
        num_samples = int(records[:, 1].sum())
        outcome.train_loss = _mean(records)
        if outcome.num_steps == 0:
            outcome.warm_samples, outcome.warm_seconds = num_samples, step_s
        outcome.num_steps += 1
        outcome.num_samples += num_samples
        outcome.seconds += step_s
        steps_done = self._schedule.first_step + outcome.num_steps
        last_rank, late_s = _last(records[:, 4])
        done = StepDone(steps_done, outcome.train_loss, num_samples, step_s, times, last_rank, late_s)
        self._observer.step_done(done)

    def _test(self) -> None:
        for net, result in enumerate(self._evaluate()):
            if net == 0:
                self._outcome.test_outputs = result.outputs
            self._observer.tested(self._outcome.steps_done, net, result)

    def _save_once(self) -> None:
        if self._saved_at != self._outcome.steps_done:
            self._saved_at = self._outcome.steps_done
            self._save(self._outcome.steps_done)


def _mean(records: npt.NDArray[np.float64]) -> float:
    """Over all ranks' samples, of rows (loss, number of samples, ...)."""
    losses, counts = records[:, 0], records[:, 1]
    return float((losses * counts).sum() / int(counts.sum()))


def _last(arrivals_s: npt.NDArray[np.float64]) -> tuple[int | None, float]:
    """Who came last, and how long after the median of the others."""
    if len(arrivals_s) < 2 or np.isnan(arrivals_s).any():
        return None, 0.0
    last = int(arrivals_s.argmax())
    return last, float(arrivals_s[last] - np.median(np.delete(arrivals_s, last)))


def _is_due(interval: int, steps_done: int) -> bool:
    return interval > 0 and steps_done % interval == 0
