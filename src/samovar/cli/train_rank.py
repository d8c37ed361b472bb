"""The training job of one rank, from the configuration to the result."""

import contextlib
import platform
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from samovar import __version__
from samovar.cli import build
from samovar.cli.observer import RunObserver, SilentObserver
from samovar.cli.rank_process import RankContext
from samovar.cli.resume import resume_from
from samovar.cli.snapshots import Saver
from samovar.collectives.records import RecordExchange
from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.data.stream import BatchReader, BatchStream
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import CaffeSolver, load_solver, solver_config
from samovar.report.metrics import MetricsWriter
from samovar.report.records import Finished, Notice, SnapshotWritten, Started
from samovar.report.result import RunResult
from samovar.report.run_folder import RunFolder
from samovar.strategies.config import AUTO
from samovar.strategies.defaults import described
from samovar.strategies.defaults import warnings as strategy_warnings
from samovar.worker.evaluation import Evaluation
from samovar.worker.replicas import gather, require_equal
from samovar.worker.training import NUM_RECORD_FIELDS, Observer, Outcome, Schedule, Training


def run_training(context: RankContext) -> None:
    """Train, save, test, and tell the result; raises SamovarError."""
    config = context.config
    caffe = load_solver(config.model)
    definition = load_net(caffe.net_path)
    seed = build.run_seed(config, caffe)
    with contextlib.ExitStack() as stack:
        reader = build.open_reader(definition.data_layer("TRAIN"), config, seed)
        stack.callback(reader.close)
        net = build.net_for(definition, reader, seed)
        start = (
            None if config.snapshot is None else resume_from(config.snapshot, net, config, context.transport.group.rank)
        )
        learner = build.build_learner(config, caffe, net, context.transport, start)
        test = _test_parts(context, caffe, net, stack)
        first_step = start.step if start is not None else 0
        schedule = _schedule(config, caffe, first_step)
        context.at_boundary(first_step)
        global_batch = build.global_batch_size(config, reader.config)
        notices = (*caffe.warnings, *definition.warnings, *learner.notices, *(start.notices if start else ()))
        if context.is_first:
            _announce(context, caffe, learner, reader, test, schedule, global_batch, notices)
        stream = BatchStream(reader, context.transport.group, global_batch, first_step * caffe.iter_size)
        stack.callback(stream.close)
        observer = stack.enter_context(_observer(context, caffe, learner, schedule))
        training = Training(
            build.build_worker(learner, stream, caffe, config),
            RecordExchange(context.transport, NUM_RECORD_FIELDS),
            schedule,
            _evaluate_function(learner, test),
            observer,
            _save_function(context, caffe, learner),
            context.at_boundary,
            config.timeout_s,
        )
        outcome = training.run()
        _finish(context, learner, outcome, global_batch * caffe.iter_size)


@dataclass(frozen=True, slots=True)
class _TestParts:
    evaluation: Evaluation
    num_samples: int


def _test_parts(
    context: RankContext, caffe: CaffeSolver, net: CaffeNet, stack: contextlib.ExitStack
) -> _TestParts | None:
    if caffe.test_net_path is None:
        return None
    definition = load_net(caffe.test_net_path)
    reader = build.open_reader(definition.data_layer("TEST"), context.config, 0)
    stack.callback(reader.close)
    test_net = build.net_for(definition, reader, 0)
    test_net.share_parameters(net)
    evaluation = build.build_evaluation(
        test_net, reader, caffe.test_iter[0], context.transport, context.config.timeout_s
    )
    return _TestParts(evaluation, len(reader))


def _evaluate_function(learner: build.Learner, test: _TestParts | None) -> Callable[[], dict[str, float]] | None:
    if test is None:
        return None

    def evaluate() -> dict[str, float]:
        with learner.evaluated.in_place():
            return test.evaluation.run()

    return evaluate


def _schedule(config: RunConfig, caffe: CaffeSolver, first_step: int) -> Schedule:
    num_steps = caffe.max_iter if config.iterations is None else config.iterations
    if first_step > num_steps:
        raise InputError(
            f"--snapshot {config.snapshot}: it has {first_step} steps, the run shall have {num_steps}; "
            "raise max_iter or --iterations"
        )
    solver_config(caffe).policy.rate(max(0, num_steps - 1))  # a policy that ends before the run says so now
    return Schedule(
        first_step,
        num_steps,
        test_interval=caffe.test_interval,
        test_at_start=caffe.test_initialization,
        snapshot_interval=caffe.snapshot,
    )


