"""Build a rank's parts: net, buffers in the window, solver, strategy, data, test."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch

from samovar.collectives.engine import Collectives, PlannedCollectives, TracedCollectives
from samovar.config import RunConfig
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.device import BF16, CPU
from samovar.core.errors import InputError
from samovar.core.layout import Bucket, Layout
from samovar.core.trace import Trace
from samovar.data.reader import BatchReader, WithoutData
from samovar.data.stream import BatchStream
from samovar.frontends.caffe.definition import CaffeNetDefinition
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.frontends.caffe.parameters import Room
from samovar.frontends.caffe.solver import CaffeSolver, solver_config
from samovar.frontends.caffe.spec import Phase
from samovar.frontends.caffe.weights import load_weights
from samovar.launcher.plan import with_momentum
from samovar.model.device import device_notices
from samovar.model.half import precision_warnings
from samovar.model.model import Model
from samovar.report.steps import Laps
from samovar.solver.flat import Multipliers, Solver
from samovar.strategies.base import Strategy
from samovar.strategies.center_steps import CenterSteps
from samovar.strategies.config import StrategyConfig
from samovar.strategies.factors import Factoring
from samovar.strategies.trial import TrialCallback
from samovar.training.bucket_cut import cut_buckets, cut_notices, factoring_in, layout_with_factors
from samovar.training.evaluation import CenterWeights, EvaluatedWeights
from samovar.training.finite import FiniteCheck
from samovar.training.memory import (
    RankMemory,
    Slices,
    chosen_collective,
    divided,
    make_strategy,
    open_memory,
    possible,
    step_parts,
    with_histories,
)
from samovar.training.resume import ResumePoint
from samovar.training.run_center import RunCenter
from samovar.training.step import Parts, Updates, Worker
from samovar.transports.base import Transport
from samovar.transports.torch_dist import ConnectNear


@dataclass(frozen=True, slots=True)
class Learner:
    """A net with its parameters in the window, the solver and strategy that update and exchange them, and the plan."""

    net: CaffeNet
    model: Model
    solver: Solver
    strategy: Strategy
    evaluated: EvaluatedWeights | CenterWeights
    finite: FiniteCheck
    collective: str
    buckets: tuple[Bucket, ...]
    parts: Parts
    slices: Slices | None
    notices: tuple[str, ...]
    factoring: Factoring
    exchanged: Collectives
    owner: str | None

    @contextlib.contextmanager
    def with_evaluated_weights(self) -> Iterator[None]:
        """Inside, the model has the weights that are tested, saved and reported. Raises NotFinite."""
        with self.evaluated.in_place():
            self.finite.require()
            yield

    @property
    def has_private_state(self) -> bool:
        """Whether a snapshot needs each rank's own weights and momentum, or its strategy's own state."""
        return self.evaluated.differ_between_ranks or self.has_residuals

    @property
    def is_compressed(self) -> bool | None:
        """Whether ranks compress their messages; None if compression was not asked for."""
        return self.strategy.is_compressed

    @property
    def has_residuals(self) -> bool:
        """Whether each rank's strategy keeps the part that its messages left out."""
        return self.is_compressed is not None

    @property
    def num_parameters(self) -> int:
        return sum(info.parameter.numel() for info in self.net.parameter_infos)

    @property
    def num_unlearned(self) -> int:
        """Frozen ones, and statistics."""
        infos = self.net.parameter_infos
        return sum(info.parameter.numel() for info in infos if not info.parameter.requires_grad)


