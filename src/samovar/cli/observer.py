"""How rank 0 tells what happens: records for the launcher, lines in metrics.jsonl."""

import time
from collections import deque

from samovar.report.metrics import MetricsWriter
from samovar.report.pipe import RecordWriter
from samovar.report.records import Progress, Tested
from samovar.solver.policy import PolicyConfig
from samovar.worker.training import StepDone

# A run without `display` still shows that it lives.
_SILENCE_S = 1.0
_RATE_STEPS = 50


class RunObserver:
    """Shows every `display_interval` steps the mean loss of the last `average_loss` steps, and the speed."""

    def __init__(
        self,
        writer: RecordWriter,
        metrics: MetricsWriter,
        policy: PolicyConfig,
        num_steps: int,
        display_interval: int,
        average_loss: int,
    ) -> None:
        self._writer = writer
        self._metrics = metrics
        self._policy = policy
        self._num_steps = num_steps
        self._display_interval = display_interval
        self._losses: deque[float] = deque(maxlen=average_loss)
        self._recent: deque[StepDone] = deque(maxlen=_RATE_STEPS)
        self._shown_s = time.monotonic()

    def step_done(self, done: StepDone) -> None:
        self._losses.append(done.loss)
        self._recent.append(done)
        rate = self._policy.rate(done.steps_done - 1)
        values = {
            "loss": done.loss,
            "learning_rate": rate,
            "samples": done.num_samples,
            "seconds": done.seconds,
        }
        self._metrics.append(done.steps_done, "train", values)
        if self._is_due(done.steps_done):
            self._shown_s = time.monotonic()
            self._writer.write(self._progress(done.steps_done, rate))

    def tested(self, steps_done: int, outputs: dict[str, float]) -> None:
        self._metrics.append(steps_done, "test", outputs)
        self._writer.write(Tested(step=steps_done, outputs=outputs))

    def _is_due(self, steps_done: int) -> bool:
        if steps_done == self._num_steps:
            return True
        if self._display_interval:
            return steps_done % self._display_interval == 0
        return time.monotonic() - self._shown_s > _SILENCE_S

    def _progress(self, steps_done: int, rate: float) -> Progress:
        seconds = sum(done.seconds for done in self._recent)
        steps_left = self._num_steps - steps_done
        return Progress(
            step=steps_done,
            total_steps=self._num_steps,
            loss=sum(self._losses) / len(self._losses),
            learning_rate=rate,
            samples_per_second=sum(done.num_samples for done in self._recent) / seconds if seconds > 0 else 0.0,
            eta_s=seconds / len(self._recent) * steps_left,
        )


class SilentObserver:
    """The observer of the other ranks: they see the same numbers."""

    def step_done(self, done: StepDone) -> None:
        """Rank 0 tells."""

    def tested(self, steps_done: int, outputs: dict[str, float]) -> None:
        """Rank 0 tells."""
