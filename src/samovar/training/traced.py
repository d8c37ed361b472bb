"""A worker's step in a trace."""

from collections.abc import Callable

from samovar.core.layout import Bucket
from samovar.core.trace import Span, Trace, TraceWindow
from samovar.model.model import LayerSpans
from samovar.training.step import Updates
from samovar.training.times import Laps, StepTimes


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
        """The step is over."""
        if self._trace.is_active:
            self._add("step", f"step {self._steps_begun}", self._started_s)
            if self._steps_begun == self._window.last_step:
                self.end()
        return super().times()

    def end(self) -> None:
        """Nothing more goes into the trace."""
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
