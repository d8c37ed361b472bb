"""--trace in `samovar train`: what a rank records, and when rank 0 makes the timeline."""

from functools import partial

from samovar.core.layout import Bucket
from samovar.core.trace import Span, Trace
from samovar.model.layer_spans import LayerSpans
from samovar.report.records import Notice
from samovar.report.run_folder import RunFolder
from samovar.report.steps import Laps, StepDone
from samovar.report.tracing import Tracing, Voice
from samovar.training.build import Learner
from samovar.training.context import RankContext
from samovar.training.evaluation import TestResult
from samovar.training.loop import Observer
from samovar.training.step import Updates


class TracedUpdates:
    """A solver's updates, each with a span."""

    def __init__(self, solver: Updates, trace: Trace) -> None:
        self._solver = solver
        self._trace = trace

    def update(self, step: int, bucket: Bucket, gradient_scale: float) -> None:
        start_s = self._trace.now_s()
        self._solver.update(step, bucket, gradient_scale)
        self._trace.add(Span("update", f"update bucket {bucket.index}", start_s, self._trace.now_s()))


class RunTracing:
    """This rank's trace. The launcher always deletes the ranks' parts at the end."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self.trace = tracing.trace

    def attach(self, learner: Learner, first_step: int) -> tuple[Updates, Laps | None]:
        """The solver and laps that a worker uses from step `first_step`, counted from 0."""
        layers = LayerSpans([(step.layer.spec.name, step.layer) for step in learner.net.steps], self.trace)
        return TracedUpdates(learner.solver, self.trace), self._tracing.laps(layers, first_step)

    def observing(self, observer: Observer) -> Observer:
        """`observer`, seen by this trace."""
        return TraceObserver(observer, self._tracing)

    def merge(self, steps_done: int) -> None:
        """Wait for the timeline, at the end of the training after `steps_done` steps."""
        self._tracing.merge(steps_done)


class NoTracing:
    """A replacement for `RunTracing` that records nothing: no hook, no cost."""

    trace = None

    def attach(self, learner: Learner, _first_step: int) -> tuple[Updates, Laps | None]:
        return learner.solver, None

    def observing(self, observer: Observer) -> Observer:
        return observer

    def merge(self, steps_done: int) -> None:
        """Do nothing."""


def tracing_of(context: RankContext) -> RunTracing | NoTracing:
    """The tracing that --trace asks for."""
    config, group = context.config, context.transport.group
    if config.trace is None:
        return NoTracing()
    say = Voice(partial(_tell, context, "info"), partial(_tell, context, "warning"))
    about: dict[str, object] = {"strategy": config.strategy.name}
    folder = RunFolder(config.out)
    return RunTracing(Tracing(Trace(group.rank), config.trace, group.world_size, folder, about, say))


def _tell(context: RankContext, level: str, text: str) -> None:
    context.writer.write(Notice(level=level, text=text))


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
