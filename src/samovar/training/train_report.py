"""The reports of a training run: its start, its progress and its result."""

import contextlib
import platform
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch

import samovar
from samovar.collectives.cost import ELEMENT_BYTES
from samovar.config import RunConfig
from samovar.core.plain import to_plain
from samovar.frontends.caffe.solver import CaffeSolver
from samovar.report.metrics import MetricsWriter
from samovar.report.records import SnapshotWritten, Started
from samovar.report.result import RunResult, output_named
from samovar.report.run_folder import RunFolder
from samovar.report.sinks import MetricsChoice, Sink, close_all, open_sinks
from samovar.strategies.defaults import described
from samovar.strategies.defaults import warnings as strategy_warnings
from samovar.strategies.traits import AUTO, NONE
from samovar.training import bucket_cut, build
from samovar.training.context import RankContext
from samovar.training.loop import Observer, Outcome, Schedule
from samovar.training.observer import CaffeObserver, RunObserver, advice_for, debug_notices
from samovar.training.opening import Opened
from samovar.training.snapshots import make_saver
from samovar.training.testing import TestPart

_Observer = TypeVar("_Observer", bound=RunObserver)


def announce(
    opened: Opened,
    learner: build.Learner,
    tests: tuple[TestPart, ...],
    schedule: Schedule,
    start_notices: tuple[str, ...],
) -> None:
    context, caffe, reader, global_batch = opened.context, opened.caffe, opened.reader, opened.global_batch
    config = context.config
    started = Started(
        net_name=learner.net.name or caffe.net.path.stem,
        num_parameters=learner.num_parameters,
        # The first source's name, without the endings for its format and phase.
        data_name=next((s.name.removesuffix("_lmdb").removesuffix("_train") for s in reader.sources), "no data files"),
        num_train_samples=len(reader),
        num_test_samples=tests[0].num_samples if tests else 0,
        workers=config.workers,
        threads_per_worker=config.threads_per_worker,
        worker_cpus=config.cpus,
        batch_per_worker=global_batch // config.workers,
        effective_batch=global_batch * caffe.iter_size,
        base_lr=caffe.base_lr,
        lr_policy=caffe.lr_policy,
        strategy=config.strategy.name,
        collective=_shown_collective(config, learner),
        transport=transport_of(config) if config.box is None else f"box {config.box}",
        iterations=schedule.num_steps,
        start_step=schedule.first_step,
        how="joined" if config.join else "" if config.snapshot is None else "resumed",
        run_folder=str(config.out),
        buckets=bucket_cut.described(config, learner.buckets),
    )
    context.writer.write(started)
    warned = (*_warnings(opened, learner, schedule), *start_notices)
    for level, texts in (("info", _decided(opened)), ("warning", warned)):
        for text in texts:
            context.tell(level, text)


def _decided(opened: Opened) -> Iterator[str]:
    """Sentences on the settings of the strategy and of its recipe; where batches add up unasked, on the step's rate."""
    config, caffe = opened.context.config, opened.caffe
    own, workers = opened.reader.batch_size * caffe.iter_size, config.workers
    if config.strategy.exchanges_weights or config.strategy.codec is not None:
        yield described(config.strategy)
    if config.used_recipe is not None and opened.changes:
        changed = ", ".join(opened.changes)
        yield f"recipe of {config.strategy.name}, for one worker's accuracy from the same samples: {changed}"
    elif workers > 1 and config.leaves_batch and not config.by_caffe and config.strategy.traits.recipe is not None:
        yield (
            f"{workers} workers x batch {own:,} make a step of {workers * own:,} samples at rate {caffe.base_lr:g}, as "
            f"in Caffe; --recipe auto shares a batch of {own:,}, and keeps one worker's accuracy"
        )


def _warnings(opened: Opened, learner: build.Learner, schedule: Schedule) -> Iterator[str]:
    config, caffe = opened.context.config, opened.caffe
    if not config.by_caffe:
        yield from caffe.only_for_caffe
    yield from (*caffe.warnings, *debug_notices(config, caffe), *opened.definition.warnings, *learner.notices)
    if config.shares_batch and config.workers > 1 and (losses := learner.net.uneven_losses):
        yield (
            f"{', '.join(losses)}: this loss is a sum, or leaves out labels, so {config.workers} workers that share a "
            "batch weigh it otherwise than one worker. For Caffe's steps give --batch-mode per-worker"
        )
    if config.workers > 1 and (config.shares_batch or config.large_batch is not None):
        uneven, mixing = learner.net.uneven_losses, learner.net.mixing_layers
        if cut := [each for each in mixing if each not in uneven and not each.endswith("(BatchNorm)")]:
            yield (
                f"{', '.join(cut)}: what comes out for a sample depends on others of its batch. {config.workers} "
                "workers that share one compute something else than one. For whole batches give --batch-mode per-worker"
            )
    if config.shuffle and len(set(lengths := opened.reader.lengths)) > 1:
        records = " and ".join(f"{length:,}" for length in lengths)
        yield f"data layers have {records} records, so --shuffle does not pair them; for pairs give equally many"
    yield from strategy_warnings(config.strategy, config.workers, range(schedule.first_step, schedule.num_steps))


