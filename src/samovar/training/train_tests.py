"""The test nets of a training run."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from samovar.frontends.caffe.definition import load_source
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import CaffeSolver, TestNet
from samovar.frontends.caffe.weights import load_weights
from samovar.training import build
from samovar.training.context import RankContext
from samovar.training.evaluation import Evaluation, TestResult
from samovar.training.same_data import require_same_data
from samovar.training.step import StepLoss, Worker


@dataclass(frozen=True, slots=True)
class TestPart:
    """One test net, which shares the training net's parameters."""

    evaluation: Evaluation
    net: CaffeNet
    num_samples: int


def test_parts(
    context: RankContext, caffe: CaffeSolver, net: CaffeNet, stack: contextlib.ExitStack
) -> tuple[TestPart, ...]:
    """The solver's test nets in order; `stack` closes what they read."""
    return tuple(_part(context, caffe, test, number, net, stack) for number, test in enumerate(caffe.test_nets))


def _part(
    context: RankContext, caffe: CaffeSolver, test: TestNet, number: int, net: CaffeNet, stack: contextlib.ExitStack
) -> TestPart:
    config = context.config
    definition = load_source(test.source)
    reader = stack.enter_context(build.open_reader(definition, "TEST", config, 0))
    require_same_data(context, reader)
    test_net = build.net_for(definition, reader, 0, config)
    if {info.name for info in test_net.parameter_infos} - {info.name for info in net.parameter_infos}:
        load_weights(test_net, caffe.starting_weights(config.weights, config.snapshot))  # what only this net has
    test_net.share_parameters(net)
    test_net.place(net.device)
    evaluation = Evaluation(test_net, reader, test.num_batches, context.transport, config.timeout_s, number)
    return TestPart(evaluation, test_net, len(reader))


def evaluate_function(learner: build.Learner, tests: tuple[TestPart, ...]) -> Callable[[], Iterator[TestResult]]:
    """A function that runs each test in turn, with the evaluated weights."""

    def evaluate() -> Iterator[TestResult]:
        if not tests:
            return
        with learner.with_evaluated_weights(), learner.model.outside_of_a_step():
            for test in tests:
                yield test.evaluation.run()

    return evaluate


def forward_function(learner: build.Learner, worker: Worker) -> Callable[[], StepLoss]:
    """A function for one more forward pass, with weights that have all arrived."""

    def forward() -> StepLoss:
        with learner.with_evaluated_weights(), learner.model.outside_of_a_step():
            return worker.forward()

    return forward