def build_learner(
    config: RunConfig,
    caffe: CaffeSolver,
    net: CaffeNet,
    transport: Transport,
    start: ResumePoint | None,
    trace: Trace | None = None,
    center: RunCenter | None = None,
    callback: TrialCallback | None = None,
    connect_near: ConnectNear | None = None,
) -> Learner:
    """Take the weights from the snapshot, else from --weights, else from the fillers; exchanges show in `trace`.

    The net is on its `device` afterwards, and with `connect_near` the whole model; `callback` gets notices.
    """
    notices = _placed(net, config, caffe)
    (sharing, fallback), slices = possible(config.strategy, caffe), Slices.of(config, caffe, net)
    parameters = {info.name: info.parameter for info in net.parameter_infos}
    layout, num_apart = layout_with_factors(parameters, sharing)
    memory = open_memory(transport, layout, slices, net.device if connect_near else None, at_center=bool(center))
    buckets = cut_buckets(config, sharing, layout, net, caffe.iter_size, memory.is_mapped, num_apart)
    plan = chosen_collective(config, memory, buckets)
    sharing = divided(config, sharing, caffe, plan, connect_near is not None)
    memory = replace(with_histories(memory, transport, sharing, caffe), frozen=_frozen(net, layout))
    weights, gradients = (FlatBuffer(layout, region.array) for region in (memory.weights, memory.gradients))
    model = Model(net, parameters, weights, gradients, buckets, config.precision, net.device)
    sharing, solver, of_momentum = _solver(config, caffe, sharing, model, net, memory, start)
    collectives = _collectives(config, transport, plan, trace)
    deadline, seat = partial(Deadline.after, config.timeout_s), center.seat() if center else None
    factoring = factoring_in(config, sharing, collectives, buckets[:num_apart], memory, deadline, callback)
    model.factors = factoring.by_name
    exchanged, collective = _connected(None if center else connect_near, collectives, plan)
    with memory.on_host():
        strategy = make_strategy(sharing, exchanged, buckets, memory, slices, deadline, seat, callback, factoring)
        _begin(strategy, start, center, pulls=memory.exchanged is not None)
    evaluated = _evaluated(net, weights, strategy, collectives, deadline, center, memory)
    parts = step_parts(config, caffe, memory, slices, transport.group.rank)
    notices = (*notices, *fallback, *of_momentum, *cut_notices(config, sharing, buckets))
    made = (net, model, solver, strategy, evaluated, FiniteCheck(weights, strategy, solver, transport.group.rank))
    return Learner(*made, collective, buckets, parts, slices, notices, factoring, exchanged, sharing.owner)


def _collectives(config: RunConfig, transport: Transport, plan: str, trace: Trace | None) -> PlannedCollectives:
    plans = PlannedCollectives(transport, lambda _num_bytes: plan, None if config.hosts is None else config.hosts.sizes)
    return plans if trace is None else TracedCollectives(plans, trace)


def _connected(connect_near: ConnectNear | None, collectives: PlannedCollectives, name: str) -> tuple[Collectives, str]:
    """The collectives of the strategy, and the name of their plan or backend."""
    if connect_near is None:
        return collectives, name
    near = connect_near(collectives)
    return cast(Collectives, near), near.backend or name


def _placed(net: CaffeNet, config: RunConfig, caffe: CaffeSolver) -> tuple[str, ...]:
    """Load --weights, and bring the net to its device. Gives notices about them, its precision and its device."""
    of_weights = load_weights(net, caffe.starting_weights(config.weights, config.snapshot))
    net.place(net.device)
    return *of_weights, *computing_notices(config, net.device)


def computing_notices(config: RunConfig, device: torch.device | None) -> tuple[str, ...]:
    """Notices about the precision and the device."""
    return *precision_warnings(config.precision, device), *device_notices(device, config.workers, config.device)


def _frozen(net: CaffeNet, layout: Layout) -> tuple[slice, ...]:
    """The weights that neither the solver nor a forward pass changes."""
    return layout.parts([info.name for info in net.parameter_infos if not (info.lr_mult or info.is_statistic)])


def _begin(strategy: Strategy, start: ResumePoint | None, center: RunCenter | None, *, pulls: bool) -> None:
    """Restore from the snapshot's state, or from the center, which others have filled.

    With `pulls` a strategy that begins with the center's weights takes them now, and not in its first step.
    """
    if start is not None:
        strategy.load_state_dict(start.strategy)
    if center is not None:
        center.filled()
        if center.goes_on:
            assert isinstance(strategy, CenterSteps)
            strategy.adopt_center()
        if pulls:
            strategy.begin_step(center.first_step)


def _evaluated(
    net: CaffeNet,
    weights: FlatBuffer,
    strategy: Strategy,
    collectives: PlannedCollectives,
    deadline: Callable[[], Deadline],
    center: RunCenter | None,
    memory: RankMemory,
) -> EvaluatedWeights | CenterWeights:
    """The weights that are tested and saved: for asynchronous ranks, those at the center."""
    statistics = [info.name for info in net.parameter_infos if info.is_statistic]
    if center is not None and strategy.traits.is_async:
        last = weights if memory.exchanged is None else memory.exchanged.host
        return center.evaluated(weights, last, statistics, deadline)
    return EvaluatedWeights(strategy, weights, statistics, collectives, deadline)


