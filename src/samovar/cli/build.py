"""Putting a rank's parts together: net, buffers in the window, solver, strategy, data, test."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from samovar.cli.resume import ResumePoint
from samovar.collectives.choose import choose_all_reduce
from samovar.collectives.engine import PlannedCollectives
from samovar.config import RunConfig
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.layout import Bucket
from samovar.data.config import DataConfig
from samovar.data.stream import BatchReader, BatchStream
from samovar.formats.caffe.caffemodel import read_caffemodel
from samovar.frontends.caffe.definition import CaffeNetDefinition
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.frontends.caffe.solver import CaffeSolver, solver_config
from samovar.frontends.caffe.weights import match_weights
from samovar.model.model import Model, layout_of
from samovar.solver.base import Multipliers, Solver
from samovar.solver.build import build_solver
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.build import build_strategy
from samovar.strategies.config import AUTO
from samovar.transports.base import MappedWindow, Region, Transport
from samovar.worker.evaluated import EvaluatedWeights
from samovar.worker.evaluation import Evaluation
from samovar.worker.step import Worker


@dataclass(frozen=True, slots=True)
class Learner:
    """A net whose parameters lie in the window, and what updates and exchanges them, by which plan."""

    net: CaffeNet
    model: Model
    solver: Solver
    strategy: Strategy
    evaluated: EvaluatedWeights
    collective: str
    notices: tuple[str, ...]

    @property
    def has_private_state(self) -> bool:
        """Whether each rank has weights and momentum of its own, which a snapshot must hold too."""
        return self.evaluated.differ_between_ranks

    @property
    def num_parameters(self) -> int:
        return sum(info.parameter.numel() for info in self.net.parameter_infos)


def build_learner(
    config: RunConfig, caffe: CaffeSolver, net: CaffeNet, transport: Transport, start: ResumePoint | None
) -> Learner:
    """Weights from the snapshot, else from --weights, else from the fillers."""
    notices = load_weights(net, config) if config.weights is not None else ()
    parameters = {info.name: info.parameter for info in net.parameter_infos}
    layout = layout_of(parameters)
    buckets = layout.buckets(config.strategy.bucket_size_bytes)
    num_elements = layout.num_elements
    window = transport.open_window("model", 2 * num_elements * 4, 0)
    weights = Region.of(window, 0, num_elements, np.float32)
    gradients = Region.of(window, num_elements * 4, num_elements, np.float32)
    buffers = FlatBuffer(layout, weights.array), FlatBuffer(layout, gradients.array)
    model = Model(net, parameters, *buffers, buckets)
    multipliers = {info.name: Multipliers(info.lr_mult, info.decay_mult) for info in net.parameter_infos}
    solver = build_solver(solver_config(caffe), *buffers, multipliers)
    if start is not None:
        _load_start(start, model, solver, config)
    collective = chosen_collective(config, gradients, buckets)
    collectives = PlannedCollectives(transport, lambda _num_bytes: collective)
    deadline = partial(Deadline.after, config.timeout_s)
    strategy = build_strategy(config.strategy, collectives, buckets, Buffers(weights, gradients), deadline)
    if start is not None:
        strategy.load_state_dict(start.strategy)
    statistics = [info.name for info in net.parameter_infos if info.is_statistic]
    evaluated = EvaluatedWeights(strategy, model.weights, statistics, collectives, deadline)
    return Learner(net, model, solver, strategy, evaluated, collective, notices)


def chosen_collective(config: RunConfig, gradients: Region, buckets: Sequence[Bucket]) -> str:
    """The plan by name: --collective, or for `auto` the best one for the largest bucket.

    A pure function of the configuration and the net, so that every rank and every resumed run finds the same.
    """
    if config.strategy.collective != AUTO:
        return config.strategy.collective
    num_bytes = max(bucket.stop - bucket.start for bucket in buckets) * gradients.array.itemsize
    mapped = isinstance(gradients.window, MappedWindow)
    return choose_all_reduce(config.calibration, config.workers, num_bytes, mapped, config.oversubscribed)


def _load_start(start: ResumePoint, model: Model, solver: Solver, config: RunConfig) -> None:
    try:
        model.load_state_dict(start.weights)
        if start.momentum:
            solver.load_state_dict(start.momentum)
    except InputError as error:
        raise InputError(f"--snapshot {config.snapshot}: {error}; give a snapshot of this net") from error


def build_worker(learner: Learner, stream: BatchStream, caffe: CaffeSolver, config: RunConfig) -> Worker:
    return Worker(
        learner.model,
        learner.solver,
        learner.strategy,
        stream,
        config.workers,
        caffe.iter_size,
        config.timeout_s,
    )


def build_evaluation(
    net: CaffeNet, reader: BatchReader, num_batches: int, transport: Transport, timeout_s: float
) -> Evaluation:
    return Evaluation(net, net.output_names, reader, num_batches, transport, timeout_s)


def open_reader(data: DataConfig, config: RunConfig, seed: int) -> BatchReader:
    return BatchReader(data, seed, shuffled=config.shuffle and data.training)


def net_for(definition: CaffeNetDefinition, reader: BatchReader, seed: int) -> CaffeNet:
    """The net of the reader's phase, for the reader's shapes."""
    data = reader.config
    shapes = dict(zip(data.tops, ((data.batch_size, *reader.sample_shape), (data.batch_size,)), strict=False))
    return build_net(definition, "TRAIN" if data.training else "TEST", shapes, seed)


def load_weights(net: CaffeNet, config: RunConfig) -> tuple[str, ...]:
    """Put the arrays of --weights into the net; what did not match, as sentences."""
    assert config.weights is not None
    matched = match_weights(net, read_caffemodel(config.weights), config.weights)
    for info in net.parameter_infos:
        if info.name in matched.arrays:
            info.parameter.data.numpy()[...] = matched.arrays[info.name]
    notices = []
    if matched.missing:
        notices.append(f"{config.weights}: has no layers {list(matched.missing)}; they start from their fillers")
    if matched.ignored:
        notices.append(f"{config.weights}: layers {list(matched.ignored)} are not in this net; ignored")
    return tuple(notices)


def global_batch_size(config: RunConfig, data: DataConfig) -> int:
    """Samples of all workers in one part of a step (`--batch-mode`)."""
    if config.batch_mode == "per-worker":
        return data.batch_size * config.workers
    if data.batch_size < config.workers:
        raise InputError(
            f"--workers {config.workers} with --batch-mode global: {data.source} gives batches of "
            f"{data.batch_size}, less than a sample a worker; use fewer workers or a larger batch_size"
        )
    return data.batch_size


def run_seed(config: RunConfig, caffe: CaffeSolver) -> int:
    """--seed, else the solver's random_seed, else 0: a run can always be repeated."""
    if config.seed is not None:
        return config.seed
    return caffe.random_seed or 0
