"""The pace of ranks that go in step: all make each step together, and stop together."""

import math
from collections import deque
from collections.abc import Callable
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from samovar.collectives.engine import RecordExchange
from samovar.core.clock import Deadline
from samovar.report.steps import StepDone, last_to_arrive
from samovar.training.finite import FiniteCheck
from samovar.training.loop import Duties, Outcome, Requests, Schedule, StepMade
from samovar.training.step import StepLoss

NUM_RECORD_FIELDS = 6  # loss, samples, stop signal, snapshot requests, arrival at the exchange, losses that have come


class InStep:
    """A `samovar.training.loop.Pace` for ranks in step.

    Ranks agree at step boundaries on the requests of signals. Each rank posts the requests that it saw, and acts on
    those that all posted one step earlier. So all act after the same step, and none waits for the agreement. They also
    tell how many losses have come from their devices: a step is reported when all have its loss, or before a duty.
    `at_boundary(steps_done)` gives this rank's requests, `exchanges_at(step)` says whether a step waits for other
    ranks, and `forward()` gives the loss of one more forward pass.
    """

    def __init__(
        self,
        duties: Duties,
        schedule: Schedule,
        records: RecordExchange,
        exchanges_at: Callable[[int], bool],
        forward: Callable[[], StepLoss],
        at_boundary: Callable[[int], Requests],
        finite: FiniteCheck,
        timeout_s: float,
    ) -> None:
        self._duties = duties
        self._schedule = schedule
        self._records = records
        self._exchanges_at = exchanges_at
        self._forward = forward
        self._at_boundary = at_boundary
        self._finite = finite
        self._timeout_s = timeout_s
        self._late: deque[StepMade] = deque()  # not yet posted
        self._num_posted = self._num_common = 0  # losses: posted here, and come on all ranks
        self._is_posted = False
        self._told: StepMade | None = None  # the step of that post, if it has one
        self._agreed = Requests()
        duties.settle = self._settle
        self._stop_signal = 0

    @property
    def steps_done(self) -> int:
        return self._duties.outcome.steps_done

    def begin(self) -> None:
        self._duties.test_at_start()

    def next_rate_step(self) -> int | None:
        is_over = self._stop_signal or self.steps_done >= self._schedule.num_steps
        return None if is_over else self.steps_done

    def stepped(self, made: StepMade) -> None:
        step = self.steps_done
        self._finite.after_step(step + 1, made.rate_step, None if made.loss.is_late else made.loss.loss)
        self._duties.reached(step + 1)
        agreed = self._collect()
        is_prompt, waited_s = self._schedule.is_prompt, math.nan
        if self._exchanges_at(step) and not made.loss.is_late:
            waited_s = made.times.exchange_s
        self._late.append(made)
        self._post(self._at_boundary(step + 1), waited_s, waits=is_prompt)
        if is_prompt:
            agreed = self._collect()
        self._stop_signal = agreed.stop_signal
        self._duties.act(step, agreed.num_snapshots, tests=not agreed.stop_signal)

    def end(self) -> Outcome:
        self._collect()
        self._settle()
        return self._duties.finish(self._stop_signal, self._forward_loss)

    def _post(self, seen: Requests, waited_s: float, *, waits: bool) -> None:
        """Post requests, and the earliest loss that has come on all ranks; with `waits` the earliest."""
        is_common = self._num_posted < self._num_common or not self._late[0].loss.is_late
        loss, num_samples, self._told = 0.0, 0, None
        if waits or is_common:
            self._told = self._late.popleft()
            loss, num_samples = self._told.loss.loss, self._told.loss.num_samples
            self._num_posted += 1
        come = self._num_posted + sum(1 for _ in takewhile(lambda made: made.loss.has_come, self._late))
        self._records.post([loss, num_samples, seen.stop_signal, seen.num_snapshots, waited_s, come])
        self._is_posted = True

    def _settle(self) -> None:
        """Report all steps so far."""
        if self._late:
            self._collect()
        while self._late:
            self._post(self._agreed, math.nan, waits=True)
            self._collect()

    def _collect(self) -> Requests:
        """Read the posts of all ranks at the last boundary. Returns the requests that they agreed on."""
        if not self._is_posted:
            return self._agreed
        records = self._collected()
        self._is_posted = False
        if self._told is not None:
            self._duties.tell(self._done(records, self._told))
        self._num_common = int(records[:, 5].min())
        self._agreed = Requests(int(records[:, 2].max()), int(records[:, 3].max()))
        return self._agreed

    def _done(self, records: npt.NDArray[np.float64], made: StepMade) -> StepDone:
        steps_done = self._schedule.first_step + self._duties.outcome.num_steps + 1
        last, samples = last_to_arrive(records[:, 4]), int(records[:, 1].sum())
        return StepDone(steps_done, _mean(records), samples, made.seconds, made.times, *last)

    def _forward_loss(self) -> float:
        loss = self._forward()
        self._records.post([loss.loss, loss.num_samples, 0, 0, math.nan, 0])
        return _mean(self._collected())

    def _collected(self) -> npt.NDArray[np.float64]:
        return self._records.collect(Deadline.after(self._timeout_s))


def _mean(records: npt.NDArray[np.float64]) -> float:
    """The mean loss over all ranks' samples, from rows (loss, number of samples, ...)."""
    losses, counts = records[:, 0], records[:, 1]
    return float((losses * counts).sum() / int(counts.sum()))
