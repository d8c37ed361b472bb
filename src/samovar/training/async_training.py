"""The training loop of a worker that waits for no other: each at its own speed, until the run is over for all."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from samovar.core.clock import Deadline, Pace
from samovar.membership.progress_table import ProgressTable, WorkerState, binned
from samovar.strategies.center_steps import CenterSteps
from samovar.training.async_evaluated import CenterWeights
from samovar.training.async_master import Master
from samovar.training.course import RateSchedule, SteeredUpdates
from samovar.training.finite import FiniteCheck
from samovar.training.loop import Outcome, Requests
from samovar.training.step import StepLoss, Worker

# The master tests before anybody begins, and that may take longer than any exchange.
_START_PATIENCE = _END_PATIENCE = 10.0
_DISTANCE_EVERY_S = 1.0
_DISTANCE_SHARE = 0.02  # of the time at most is spent on measuring it

# agree(stop signal, step of the rate or None)
Agree: TypeAlias = Callable[[int, int | None], tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class AsyncParts:
    """What a worker steps with: its strategy and updates, and the center in the place of its weights.

    `lock_wait_s()` tells what it lost to others at the center so far.
    """

    worker: Worker
    strategy: CenterSteps
    finite: FiniteCheck
    updates: SteeredUpdates
    evaluated: CenterWeights
    lock_wait_s: Callable[[], float]


class Voice(Protocol):
    """Tells the user."""

    def inform(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...


class AsyncTraining:
    """Steps from `steps_done` on while `course` gives a rate, looks up after each step, drains at the end.

    Whoever is first of the launch's workers that are not gone is its master: `become_master` gives what it does for
    all. The strategy follows the number of members that share the center. `agree(stop_signal, rate_step)` makes one
    answer of those of ranks that step together; `drained` is called when this worker's last update is in the center.
    """

    def __init__(
        self,
        parts: AsyncParts,
        crew: ProgressTable,
        course: RateSchedule,
        become_master: Callable[[], Master],
        at_boundary: Callable[[int], Requests],
        agree: Agree,
        voice: Voice,
        drained: Callable[[], None],
        timeout_s: float,
        steps_done: int,
    ) -> None:
        self._parts = parts
        self._crew = crew
        self._course = course
        self._become_master = become_master
        self._at_boundary = at_boundary
        self._agree = agree
        self._voice = voice
        self._drained = drained
        self._timeout_s = timeout_s
        self._steps_done = steps_done
        self._num_samples = 0
        self._loss = float("nan")
        self._pace = Pace()
        self._measured_s = float("-inf")
        self._distance_took_s = 0.0
        self._stop_signal = 0
        self._master: Master | None = None
        self._num_members = crew.world_size  # that the strategy knows of

    def run(self) -> Outcome | None:
        """Train until the run is over; on the master what it came to. Raises DeadlineExceeded."""
        self._parts.evaluated.publish_statistics()
        self._show()
        if self._crew.is_first:
            self._master = self._become_master()
            self._master.test_at_start()
        self._crew.is_ready()
        self._crew.wait_for_all(Deadline.after(_START_PATIENCE * self._timeout_s))
        self._crew.begin()
        if self._master is not None:
            self._master.begin()
        while (rate_step := self._next_rate_step()) is not None:
            self._step(rate_step)
        self._parts.strategy.drain()
        self._drained()
        if not self._crew.is_first:
            self._parts.finite.at_end()
        self._show(is_finished=True)
        if self._master is None and not self._crew.wait_until_told(Deadline.after(_END_PATIENCE * self._timeout_s)):
            self._look_for_master()
        return None if self._master is None else self._finish(self._master)

    def _finish(self, master: Master) -> Outcome:
        """Also where this worker's own weights came to nothing, if another one's did not."""
        master.wait_for_ends(self._stop_signal)
        if self._crew.is_alone(self._parts.strategy.group_size):
            self._parts.finite.at_end()
        return master.finish(self._stop_signal, self._parts.worker.times)

    def _next_rate_step(self) -> int | None:
        """None where this worker shall stop: by a signal, or because the run is over."""
        requests = self._at_boundary(self._steps_done)
        self._stop_signal, rate_step = self._agree(requests.stop_signal, self._course.next_rate_step())
        return None if self._stop_signal else rate_step

    def _step(self, rate_step: int) -> None:
        parts = self._parts
        self._follow_members(rate_step)
        parts.updates.steer(rate_step)
        self._note(parts.worker.step(self._steps_done))
        for text in parts.strategy.take_notices():
            self._voice.warn(text)
        parts.evaluated.publish_statistics()
        self._show()
        parts.finite.after_step(self._steps_done, rate_step, self._loss)
        self._look_for_master()
        if self._master is not None:
            self._master.look(self._at_boundary(self._steps_done).num_snapshots, parts.worker.times)

    def _follow_members(self, run_steps: int) -> None:
        """From this step of the run on the strategy counts with as many members as there are."""
        now, before = self._crew.num_members, self._num_members
        if now == before:
            return
        strategy, self._num_members = self._parts.strategy, now
        strategy.resize(now)
        if self._crew.is_first:
            earlier = f", {before} did before" if self._num_samples else ""
            rate = f"; moving rate {strategy.moving_rate:.4g}" if strategy.moving_rate else ""
            who = "1 worker trains" if now == 1 else f"{now} workers train"
            self._voice.inform(f"step {run_steps:,}: {who} at this center now{earlier}{rate}")

    def _note(self, loss: StepLoss) -> None:
        self._steps_done += 1
        self._num_samples += loss.num_samples
        self._loss = loss.loss

    def _show(self, *, is_finished: bool = False) -> None:
        strategy = self._parts.strategy
        state = WorkerState(
            steps_done=self._steps_done,
            num_samples=self._num_samples,
            samples_per_second=self._pace.take(self._num_samples),
            loss=self._loss,
            num_updates=strategy.num_updates,
            num_refused=strategy.num_refused,
            staleness=binned(strategy.staleness.histogram),
            lock_wait_s=self._parts.lock_wait_s(),
            is_finished=is_finished,
        )
        self._crew.show(state, self._distance(is_finished))

    def _distance(self, is_finished: bool) -> float | None:
        """The distance to the center, seldom enough to cost nothing; None where it is not its turn."""
        now_s = time.monotonic()
        pause_s = max(_DISTANCE_EVERY_S, self._distance_took_s / _DISTANCE_SHARE)
        if not is_finished and now_s - self._measured_s < pause_s:
            return None
        distance = self._parts.evaluated.distance()
        self._measured_s = time.monotonic()
        self._distance_took_s = self._measured_s - now_s
        return distance

    def _look_for_master(self) -> None:
        if self._master is None and self._crew.is_first:
            self._master = self._become_master()
            self._master.begin()
