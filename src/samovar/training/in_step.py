"""The pace of ranks that go in step: all make each step together, and stop together."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from samovar.collectives.engine import RecordExchange
from samovar.core.clock import Deadline
from samovar.report.steps import StepDone, StepTimes, last_to_arrive
from samovar.training.finite import FiniteCheck
from samovar.training.loop import Duties, Outcome, Requests, Schedule, StepMade
from samovar.training.step import StepLoss

NUM_RECORD_FIELDS = 5  # loss, samples, stop signal, snapshot requests, arrival at the exchange


class InStep:
    """A `samovar.training.loop.Pace` for ranks in step.

    Ranks agree at step boundaries on the requests of signals. Each rank posts the requests that it saw, and acts on
    those that all posted one step earlier. So all act after the same step, and none waits for the agreement.
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
        self._posted: tuple[float, StepTimes] | None = None
        self._agreed = Requests()
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
        self._finite.after_step(step + 1, made.rate_step, made.loss.loss)
        self._duties.reached(step + 1)
        agreed = self._collect()
        self._post(step, made)
        if self._schedule.is_prompt:
            agreed = self._collect()
        self._stop_signal = agreed.stop_signal
        self._duties.act(step, agreed.num_snapshots, tests=not agreed.stop_signal)

    def end(self) -> Outcome:
        self._collect()
        return self._duties.finish(self._stop_signal, self._forward_loss)

    def _post(self, step: int, made: StepMade) -> None:
        seen, arrived_s = self._at_boundary(step + 1), made.times.arrived_s if self._exchanges_at(step) else math.nan
        loss = made.loss
        self._records.post([loss.loss, loss.num_samples, seen.stop_signal, seen.num_snapshots, arrived_s])
        self._posted = made.seconds, made.times

    def _collect(self) -> Requests:
        """Read the posts of all ranks at the last boundary. Returns the requests that they agreed on."""
        if self._posted is None:
            return self._agreed
        records = self._collected()
        (seconds, times), self._posted = self._posted, None
        self._duties.tell(self._done(records, seconds, times))
        self._agreed = Requests(int(records[:, 2].max()), int(records[:, 3].max()))
        return self._agreed

    def _done(self, records: npt.NDArray[np.float64], seconds: float, times: StepTimes) -> StepDone:
        steps_done = self._schedule.first_step + self._duties.outcome.num_steps + 1
        last_rank, late_s = last_to_arrive(records[:, 4])
        return StepDone(steps_done, _mean(records), int(records[:, 1].sum()), seconds, times, last_rank, late_s)

    def _forward_loss(self) -> float:
        loss = self._forward()
        self._records.post([loss.loss, loss.num_samples, 0, 0, math.nan])
        return _mean(self._collected())

    def _collected(self) -> npt.NDArray[np.float64]:
        return self._records.collect(Deadline.after(self._timeout_s))


def _mean(records: npt.NDArray[np.float64]) -> float:
    """The mean loss over all ranks' samples, from rows (loss, number of samples, ...)."""
    losses, counts = records[:, 0], records[:, 1]
    return float((losses * counts).sum() / int(counts.sum()))
