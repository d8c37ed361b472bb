"""The reports of one rank: records for the launcher, lines in metrics.jsonl."""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from samovar.membership.progress_table import WorkerState
from samovar.report.records import Notice, Progress, RecordWriter, Tested
from samovar.report.result import WorkerFigures
from samovar.report.run_figures import RunFigures
from samovar.report.sinks import Sink
from samovar.report.steps import Advice, StepDone
from samovar.solver.policy import PolicyConfig
from samovar.strategies.config import StrategyConfig
from samovar.training.evaluation import TestResult
from samovar.training.loop import Observer

# A run without `display` still shows progress.
_SILENCE_S = 1.0


class RunObserver(Observer):
    """Show every `display_interval` steps the mean loss of the last `average_loss` steps, and the speed."""

    def __init__(
        self,
        writer: RecordWriter,
        sinks: Sequence[Sink],
        policy: PolicyConfig,
        num_steps: int,
        display_interval: int,
        average_loss: int,
        advice: Advice,
        shows_test_loss: bool = False,
    ) -> None:
        self._writer = writer
        self._figures = RunFigures(advice, sinks)
        self._policy = policy
        self._num_steps = num_steps
        self._display_interval = display_interval
        self._shows_test_loss = shows_test_loss
        self._losses: deque[float] = deque(maxlen=average_loss)
        self._shown_s = time.monotonic()

    def step_done(self, done: StepDone) -> None:
        self._losses.append(done.loss)
        rate = self._policy.rate(done.steps_done - 1)
        if (sentence := self._figures.step_done(done, rate)) is not None:
            self._writer.write(Notice(level="warning", text=sentence))
        if self._is_due(done):
            self._shown_s = time.monotonic()
            self._writer.write(self._progress(done, rate))

    def tested(self, steps_done: int, net: int, result: TestResult) -> None:
        """Report a test; each test net has its own kind in metrics.jsonl: test, test_1, test_2, ..."""
        loss = result.loss if self._shows_test_loss else None
        values = result.outputs if result.loss is None else {"test_loss": result.loss, **result.outputs}
        self._figures.write(steps_done, "test" if net == 0 else f"test_{net}", values)
        self._writer.write(Tested(step=steps_done, outputs=result.outputs, net=net, loss=loss))

    def ended(self) -> None:
        verdict = self._figures.verdict()
        if verdict is not None:
            self._writer.write(Notice(level="info", text=verdict))

    def _is_due(self, done: StepDone) -> bool:
        if done.steps_done == self._num_steps:
            return True
        if interval := self._display_interval:
            return done.steps_done // interval > (done.steps_done - done.num_steps) // interval
        return time.monotonic() - self._shown_s > _SILENCE_S

    def _progress(self, done: StepDone, rate: float) -> Progress:
        seconds, num_steps = self._figures.seconds_of_recent
        steps_left = self._num_steps - done.steps_done
        return Progress(
            step=done.steps_done,
            total_steps=self._num_steps,
            loss=sum(self._losses) / len(self._losses),
            learning_rate=rate,
            samples_per_second=self._figures.samples_per_second,
            eta_s=seconds / num_steps * steps_left,
        )


def advice_for(strategy: StrategyConfig) -> Advice:
    """The advice by what takes too long, in flags of the command."""
    if strategy.exchanges_weights:
        for_exchange = "a longer --sync-period, or larger batches"
    else:
        rest = "larger batches, or a strategy with a period"
        for_exchange = rest if strategy.has_owners else f"--overlap full, {rest}"
    return Advice(
        if_input="--hold-data, bring the data to a faster disk, or give reading a core",
        if_exchange=for_exchange,
        if_compute="more cores, or --precision bf16 where the CPU has it",
    )


class WorkersObserver(RunObserver):
    """An observer that also writes lines of kind "workers" into metrics.jsonl: lists with a value for each worker."""

    _states: Sequence[WorkerState] = ()

    def workers_seen(self, states: Sequence[WorkerState]) -> None:
        self._states = states

    def _progress(self, done: StepDone, rate: float) -> Progress:
        figures = [worker_figures(state) for state in self._states]
        names = ("steps", "loss", "samples_per_second", "updates", "staleness", "lock_wait_s", "distance", "is_gone")
        values = {name: [getattr(one, name) for one in figures] for name in names}
        self._figures.write(done.steps_done, "workers", values)
        return replace(super()._progress(done, rate), workers=_in_words(self._states))


def worker_figures(state: WorkerState) -> WorkerFigures:
    """The state of a worker, as result.json gives it."""
    return WorkerFigures(
        steps=state.steps_done,
        samples=state.num_samples,
        samples_per_second=state.samples_per_second,
        loss=_known(state.loss),
        updates=state.num_updates,
        staleness=state.staleness,
        lock_wait_s=state.lock_wait_s,
        distance=_known(state.distance),
        is_gone=state.is_gone,
        refused=state.num_refused,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _in_words(states: Sequence[WorkerState]) -> str:
    """The slowest and fastest rank, and the staleness: "rank 1 slowest at 31, rank 0 fastest at 62 samples/s"."""
    rates = {rank: state.samples_per_second for rank, state in enumerate(states) if not state.is_gone}
    if len(rates) < 2:
        return ""
    slowest, fastest = min(rates, key=lambda rank: rates[rank]), max(rates, key=lambda rank: rates[rank])
    text = f"rank {slowest} slowest at {rates[slowest]:,.0f}, rank {fastest} fastest at {rates[fastest]:,.0f} samples/s"
    return f"{text}, staleness {mean_staleness(states):.1f}"


def mean_staleness(states: Sequence[WorkerState]) -> float:
    """The mean staleness over all updates of all workers."""
    counts: list[int] = [sum(column) for column in zip(*(state.staleness for state in states), strict=True)]
    return sum(staleness * count for staleness, count in enumerate(counts)) / max(1, sum(counts))
