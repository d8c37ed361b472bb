"""--trace: a rank records its steps into a file, and rank 0 merges all files into one timeline."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from samovar.core.layout import Bucket
from samovar.core.trace import Span, Trace, TraceWindow
from samovar.model.model import LayerSpans
from samovar.report.records import Notice
from samovar.report.run_folder import RunFolder
from samovar.report.timeline import PartHeader, merge, write_part
from samovar.training.build import Learner
from samovar.training.context import RankContext
from samovar.training.evaluation import TestResult
from samovar.training.loop import Observer, StepDone
from samovar.training.step import Laps, StepTimes, Updates


class TracedLaps(Laps):
    """Laps that begin with step `first_step`, counted from 0; the steps of `window` go into `trace`.

    `ended()` is called when the last of these is over, or they are cut short.
    """

    def __init__(
        self, trace: Trace, window: TraceWindow, first_step: int, layers: LayerSpans, ended: Callable[[], None]
    ) -> None:
        super().__init__(trace.now_s)
        self._trace = trace
        self._window = window
        self._layers = layers
        self._ended = ended
        self._steps_begun = first_step
        self._started_s = self._forward_s = 0.0

    def start(self) -> None:
        self._steps_begun += 1
        if not self._trace.is_active and self._window.first_step <= self._steps_begun <= self._window.last_step:
            self._trace.is_active = True
            self._layers.attach()
        super().start()
        self._started_s = self._forward_s = self._last_s

    def lap(self, kind: str) -> None:
        before_s = self._last_s
        super().lap(kind)
        if not self._trace.is_active:
            return
        if kind == "data_s":
            self._add("data", "wait for data", before_s)
            self._forward_s = self._last_s
        elif kind == "backward_s":  # the forward pass was over when the last lap ended
            self._layers.passed()
            self._trace.add(Span("forward", "forward", self._forward_s, before_s))
            self._add("backward", "backward", before_s)

    def times(self) -> StepTimes:
        """Note that the step is over."""
        if self._trace.is_active:
            self._add("step", f"step {self._steps_begun}", self._started_s)
            if self._steps_begun == self._window.last_step:
                self.end()
        return super().times()

    def end(self) -> None:
        """End the recording."""
        if self._trace.is_active:
            self._layers.detach()
            self._trace.is_active = False
            self._ended()

    def _add(self, stream: str, name: str, start_s: float) -> None:
        self._trace.add(Span(stream, name, start_s, self._last_s))


class TracedUpdates:
    """A solver's updates, each with a span."""

    def __init__(self, solver: Updates, trace: Trace) -> None:
        self._solver = solver
        self._trace = trace

    def update(self, step: int, bucket: Bucket, gradient_scale: float) -> None:
        start_s = self._trace.now_s()
        self._solver.update(step, bucket, gradient_scale)
        self._trace.add(Span("update", f"update bucket {bucket.index}", start_s, self._trace.now_s()))


