"""--trace in `samovar train`: what a rank records, and when rank 0 makes the timeline."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from samovar.collectives.engine import RecordExchange
from samovar.core.clock import Deadline
from samovar.core.group import Host
from samovar.core.layout import Bucket
from samovar.core.trace import Span, Trace
from samovar.model.layer_spans import LayerSpans
from samovar.report.run_folder import RunFolder
from samovar.report.steps import Laps, StepDone
from samovar.report.tracing import Tracing, Voice
from samovar.training.build import Learner
from samovar.training.context import RankContext
from samovar.training.evaluation import TestResult
from samovar.training.loop import Observer
from samovar.training.step import Updates
from samovar.transports.hosts import HostClocks


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


class HostsTracing(RunTracing):
    """The same on several hosts. At the end rank 0 reads the parts of all ranks out of their memory.

    Each host's clock is measured before the first step and after the last one. Between them its lead is on a line.
    """

    def __init__(self, tracing: Tracing, context: RankContext, hosts: Sequence[Host]) -> None:
        super().__init__(tracing)
        self._transport, self._deadline = context.transport, partial(Deadline.after, context.config.timeout_s)
        self._clocks = HostClocks(context.transport, hosts, self._deadline, self.trace.now_s)
        self._before = (0.0, 0.0)

    def attach(self, learner: Learner, first_step: int) -> tuple[Updates, Laps | None]:
        self._before = (self.trace.now_s(), self._clocks.lead_s())
        return super().attach(learner, first_step)

    def observing(self, observer: Observer) -> Observer:
        return TraceObserver(observer, self._tracing, merges_early=False)

    def merge(self, steps_done: int) -> None:
        after = (self.trace.now_s(), self._clocks.lead_s())
        times_s, leads_s = zip(self._before, after, strict=True)
        part = self._tracing.own_part(lambda moment_s: -float(np.interp(moment_s, times_s, leads_s)))
        own, sizes = np.frombuffer(part, np.uint8), RecordExchange(self._transport, 1)
        of_all = sizes.gather([len(own)], self._deadline())[:, 0].astype(int).tolist()
        window = self._transport.open_window("trace", max(*of_all, 1), 0)
        window.put(self.trace.rank, 0, own)
        sizes.gather([0], self._deadline())  # all have written
        for rank, size in enumerate(of_all if self.trace.rank == 0 else []):
            content = np.empty(size, np.uint8)
            window.get(rank, 0, content)
            self._tracing.take_part(rank, content.tobytes())
        super().merge(steps_done)


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
    say = Voice(partial(context.tell, "info"), partial(context.tell, "warning"))
    about: dict[str, object] = {"strategy": config.strategy.name}
    tracing = Tracing(Trace(group.rank), config.trace, group.world_size, RunFolder(config.out), about, say)
    return RunTracing(tracing) if config.hosts is None else HostsTracing(tracing, context, config.hosts.hosts)


class TraceObserver(Observer):
    """An observer that passes all to `inner`, and starts the merge of the trace as soon as all parts are written."""

    def __init__(self, inner: Observer, tracing: Tracing, merges_early: bool = True) -> None:
        self._inner = inner
        self._tracing = tracing
        self._merges_early = merges_early

    def step_done(self, done: StepDone) -> None:
        """Pass it on; all ranks have ended the step, and have written their parts."""
        self._inner.step_done(done)
        if self._merges_early and done.steps_done == self._tracing.window.last_step:
            self._tracing.begin_merge()

    def tested(self, steps_done: int, net: int, result: TestResult) -> None:
        self._inner.tested(steps_done, net, result)

    def forwarded(self, steps_done: int, loss: float) -> None:
        self._inner.forwarded(steps_done, loss)

    def ended(self) -> None:
        self._tracing.end()
        self._inner.ended()
