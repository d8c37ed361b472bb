"""What one of the workers that wait for nobody does for its launch: it tells, tests and saves."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from samovar.core.clock import Deadline
from samovar.membership.progress_table import ProgressTable, WorkerState
from samovar.training.evaluation import TestResult
from samovar.training.loop import Observer, Outcome, Schedule, StepDone
from samovar.training.times import StepTimes


class AsyncObserver(Observer, Protocol):
    """An observer that also wants to know how each worker gets on."""

    def workers_seen(self, steps_done: int, states: Sequence[WorkerState]) -> None: ...


class Master:
    """Looks at the others after each of its own steps, and acts when the run's steps have passed what is due.

    `evaluate()` gives the result of each test net in turn, `save(steps_done)` writes a snapshot: both of the center,
    while the other workers go on; during the run that of one launch alone does so, at the end each, of what the center
    is when it `settle()`s. The run's steps are those of the stop rule, never more than were asked for. `warn` tells
    the user.
    """

    def __init__(
        self,
        crew: ProgressTable,
        schedule: Schedule,
        evaluate: Callable[[], Iterator[TestResult]],
        observer: AsyncObserver,
        save: Callable[[int], None],
        settle: Callable[[], None],
        warn: Callable[[str], None],
        timeout_s: float,
    ) -> None:
        self._crew = crew
        self._schedule = schedule
        self._evaluate = evaluate
        self._observer = observer
        self._save = save
        self._settle = settle
        self._warn = warn
        self._timeout_s = timeout_s
        # Where this worker takes over: what an earlier master left untold is counted, but not told.
        steps_done, num_samples = self._run_steps(), _samples_of(crew.states())
        self._outcome = Outcome(steps_done, num_samples=num_samples, num_steps=steps_done - schedule.first_step)
        self._num_samples = num_samples
        self._told_s = 0.0
        self._snapshots_made = 0
        self._saved_at: int | None = None

    def test_at_start(self) -> None:
        """Before anybody steps."""
        is_start = not any(state.num_samples for state in self._crew.states())
        if self._schedule.test_at_start and is_start and self._crew.leads:
            self._test()

    def begin(self) -> None:
        """From now on time counts; others may have begun a moment before, and what they did is told, too."""
        self._told_s = time.monotonic()
        self._outcome.seconds = self._told_s - self._crew.begin()

    def look(self, num_snapshots: int, times: StepTimes) -> None:
        """Tell how far all are; save and test what is due. `times` are those of the own last step."""
        before = self._outcome.steps_done
        self._account(times)
        now, schedule = self._outcome.steps_done, self._schedule
        is_asked, leads = num_snapshots > self._snapshots_made, self._crew.leads
        if is_asked or (leads and _passed(schedule.snapshot_interval, before, now)):
            self._snapshots_made = max(num_snapshots, self._snapshots_made)
            self._save_once()
        if leads and _passed(schedule.test_interval, before, now) and now < schedule.num_steps:
            self._test()

    def wait_for_ends(self, stop_signal: int) -> None:
        """Return when every worker's last update is in the center.

        Raises DeadlineExceeded, naming those of this launch that do not finish.
        """
        missing = self._crew.wait_for_ends(Deadline.after(self._timeout_s), with_others=not stop_signal)
        if missing:
            self._warn(f"{missing} of the box did not finish within {self._timeout_s:g} s, and is not waited for")

    def finish(self, stop_signal: int, times: StepTimes) -> Outcome:
        """Save and test the center, now that all have ended: that is what the run gives."""
        self._account(times)
        self._settle()
        self._outcome.stop_signal = stop_signal
        self._outcome.num_samples = _samples_of(self._crew.states())
        if self._schedule.save_at_end:
            self._save_once()
        if self._schedule.test_at_end and not stop_signal:
            self._test()
        self._observer.ended()
        return self._outcome

    def _account(self, times: StepTimes) -> None:
        states, outcome = self._crew.states(), self._outcome
        steps, samples = self._run_steps(), _samples_of(states)
        if steps <= outcome.steps_done:
            return
        now_s = time.monotonic()
        done = StepDone(
            steps,
            _mean_loss(states),
            samples - self._num_samples,
            now_s - self._told_s,
            times,
            last_rank=None,
            late_s=0.0,
            num_steps=steps - outcome.steps_done,
        )
        self._told_s, self._num_samples = now_s, samples
        _add(outcome, done)
        self._observer.workers_seen(steps, states)
        self._observer.step_done(done)

    def _run_steps(self) -> int:
        return min(self._crew.run_steps(), self._schedule.num_steps)

    def _test(self) -> None:
        for net, result in enumerate(self._evaluate()):
            if net == 0:
                self._outcome.test_outputs = result.outputs
            self._observer.tested(self._outcome.steps_done, net, result)

    def _save_once(self) -> None:
        if self._saved_at != self._outcome.steps_done:
            self._saved_at = self._outcome.steps_done
            self._save(self._outcome.steps_done)


def _samples_of(states: Sequence[WorkerState]) -> int:
    return sum(state.num_samples for state in states)


def _add(outcome: Outcome, done: StepDone) -> None:
    if outcome.num_steps == 0:
        outcome.warm_samples, outcome.warm_seconds = done.num_samples, done.seconds
    outcome.steps_done = done.steps_done
    outcome.train_loss = done.loss
    outcome.num_steps += done.num_steps
    outcome.num_samples += done.num_samples
    outcome.seconds += done.seconds
    outcome.test_outputs = {}


def _mean_loss(states: Sequence[WorkerState]) -> float:
    """Of the last losses of those that have one and are not gone."""
    losses = [state.loss for state in states if not (state.is_gone or math.isnan(state.loss))]
    return sum(losses) / len(losses) if losses else math.nan


def _passed(interval: int, before: int, now: int) -> bool:
    return interval > 0 and now // interval > before // interval