class Tracing:
    """This rank's trace of the steps in `window`.

    Each rank writes its part when the last of these steps ends, or the training does. Rank 0 merges them in a thread
    once all ranks have passed that step, so no rank waits for it. The launcher always deletes the parts at the end.
    """

    def __init__(self, context: RankContext, window: TraceWindow) -> None:
        group = context.transport.group
        self.trace = Trace(group.rank)
        self.window = window
        self._context = context
        self._folder = RunFolder(context.config.out)
        self._parts = [self._folder.trace_part(rank) for rank in range(group.world_size)]
        self._laps: TracedLaps | None = None
        self._is_written = False
        self._merging: threading.Thread | None = None

    def attach(self, learner: Learner, first_step: int) -> tuple[Updates, Laps | None]:
        """The solver and laps that a worker uses from step `first_step`, counted from 0."""
        layers = LayerSpans([(step.layer.spec.name, step.layer) for step in learner.net.steps], self.trace)
        self._laps = TracedLaps(self.trace, self.window, first_step, layers, self._write)
        return TracedUpdates(learner.solver, self.trace), self._laps

    def observing(self, observer: Observer) -> Observer:
        """`observer`, seen by this trace."""
        return TraceObserver(observer, self)

    def end(self) -> None:
        """Note that training is over, perhaps inside the window."""
        if self._laps is not None:
            self._laps.end()

    def begin_merge(self) -> None:
        """On rank 0, when all ranks have ended their traces: begin to merge their parts into a timeline."""
        if self._context.is_first and self._is_written and self._merging is None:
            self._merging = threading.Thread(target=self._merge, name="samovar-trace", daemon=True)
            self._merging.start()

    def merge(self, steps_done: int) -> None:
        """Do the same at the end of the training, after `steps_done` steps, and wait for the timeline."""
        self.begin_merge()
        if self._merging is not None:
            self._merging.join()
        elif self._context.is_first:
            self._tell("warning", f"--trace steps={self.window}: training ended after step {steps_done}; no trace")

    def _merge(self) -> None:
        try:
            self._tell_of(merge(self._parts, self._folder.trace, self._about()))
        except OSError as error:
            self._tell("warning", f"{self._folder.trace} cannot be written: {error.strerror or error}; no trace")
        finally:
            _remove(self._parts)

    def _about(self) -> dict[str, object]:
        config = self._context.config
        return {"steps": str(self.window), "workers": config.workers, "strategy": config.strategy.name}

    def _tell_of(self, headers: Sequence[PartHeader]) -> None:
        self._tell("info", f"trace of steps {self.window}: {self._folder.trace} (open it at ui.perfetto.dev)")
        left_out = [f"{header.num_left_out:,} of rank {header.rank}" for header in headers if header.num_left_out]
        if left_out:
            self._tell("warning", f"the trace is full and lacks spans ({', '.join(left_out)}); trace fewer steps")

    def _write(self) -> None:
        spans = self.trace.take()
        first_s = min((span.start_s for span in spans), default=None)
        header = PartHeader(self.trace.rank, self.trace.clock_offset_s, self.trace.num_left_out, first_s)
        self._is_written = True
        try:
            write_part(self._parts[self.trace.rank], header, spans)
        except OSError as error:
            self._tell("warning", f"the trace of rank {self.trace.rank} cannot be written: {error.strerror or error}")

    def _tell(self, level: str, text: str) -> None:
        self._context.writer.write(Notice(level=level, text=text))


class NoTracing:
    """A replacement for `Tracing` that records nothing: no hook, no cost."""

    trace = None

    def attach(self, learner: Learner, _first_step: int) -> tuple[Updates, Laps | None]:
        return learner.solver, None

    def observing(self, observer: Observer) -> Observer:
        return observer

    def merge(self, steps_done: int) -> None:
        """Do nothing."""


def tracing_of(context: RankContext) -> Tracing | NoTracing:
    """The tracing that --trace asks for."""
    return NoTracing() if context.config.trace is None else Tracing(context, context.config.trace)


class TraceObserver:
    """An observer that passes all to `inner`, and starts the merge of the trace at the right moment."""

    def __init__(self, inner: Observer, tracing: Tracing) -> None:
        self._inner = inner
        self._tracing = tracing

    def step_done(self, done: StepDone) -> None:
        """Pass it on; all ranks have ended the step, and have written their parts."""
        self._inner.step_done(done)
        if done.steps_done == self._tracing.window.last_step:
            self._tracing.begin_merge()

    def tested(self, steps_done: int, net: int, result: TestResult) -> None:
        self._inner.tested(steps_done, net, result)

    def forwarded(self, steps_done: int, loss: float) -> None:
        self._inner.forwarded(steps_done, loss)

    def ended(self) -> None:
        self._tracing.end()
        self._inner.ended()


def _remove(parts: list[Path]) -> None:
    for part in parts:
        with suppress(OSError):
            part.unlink(missing_ok=True)
