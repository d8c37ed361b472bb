"""The records of rank 0 of `samovar caffe train`: the lines that Caffe would print, debug_info included."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from samovar.config import RunConfig
from samovar.frontends.caffe import debug_info
from samovar.frontends.caffe.debug_info import DebugInfo
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import CaffeSolver
from samovar.model.half import NetOutput
from samovar.report.records import Iterated, LastLoss, RecordWriter, Tested, Valued, ValueLine
from samovar.report.steps import StepDone
from samovar.solver.policy import PolicyConfig
from samovar.training.build import Learner
from samovar.training.context import RankContext
from samovar.training.evaluation import TestResult, named_values
from samovar.training.loop import Observer, Requests, num_steps_of


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


_LINES_OF_A_RECORD = 200


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
