"""Collectives that show in a trace when their runs began and when they were seen to be complete."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from samovar.collectives.codecs import Codec
from samovar.collectives.encoded import EncodedRunner
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.execute import PlanRunner
from samovar.collectives.plan import Plan
from samovar.core.clock import Deadline
from samovar.core.trace import Span, Trace
from samovar.transports.base import Region, Transport

EXCHANGE, IN_FLIGHT = "exchange", "in flight"


@runtime_checkable
class Watched(Protocol):
    """A runner that can be asked how far its background run is."""

    def is_complete(self) -> bool: ...


class TracedRunner:
    """`inner`, with a span for each of its calls and one for each run in the background.

    A background run ends in the trace when it was first seen to be complete: when the rank began or awaited another,
    or at its own `finish`. `sends`, `takes`: whether other ranks wait for what this one gives, and the reverse.
    """

    def __init__(self, name: str, inner: PlanRunner, trace: Trace, in_flight: "list[TracedRunner]") -> None:
        self.sends = self.takes = True
        self._name = name
        self._inner = inner
        self._trace = trace
        self._in_flight = in_flight
        self._num_runs = 0
        self._started_s: float | None = None

    @property
    def last_steps(self) -> int:
        return self._inner.last_steps

    @last_steps.setter
    def last_steps(self, steps: int) -> None:
        self._inner.last_steps = steps

    def run(self, deadline: Deadline) -> None:
        self._num_runs += 1
        start_s = self._trace.now_s()
        self._inner.run(deadline)
        self._add(EXCHANGE, self._name, start_s, sends=self.sends, takes=self.takes)

    def start(self) -> None:
        self._num_runs += 1
        self._look_at_others()
        start_s = self._trace.now_s()
        self._inner.start()
        self._add(EXCHANGE, f"post {self._name}", start_s, sends=self.sends)
        if self._trace.is_active:
            self._started_s = start_s
            self._in_flight.append(self)

    def finish(self, deadline: Deadline) -> None:
        self._look_at_others()
        start_s = self._trace.now_s()
        self._inner.finish(deadline)
        self._land()
        self._add(EXCHANGE, f"wait {self._name}", start_s)

    def is_complete(self) -> bool:
        return isinstance(self._inner, Watched) and self._inner.is_complete()

    def _look_at_others(self) -> None:
        if self._trace.is_active:
            for runner in [runner for runner in self._in_flight if runner.is_complete()]:
                runner._land()

    def _land(self) -> None:
        """The background run is complete, as far as anybody here can know."""
        if self._started_s is not None:
            self._in_flight.remove(self)
            self._add(IN_FLIGHT, self._name, self._started_s, takes=self.takes)
            self._started_s = None

    def _add(self, stream: str, name: str, start_s: float, sends: bool = False, takes: bool = False) -> None:
        if not self._trace.is_active:
            return
        run = f"{self._name} #{self._num_runs}"
        stop_s = self._trace.now_s()
        self._trace.add(Span(stream, name, start_s, stop_s, run if sends else None, run if takes else None))


class TracedEncodedRunner(TracedRunner):
    """The same of an encoded all-reduce."""

    def __init__(self, name: str, inner: EncodedRunner, trace: Trace, in_flight: list[TracedRunner]) -> None:
        super().__init__(name, inner, trace, in_flight)
        self.residual = inner.residual
        self.give_back = inner.give_back


class TracedCollectives(PlannedCollectives):
    """Samovar's own plans, each run of them in `trace`."""

    def __init__(self, transport: Transport, all_reduce_name: Callable[[int], str], trace: Trace) -> None:
        super().__init__(transport, all_reduce_name)
        self._trace = trace
        self._in_flight: list[TracedRunner] = []

    def planned(self, name: str, plan: Plan, buffer: Region) -> TracedRunner:
        return TracedRunner(name, super().planned(name, plan, buffer), self._trace, self._in_flight)

    def encoded_all_reduce(self, name: str, buffer: Region, codec: Codec) -> TracedEncodedRunner:
        runner = super().encoded_all_reduce(name, buffer, codec)
        return TracedEncodedRunner(f"{name} as {codec.name}", runner, self._trace, self._in_flight)

    def reduce_to(self, name: str, buffer: Region, root: int) -> PlanRunner:
        runner = super().reduce_to(name, buffer, root)
        assert isinstance(runner, TracedRunner)
        runner.takes = self.group.rank == root
        runner.sends = not runner.takes
        return runner

    def broadcast_from(self, name: str, buffer: Region, root: int) -> PlanRunner:
        runner = super().broadcast_from(name, buffer, root)
        assert isinstance(runner, TracedRunner)
        runner.sends = self.group.rank == root
        runner.takes = not runner.sends
        return runner
