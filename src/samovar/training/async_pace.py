"""The pace of asynchronous ranks: each steps at its own speed, until the run is over for all."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from samovar.core.clock import Deadline, Pace
from samovar.membership.members import Headcount
from samovar.membership.progress_table import ProgressTable, WorkerState, binned
from samovar.report.steps import StepDone, StepTimes
from samovar.report.tracing import Voice
from samovar.strategies.center_steps import CenterSteps
from samovar.training.evaluation import CenterWeights
from samovar.training.finite import FiniteCheck
from samovar.training.loop import Duties, Observer, Outcome, Requests, StepMade
from samovar.training.ordered_centers import Order
from samovar.training.step import StepLoss

# The others wait for a master that tests, which may take longer than an exchange.
TEST_PATIENCE = 10.0
_DISTANCE_EVERY_S = 1.0
_DISTANCE_SHARE = 0.02  # of the time at most is spent on measuring it

# agree(stop signal, step of the rate or None)
Agree: TypeAlias = Callable[[int, int | None], tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Run:
    """State that workers of a launch share: their progress, the number of members at the center, the run's length."""

    table: ProgressTable
    headcount: Headcount
    num_steps: int
    voice: Voice
    timeout_s: float


class Master:
    """The worker that reports, tests and saves for its launch. It looks at all workers after each of its own steps.

    During the run only the master of one launch tests and saves the center, while the others continue. At the end
    every launch does, with the weights that the center has when `settle()` is called. The stop rule counts the run's
    steps, up to the number that was asked for. Steps that an earlier master did not report are counted, not reported.
    """

    def __init__(self, run: Run, duties: Duties, observer: Observer, settle: Callable[[], None]) -> None:
        self._run = run
        self._duties = duties
        self._observer = observer
        self._settle = settle
        self._told_s = 0.0
        outcome = duties.outcome
        first_step, outcome.steps_done = outcome.steps_done, self._run_steps()
        outcome.num_samples = self._num_samples = _samples_of(run.table.states())
        outcome.num_steps = outcome.steps_done - first_step

    def test_at_start(self) -> None:
        """Test before any worker steps."""
        is_start = not any(state.num_samples for state in self._run.table.states())
        if is_start and self._run.table.leads:
            self._duties.test_at_start()

    def begin(self) -> None:
        """Start the clock. Other workers may have begun a moment before; their steps are reported, too."""
        self._told_s = time.monotonic()
        self._duties.outcome.seconds = self._told_s - self._run.table.begin()

    def look(self, num_snapshots: int, times: StepTimes) -> None:
        """Report the progress of all; save and test if that is due. `times` are those of this worker's last step."""
        before = self._duties.outcome.steps_done
        self._account(times)
        self._duties.act(before, num_snapshots, leads=self._run.table.leads)

    def finish(self, stop_signal: int, times: StepTimes) -> Outcome:
        """Save and test the center after all have ended. Returns the result of the run."""
        self._account(times)
        self._settle()
        states, outcome = self._run.table.states(), self._duties.outcome
        self._duties.reached(outcome.steps_done)  # others may have changed the center since a snapshot of this step
        outcome.num_samples, outcome.train_loss = _samples_of(states), _mean_loss(states)
        return self._duties.finish(stop_signal)

    def wait_for_ends(self, stop_signal: int) -> None:
        """Wait until every worker's last update is in the center.

        Raises DeadlineExceeded, naming the workers of this launch that do not finish.
        """
        timeout_s = self._run.timeout_s
        missing = self._run.table.wait_for_ends(timeout_s, with_others=not stop_signal)
        if missing:
            self._run.voice.warn(f"{missing} of the box did not finish within {timeout_s:g} s, and is not waited for")

    def _account(self, times: StepTimes) -> None:
        states, before = self._run.table.states(), self._duties.outcome.steps_done
        steps, samples = self._run_steps(), _samples_of(states)
        if steps <= before:
            return
        now_s = time.monotonic()
        seconds, self._told_s = now_s - self._told_s, now_s
        num_samples, self._num_samples = samples - self._num_samples, samples
        self._duties.reached(steps)
        self._observer.workers_seen(states)
        self._duties.tell(StepDone(steps, _mean_loss(states), num_samples, seconds, times, num_steps=steps - before))

    def _run_steps(self) -> int:
        return min(self._run.table.run_steps(), self._run.num_steps)


@dataclass(frozen=True, slots=True)
class AsyncParts:
    """The parts of a worker, and the center in the place of its weights.

    `lock_wait_s()` gives the seconds that it has lost to others at the center.
    """

    strategy: CenterSteps
    finite: FiniteCheck
    order: Order
    evaluated: CenterWeights
    lock_wait_s: Callable[[], float]