def transport_of(config: RunConfig) -> str:
    """The transports of weights and gradients."""
    if config.transport != AUTO:
        return config.transport
    if config.hosts is None:
        return "shm"
    return "shm, tcp" if max(config.hosts.sizes) > 1 else "tcp"


def _shown_collective(config: RunConfig, learner: build.Learner) -> str:
    """The plan, and whether it was chosen here; empty if workers sum nothing together."""
    if config.strategy.is_async and config.strategy.group_size is None:
        return ""
    return f"{learner.collective} ({AUTO})" if config.strategy.collective == AUTO else learner.collective


@contextlib.contextmanager
def run_observer(
    context: RankContext, caffe: CaffeSolver, learner: build.Learner, tests: tuple[TestPart, ...], schedule: Schedule
) -> Iterator[Observer]:
    if not context.is_first:
        yield Observer()  # the others see the same numbers
        return
    test_losses = tuple(test.net.loss_weights for test in tests)
    if context.config.by_caffe:
        yield CaffeObserver(context.writer, learner.net, caffe, learner.solver.config.policy, test_losses)
        return
    with open_run_sinks(context, schedule.first_step) as sinks:
        yield observer_of(RunObserver, context, sinks, caffe, learner, schedule)


@contextlib.contextmanager
def open_run_sinks(context: RankContext, first_step: int) -> Iterator[Sequence[Sink]]:
    """metrics.jsonl, without lines after `first_step`, and the sinks of --metrics."""
    config, folder, warn = context.config, context.config.out, partial(context.tell, "warning")
    with contextlib.ExitStack() as closing:
        metrics = closing.enter_context(MetricsWriter(RunFolder(folder).metrics, first_step))
        sinks = open_sinks(MetricsChoice(sinks=config.metrics), folder, _settings_of(config), "--metrics", warn)
        closing.callback(close_all, sinks)
        yield metrics, *sinks


def _settings_of(config: RunConfig) -> dict[str, object]:
    """The settings that tell runs apart, by name."""
    strategy = {f"strategy/{name}": value for name, value in to_plain(config.strategy).items() if value is not None}
    plain = {name: value for name, value in config.to_json().items() if isinstance(value, str | int | float)}
    return {**plain, **strategy, "strategy": config.strategy.name}


def observer_of(
    kind: type[_Observer],
    context: RankContext,
    sinks: Sequence[Sink],
    caffe: CaffeSolver,
    learner: build.Learner,
    schedule: Schedule,
) -> _Observer:
    """An observer of a run of `schedule`, with the solver's settings."""
    return kind(
        context.writer,
        sinks,
        learner.solver.config.policy,
        schedule.num_steps,
        caffe.display,
        caffe.average_loss,
        advice_for(context.config.strategy),
        shows_test_loss=caffe.test_compute_loss,
    )


def save_function(context: RankContext, caffe: CaffeSolver, learner: build.Learner) -> Callable[[int], None]:
    saver = make_saver(caffe, learner, context.config, context.transport)

    def save(steps_done: int) -> None:
        path = saver.save(steps_done)
        if path is not None:
            context.writer.write(SnapshotWritten(step=steps_done, path=str(path)))

    return save


def center_bytes(learner: build.Learner, num_updates: int) -> int:
    """The bytes that `num_updates` updates send to a center."""
    return num_updates * learner.model.weights.layout.num_elements * ELEMENT_BYTES


def result_of(
    opened: Opened, learner: build.Learner, outcome: Outcome, sha256: str, bytes_sent_per_step: float
) -> RunResult:
    config = opened.context.config
    return RunResult(
        net=learner.net.name,
        net_parameters=learner.num_parameters,
        net_unlearned=learner.num_unlearned,
        strategy=config.strategy.name,
        collective=_shown_collective(config, learner),
        transport=transport_of(config),
        workers=config.workers,
        threads_per_worker=config.threads_per_worker,
        effective_batch=opened.global_batch * opened.caffe.iter_size,
        steps=outcome.steps_done,
        samples=outcome.num_samples,
        seconds=outcome.seconds,
        samples_per_second=outcome.samples_per_second,
        train_loss=outcome.train_loss if outcome.num_samples else None,
        test_loss=outcome.test_loss,
        test_accuracy=output_named(outcome.test_outputs, "accuracy"),
        weights_sha256=sha256,
        replicas_equal=True,
        bytes_sent_per_step=bytes_sent_per_step,
        stopped_by=signal.Signals(outcome.stop_signal).name if outcome.stop_signal else None,
        versions=versions(),
        precision=config.precision,
        buckets=(buckets := bucket_cut.described(config, learner.buckets)),
        bucket_sizes_bytes=tuple(bucket.size * ELEMENT_BYTES for bucket in learner.buckets) if buckets else (),
        sweep=config.sweep,
        recipe=AUTO if config.used_recipe is not None or config.large_batch is not None else NONE,
        recipe_changes=opened.changes,
        compress=config.strategy.codec,
        is_compressed=learner.is_compressed,
        factors=learner.factoring.chosen,
        owner=learner.owner,
    )


def versions() -> dict[str, str]:
    return {"samovar": samovar.__version__, "torch": torch.__version__, "python": platform.python_version()}
