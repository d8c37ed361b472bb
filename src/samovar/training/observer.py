"""The reports of one rank: records for the launcher, lines in metrics.jsonl, and what `samovar caffe train` shows."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from samovar.config import RunConfig
from samovar.frontends.caffe import debug_info
from samovar.frontends.caffe.debug_info import DebugInfo
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import CaffeSolver
from samovar.membership.progress_table import WorkerState
from samovar.model.half import NetOutput
from samovar.report.records import Iterated, LastLoss, Notice, Progress, RecordWriter, Tested, Valued, ValueLine
from samovar.report.result import WorkerFigures
from samovar.report.sinks import Sink
from samovar.report.steps import Advice, RunFigures, StepDone
from samovar.solver.policy import PolicyConfig
from samovar.strategies.config import StrategyConfig
from samovar.training.build import Learner
from samovar.training.context import RankContext
from samovar.training.evaluation import TestResult, named_values
from samovar.training.loop import Observer, Requests, num_steps_of

# A run without `display` still shows progress.
_SILENCE_S = 1.0
_LINES_OF_A_RECORD = 200


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


class CaffeObserver(Observer):
    """Report every `display`-th iteration, counted from 0, with the outputs of its last forward pass on this rank.

    Each step must be reported before the next one begins (`Schedule.is_prompt`).
    """

    def __init__(
        self,
        writer: RecordWriter,
        net: CaffeNet,
        caffe: CaffeSolver,
        policy: PolicyConfig,
        test_loss_weights: Sequence[Mapping[str, float]],
    ) -> None:
        self._writer = writer
        self._policy = policy
        self._display = caffe.display
        self._losses: deque[float] = deque(maxlen=caffe.average_loss)
        self._tells_test_loss = caffe.test_compute_loss
        self._test_loss_weights = test_loss_weights
        self._loss_weights = net.loss_weights
        self._outputs: Mapping[str, torch.Tensor] = {}
        self._shown_s = time.monotonic()
        self._shown_iteration: int | None = None
        if caffe.display:
            net.register_forward_hook(self._keep_outputs)

    def step_done(self, done: StepDone) -> None:
        self._losses.append(done.loss)
        iteration = done.steps_done - 1
        if self._display and iteration % self._display == 0:
            self._writer.write(self._iterated(iteration))

    def tested(self, steps_done: int, net: int, result: TestResult) -> None:
        loss = (result.loss or 0.0) if self._tells_test_loss else None
        weights = self._test_loss_weights[net]
        self._writer.write(Tested(step=steps_done, outputs=result.outputs, net=net, loss=loss, loss_weights=weights))

    def forwarded(self, steps_done: int, loss: float) -> None:
        self._losses.append(loss)
        self._writer.write(LastLoss(step=steps_done, loss=self._smoothed()))

    def _keep_outputs(self, _net: torch.nn.Module, _batch: object, output: NetOutput) -> None:
        self._outputs = output.scalars

    def _smoothed(self) -> float:
        return sum(self._losses) / len(self._losses)

    def _iterated(self, iteration: int) -> Iterated:
        now_s = time.monotonic()
        since = 0 if self._shown_iteration is None else iteration - self._shown_iteration
        told = Iterated(
            iteration=iteration,
            num_iterations=since,
            display=self._display,
            seconds=now_s - self._shown_s,
            loss=self._smoothed(),
            learning_rate=self._policy.rate(iteration),
            outputs=named_values(self._outputs),
            loss_weights=self._loss_weights,
        )
        self._shown_s, self._shown_iteration = now_s, iteration
        return told


def shows_values(
    context: RankContext, caffe: CaffeSolver, learner: Learner, tests: Sequence[CaffeNet]
) -> Callable[[int], Requests]:
    """The function to call at each boundary between two steps, instead of the context's.

    With the solver's debug_info, rank 0 shows the values of the training net in the displayed iterations, and those of
    the test nets in every pass.
    """
    if not (caffe.debug_info and context.is_first):
        return context.at_boundary
    for net in tests:
        show_values_of_test(context, net)
    watch = DebugInfo(learner.net, partial(_tell, context, False))
    learner.model.watch = watch

    def at_boundary(steps_done: int) -> Requests:
        if steps_done < num_steps_of(context.config, caffe):
            watch.is_on = bool(caffe.display) and steps_done % caffe.display == 0
        return context.at_boundary(steps_done)

    return at_boundary


def debug_notices(config: RunConfig, caffe: CaffeSolver) -> tuple[str, ...]:
    """A notice that asynchronous workers show no values."""
    if not (config.strategy.is_async and caffe.debug_info):
        return ()
    return (
        f"{caffe.path}: debug_info has no effect with strategy {config.strategy.name}, whose workers step "
        "independently; train with --strategy sync to see values",
    )


def show_values_of_test(context: RankContext, net: CaffeNet) -> None:
    """Show the values of every pass of a test net on rank 0."""
    if context.is_first:
        DebugInfo(net, partial(_tell, context, True))


def _tell(context: RankContext, is_test: bool, lines: Sequence[debug_info.LayerValue]) -> None:
    told = [ValueLine(kind=line.kind, text=line.text) for line in lines]
    for start in range(0, len(told), _LINES_OF_A_RECORD):
        context.writer.write(Valued(lines=tuple(told[start : start + _LINES_OF_A_RECORD]), is_test=is_test))