class AsyncPace:
    """A `samovar.training.loop.Pace` that starts after `steps_done` steps and drains the strategy at the end.

    The learning rate follows the steps of the run, so it falls for all workers together. The first worker of the
    launch that is not gone becomes its master, by `become_master`. The strategy follows the number of members that
    share the center. `agree(stop_signal, rate_step)` gives ranks that step together one common answer. A loss from a
    device is shown when it has come.
    """

    def __init__(
        self,
        run: Run,
        parts: AsyncParts,
        become_master: Callable[[], Master],
        at_boundary: Callable[[int], Requests],
        agree: Agree,
        steps_done: int,
    ) -> None:
        self.steps_done = steps_done
        self._run, self._table = run, run.table
        self._parts = parts
        self._become_master = become_master
        self._at_boundary = at_boundary
        self._agree = agree
        self._num_samples = 0
        self._loss = float("nan")
        self._late: deque[StepLoss] = deque()
        self._times = StepTimes()
        self._speed = Pace()
        self._measured_s = float("-inf")
        self._distance_took_s = 0.0
        self._stop_signal = 0
        self._master: Master | None = None

    def begin(self) -> None:
        self._parts.evaluated.publish_statistics()
        self._show()
        if self._table.is_first:
            self._master = self._become_master()
            self._master.test_at_start()
        self._table.is_ready()
        self._table.wait_for_all(TEST_PATIENCE * self._run.timeout_s)
        self._table.begin()
        if self._master is not None:
            self._master.begin()

    def next_rate_step(self) -> int | None:
        """The step of the next rate; None if this worker must stop, by a signal or because the run is over."""
        requests = self._at_boundary(self.steps_done)
        run_steps = self._table.run_steps()
        live = run_steps if run_steps < self._run.num_steps else None
        stop_signal = self._table.asked_to_stop(requests.stop_signal)
        self._stop_signal, rate_step = self._agree(stop_signal, self._parts.order.next_rate_step(live))
        if self._stop_signal:
            self._parts.order.stop()
        if self._stop_signal or rate_step is None:
            return None
        sentence = self._run.headcount.follow(self._parts.strategy, tells_before=self._num_samples > 0)
        if sentence and self._table.is_first:
            self._run.voice.inform(f"step {rate_step:,}: {sentence}")
        self._parts.order.step(rate_step)
        return rate_step

    def stepped(self, made: StepMade) -> None:
        parts = self._parts
        self.steps_done += 1
        self._num_samples += made.loss.num_samples
        self._late.append(made.loss)
        self._take_losses()
        self._times = made.times
        for text in parts.strategy.take_notices():
            self._run.voice.warn(text)
        parts.evaluated.publish_statistics()
        self._show()
        parts.finite.after_step(self.steps_done, made.rate_step, None if made.loss.is_late else self._loss)
        self._look_for_master()
        if self._master is not None:
            self._master.look(self._at_boundary(self.steps_done).num_snapshots, made.times)

    def end(self) -> Outcome | None:
        """The result, on the master. Its own weights may have failed, as long as another worker's did not."""
        parts, table = self._parts, self._table
        self._take_losses(waits=True)
        with parts.strategy.on_host():
            parts.evaluated.publish_statistics()
            parts.strategy.drain()
        parts.order.end()
        if not table.is_first:
            parts.finite.at_end()
        self._show(is_finished=True)
        if self._master is None and not table.wait_until_told(Deadline.after(TEST_PATIENCE * self._run.timeout_s)):
            self._look_for_master()
        if self._master is None:
            return None
        self._master.wait_for_ends(self._stop_signal)
        if table.is_alone(parts.strategy.group_size):
            parts.finite.at_end()
        return self._master.finish(self._stop_signal, self._times)

    def _take_losses(self, *, waits: bool = False) -> None:
        """Take the losses that have come, or with `waits` all."""
        while self._late and (waits or self._late[0].has_come):
            self._loss = self._late.popleft().loss

    def _show(self, *, is_finished: bool = False) -> None:
        strategy = self._parts.strategy
        state = WorkerState(
            steps_done=self.steps_done,
            num_samples=self._num_samples,
            samples_per_second=self._speed.take(self._num_samples),
            loss=self._loss,
            num_updates=strategy.num_updates,
            num_refused=strategy.num_refused,
            staleness=binned(strategy.staleness.histogram),
            lock_wait_s=self._parts.lock_wait_s(),
            is_finished=is_finished,
        )
        self._table.show(state, self._distance(is_finished))

    def _distance(self, is_finished: bool) -> float | None:
        """The distance to the center, measured so seldom that it costs almost nothing; None between measurements."""
        now_s = time.monotonic()
        pause_s = max(_DISTANCE_EVERY_S, self._distance_took_s / _DISTANCE_SHARE)
        if not is_finished and now_s - self._measured_s < pause_s:
            return None
        distance = self._parts.evaluated.distance()
        self._measured_s = time.monotonic()
        self._distance_took_s = self._measured_s - now_s
        return distance

    def _look_for_master(self) -> None:
        if self._master is None and self._table.is_first:
            self._master = self._become_master()
            self._master.begin()


def _samples_of(states: Sequence[WorkerState]) -> int:
    return sum(state.num_samples for state in states)


def _mean_loss(states: Sequence[WorkerState]) -> float:
    """The mean of the last losses of workers that have one and are not gone."""
    losses = [state.loss for state in states if not (state.is_gone or math.isnan(state.loss))]
    return sum(losses) / len(losses) if losses else math.nan
