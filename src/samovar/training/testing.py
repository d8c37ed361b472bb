"""The tests of a net on one rank: the job of `samovar test`, and the test nets of a training run."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from samovar.core.device import BF16
from samovar.data.reader import BatchReader
from samovar.frontends.caffe.definition import CaffeNetDefinition, load_net, load_source
from samovar.frontends.caffe.layers.ends import HDF5Output
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import CaffeSolver, TestNet
from samovar.frontends.caffe.weights import load_weights
from samovar.model.half import use_half
from samovar.report.records import Tested, TestedBatch
from samovar.training import build
from samovar.training.context import RankContext
from samovar.training.evaluation import Evaluation, TestResult
from samovar.training.observer import show_values_of_test
from samovar.training.opening import require_same_data
from samovar.training.step import StepLoss, Worker

DEFAULT_NUM_BATCHES = 50  # Caffe's


def run_evaluation(context: RankContext) -> None:
    """Compute mean outputs of the TEST net with the given weights; rank 0 reports them. Raises SamovarError."""
    config = context.config
    definition = load_net(config.model, config.level, config.stages)
    with build.open_reader(definition, "TEST", config, 0) as reader:
        require_same_data(context, reader)
        net = build.net_for(definition, reader, 0, config)
        notices = (*definition.warnings, *load_weights(net, config.weights))
        notices += (*build.computing_notices(config, context.device), *_without_data(definition, reader))
        net.place(context.device)
        if config.precision == BF16:
            use_half(info.parameter for info in net.parameter_infos)
        if definition.debug_info:
            show_values_of_test(context, net)
        num_batches = config.iterations or DEFAULT_NUM_BATCHES
        outputs = _kept_outputs(net, config.hdf5_out, num_batches)
        result = Evaluation(net, reader, num_batches, context.transport, config.timeout_s).run()
        if config.hdf5_out is not None:
            written = [path for output in outputs if (path := output.write(config.hdf5_out)) is not None]
            notices += tuple(f"{path}: written" for path in written)
    if context.is_first:
        for text in notices:
            context.tell("warning", text)
        _tell(context, result, net.loss_weights)


def _without_data(definition: CaffeNetDefinition, reader: BatchReader) -> tuple[str, ...]:
    """A notice that the outputs mean nothing, if a program feeds the net and no files do."""
    if reader.sources or not (inputs := definition.input_shapes("TEST")):
        return ()
    return (
        f"{definition.path}: its TEST phase reads no data, and {', '.join(map(repr, inputs))} are zeros, so these "
        "outputs measure nothing; give a net with data layers",
    )


def _kept_outputs(net: CaffeNet, folder: Path | None, num_batches: int) -> list[HDF5Output]:
    """The HDF5Output layers. They keep their inputs if there is a folder to write into."""
    found = [layer for layer in net.layers if isinstance(layer, HDF5Output)]
    for output in found:
        output.keeps = folder is not None
        if output.keeps and num_batches > 1:
            raise output.spec.error("HDF5Output writes one forward pass; test with --iterations 1", "type")
    return found


def _tell(context: RankContext, result: TestResult, loss_weights: dict[str, float]) -> None:
    """Report the result; as Caffe, also each batch."""
    for number, outputs in enumerate(result.batches if context.config.by_caffe else ()):
        context.writer.write(TestedBatch(batch=number, outputs=outputs))
    context.writer.write(Tested(step=None, outputs=result.outputs, loss=result.loss, loss_weights=loss_weights))


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