def _announce(
    context: RankContext,
    caffe: CaffeSolver,
    learner: build.Learner,
    reader: BatchReader,
    test: _TestParts | None,
    schedule: Schedule,
    global_batch: int,
    notices: tuple[str, ...],
) -> None:
    config = context.config
    started = Started(
        net_name=learner.net.name or caffe.net_path.stem,
        num_parameters=learner.num_parameters,
        data_name=_data_name(reader.config.source),
        num_train_samples=len(reader),
        num_test_samples=test.num_samples if test else 0,
        workers=config.workers,
        threads_per_worker=config.threads_per_worker,
        worker_cpus=config.cpus,
        batch_per_worker=global_batch // config.workers,
        effective_batch=global_batch * caffe.iter_size,
        base_lr=caffe.base_lr,
        lr_policy=caffe.lr_policy,
        strategy=config.strategy.name,
        collective=_shown_collective(config, learner),
        transport="shm",
        iterations=schedule.num_steps,
        start_step=schedule.first_step,
        run_folder=str(config.out),
    )
    context.writer.write(started)
    if config.strategy.exchanges_weights:
        context.writer.write(Notice(level="info", text=described(config.strategy)))
    for text in (*notices, *strategy_warnings(config.strategy, config.workers)):
        context.writer.write(Notice(level="warning", text=text))


def _shown_collective(config: RunConfig, learner: build.Learner) -> str:
    """The plan, and whether it was chosen here."""
    return f"{learner.collective} ({AUTO})" if config.strategy.collective == AUTO else learner.collective


def _data_name(source: Path) -> str:
    return source.name.removesuffix("_lmdb").removesuffix("_train")


@contextlib.contextmanager
def _observer(
    context: RankContext, caffe: CaffeSolver, learner: build.Learner, schedule: Schedule
) -> Iterator[Observer]:
    if not context.is_first:
        yield SilentObserver()
        return
    with MetricsWriter(RunFolder(context.config.out).metrics, schedule.first_step) as metrics:
        yield RunObserver(
            context.writer,
            metrics,
            learner.solver.config.policy,
            schedule.num_steps,
            caffe.display,
            caffe.average_loss,
        )


def _save_function(context: RankContext, caffe: CaffeSolver, learner: build.Learner) -> Callable[[int], None]:
    folder = RunFolder(context.config.out).snapshots
    saver = Saver(folder, caffe, learner, context.config, context.transport)

    def save(steps_done: int) -> None:
        path = saver.save(steps_done)
        if path is not None:
            context.writer.write(SnapshotWritten(step=steps_done, path=str(path)))

    return save


def _finish(context: RankContext, learner: build.Learner, outcome: Outcome, effective_batch: int) -> None:
    """Compare the replicas; rank 0 tells the result."""
    config = context.config
    bytes_sent = float(context.transport.bytes_sent)
    with learner.evaluated.in_place():
        sha256 = learner.model.weights.sha256(tuple(info.name for info in learner.net.parameter_infos))
    require_equal(context.transport, sha256, config.timeout_s, config.strategy.name)
    all_sent = gather(context.transport, [bytes_sent], config.timeout_s)
    if context.is_first:
        sent_per_step = all_sent.mean() / max(1, outcome.num_steps)
        context.writer.write(
            Finished(result=_result(context, learner, outcome, effective_batch, sha256, float(sent_per_step)))
        )


def _result(
    context: RankContext,
    learner: build.Learner,
    outcome: Outcome,
    effective_batch: int,
    sha256: str,
    bytes_sent_per_step: float,
) -> RunResult:
    config = context.config
    return RunResult(
        net=learner.net.name,
        net_parameters=learner.num_parameters,
        strategy=config.strategy.name,
        collective=_shown_collective(config, learner),
        transport="shm",
        workers=config.workers,
        threads_per_worker=config.threads_per_worker,
        effective_batch=effective_batch,
        steps=outcome.steps_done,
        samples=outcome.num_samples,
        seconds=outcome.seconds,
        samples_per_second=outcome.samples_per_second,
        train_loss=outcome.train_loss if outcome.num_steps else None,
        test_loss=_output(outcome, "loss"),
        test_accuracy=_output(outcome, "accuracy"),
        weights_sha256=sha256,
        replicas_equal=True,
        bytes_sent_per_step=bytes_sent_per_step,
        stopped_by=signal.Signals(outcome.stop_signal).name if outcome.stop_signal else None,
        versions=versions(),
    )


def _output(outcome: Outcome, kind: str) -> float | None:
    """The test output of that name, else the first whose name contains it."""
    outputs = outcome.test_outputs
    names = [kind] if kind in outputs else [name for name in outputs if kind in name.lower()]
    return outputs[names[0]] if names else None


def versions() -> dict[str, str]:
    return {"samovar": __version__, "torch": torch.__version__, "python": platform.python_version()}