def _solver(
    config: RunConfig,
    caffe: CaffeSolver,
    sharing: StrategyConfig,
    model: Model,
    net: CaffeNet,
    memory: RankMemory,
    start: ResumePoint | None,
) -> tuple[StrategyConfig, Solver, tuple[str, ...]]:
    """The solver with the momentum and rate that the strategy leaves to it, and the strategy with its share.

    Model and solver resume from `start`.
    """
    are_all = config.box is None
    sharing, settings, notices = with_momentum(sharing, solver_config(caffe), config.workers, are_all)
    layout = model.weights.layout
    multipliers = {info.name: Multipliers(info.lr_mult, info.decay_mult) for info in net.parameter_infos}
    histories = [FlatBuffer(layout, history.array) for history in memory.histories]
    solver = Solver(settings, model.weights, FlatBuffer(layout, memory.summed.array), multipliers, histories)
    _load_start(start, model, solver, config)
    return sharing, solver, notices


def _load_start(start: ResumePoint | None, model: Model, solver: Solver, config: RunConfig) -> None:
    if start is None:
        return
    try:
        model.load_state_dict(start.weights)
        if start.momentum:
            solver.load_state_dict(start.momentum)
    except InputError as error:
        raise InputError(f"--snapshot {config.snapshot}: {error}; give a snapshot of this net") from error


def build_worker(
    learner: Learner, stream: BatchStream, config: RunConfig, updates: Updates, laps: Laps | None
) -> Worker:
    return Worker(learner.model, updates, learner.strategy, stream, learner.parts, config.timeout_s, laps)


def open_reader(definition: CaffeNetDefinition, phase: Phase, config: RunConfig, seed: int) -> BatchReader:
    """The data that the net reads in `phase`. Raises InputError if a layer's files or settings do not fit, and for a
    share of a database that is not held in memory."""
    training = phase == "TRAIN"
    layers = definition.data_layers(phase)
    without = WithoutData(definition.own_batch_size(phase), definition.input_shapes(phase))
    reader = BatchReader(layers, training, seed, shuffled=config.shuffle and training, without=without)
    if (share := reader.share) is None or (training and config.hold_data and config.job == "train"):
        return reader
    reader.close()
    advice = "train from the shares of all hosts with --hold-data, or give" if training else "a test needs"
    if config.job == "probe" and config.hold_data:
        advice = "--workers auto reads from the files, so give a number of workers, or"
    raise InputError(f"{reader.described}: has {share} of a database; {advice} the whole database")


def net_for(definition: CaffeNetDefinition, reader: BatchReader, seed: int, config: RunConfig) -> CaffeNet:
    """The net of the reader's phase, for the reader's shapes, in every worker."""
    return build_net(definition, "TRAIN" if reader.training else "TEST", reader.top_shapes, seed, _room(config))


def _room(config: RunConfig) -> Room:
    """The blobs whose batch is the file's, and which are in this memory."""
    batches = 1 if config.shares_batch else config.workers
    if config.exact is not None or config.large_batch is not None or config.device != CPU:
        batches = 0
    return Room(config.workers, batches / 2 if config.precision == BF16 else batches)


def global_batch_size(config: RunConfig, reader: BatchReader, num_parts: int) -> int:
    """Samples of all workers in one of the `num_parts` of a step (`--batch-mode`, `--large-batch`)."""
    if config.large_batch is not None:
        return config.large_batch.batch_size // num_parts
    if not config.shares_batch:
        return reader.batch_size * config.workers
    if reader.batch_size < config.workers:
        has_recipe = config.used_recipe is not None
        flag, other = ("--recipe auto", ", or --recipe none") if has_recipe else ("--batch-mode global", "")
        raise InputError(
            f"--workers {config.workers} with {flag}: {reader.described} gives batches of {reader.batch_size}, "
            f"less than a sample a worker; use fewer workers or a larger batch_size{other}"
        )
    return reader.batch_size
