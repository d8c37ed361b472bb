"""The files that a rank opens before training: solver, net, and data, which --hold-data loads into memory.

Hosts that read copies of their own must have the same data, or some samples would count twice and others never.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from samovar.collectives.engine import digest_record
from samovar.config import RunConfig
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.core.group import rank_names
from samovar.core.host import available_bytes
from samovar.data.cache import CacheSetup
from samovar.data.order import member_portions
from samovar.data.reader import BatchReader
from samovar.data.stream import BatchStream
from samovar.frontends.caffe.definition import CaffeNetDefinition, load_source
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import CaffeSolver, changes, load_solver, with_large_batch
from samovar.report.wording import counted
from samovar.strategies.defaults import recipe_changes
from samovar.training import build
from samovar.training.context import RankContext
from samovar.training.evaluation import gather
from samovar.training.memory import Slices, portions
from samovar.transports.base import Array

_MOST_OF_MEMORY = 0.9
_TELL_EVERY_S = 10.0
_POLL_S = 0.02
_MB = 1e6


def hold_training_set(context: RankContext, reader: BatchReader) -> None:
    """Load all records, and report their size and the time; InputError if memory is short."""
    total = reader.bytes_to_cache
    if total == 0:
        raise InputError(f"--hold-data: {reader.described}: there is no data to hold; leave it out")
    hosts, group, share = context.config.hosts, context.transport.group, reader.share
    inside = range(group.world_size) if hosts is None else hosts.of(group.rank).ranks
    require_memory(total * len(inside) // group.world_size if share is None else total // share.num_shares)
    started_s = time.monotonic()
    num_parts, part = (group.world_size, "worker") if share is None else (share.num_shares, "host")
    context.inform(
        f"--hold-data: {len(reader):,} records, decoded about {total / _MB:,.1f} MB, "
        f"{total / num_parts / _MB:,.1f} MB on each of {counted(num_parts, part)}",
    )
    deadline = partial(Deadline.after, context.config.timeout_s)
    reader.fill_cache(CacheSetup(context.transport, deadline, _Loading(context), inside))
    context.inform(f"--hold-data: all records are in memory after {time.monotonic() - started_s:.1f} s")


def require_memory(total: int) -> None:
    """Raise InputError unless `total` bytes leave a tenth of the free memory."""
    there = available_bytes()
    if there is not None and total > _MOST_OF_MEMORY * there:
        raise InputError(
            f"--hold-data: the decoded records take about {total / _MB:,.0f} MB, but {there / _MB:,.0f} MB of memory "
            "are free, and a tenth must stay free; leave it out, or train on a larger machine"
        )


class _Loading:
    """Report now and then how much is loaded."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._told_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            self._context.inform(f"--hold-data: {done / total:.0%} loaded")


@dataclass(frozen=True, slots=True)
class Opened:
    """A solver as the recipe changed it, its training data, and the net for it; `changes` are the recipe's."""

    caffe: CaffeSolver
    changes: tuple[str, ...]
    definition: CaffeNetDefinition
    reader: BatchReader
    net: CaffeNet
    context: RankContext

    @property
    def global_batch(self) -> int:
        """Samples of all workers in a part of a step."""
        return build.global_batch_size(self.context.config, self.reader, self.caffe.iter_size)

    @contextlib.contextmanager
    def stream(self, slices: Slices | None, first_batch: int, order_index: int | None = None) -> Iterator[BatchStream]:
        """This rank's batches from `first_batch`, closed at the end. `order_index`: all data, in this rank's order."""
        group = self.context.transport.group
        if order_index is None:
            own = portions(group, self.global_batch, slices)
        else:
            own = member_portions(group, self.global_batch, order_index, len(self.reader))
        if self.context.config.hold_data and self.context.config.job == "train":
            hold_training_set(self.context, self.reader)
        with BatchStream(self.reader, own, first_batch) as stream:
            yield stream


@contextlib.contextmanager
def open_training(context: RankContext) -> Iterator[Opened]:
    """The parts of the training job in `context.config`; the data is closed at the end. Raises SamovarError."""
    config = context.config
    caffe = load_solver(config.model)
    definition = load_source(caffe.net, config.level, config.stages)
    seed = (caffe.random_seed or 0) if config.seed is None else config.seed  # so that a run can always be repeated
    with build.open_reader(definition, "TRAIN", config, seed) as reader:
        changed, told = by_recipe(config, caffe, reader.batch_size)
        if config.large_batch is not None:
            usual = reader.batch_size * caffe.iter_size
            larger = f"{config.large_batch.batch_size:,} samples a step instead of {usual:,}"
            context.inform(f"{larger}, the same epochs: {', '.join(told)}")
        net = build.net_for(definition, reader, seed, config)
        learns = any(info.parameter.requires_grad for info in net.parameter_infos)
        if missing := "" if learns and net.loss_weights else "parameter to learn" if net.loss_weights else "loss":
            raise InputError(f"{net.path}: has no {missing} in phase TRAIN; add one, or look at its lr_mult and phases")
        net.device = context.device
        yield Opened(changed, told, definition, reader, net, context)


def by_recipe(config: RunConfig, caffe: CaffeSolver, batch_size: int) -> tuple[CaffeSolver, tuple[str, ...]]:
    """The solver for `config.workers` workers that share or enlarge the net's batch of `batch_size`, and all changes.

    They are those of --large-batch, or of the strategy's recipe, with the settings of the strategy; none without one.
    """
    if config.large_batch is not None:
        return with_large_batch(caffe, batch_size, config.large_batch)
    recipe = config.used_recipe
    if recipe is None or config.workers == 1:
        return caffe, ()
    factor = recipe.rate_factor(config.strategy, config.workers, is_adaptive=caffe.is_adaptive)
    changed = replace(caffe, base_lr=caffe.base_lr * factor)
    batch = f"a worker's batch {batch_size:,} -> {batch_size / config.workers:,.4g}"
    settings = map(str, recipe_changes(config.strategy, config.workers, is_adaptive=caffe.is_adaptive))
    return changed, (batch, *settings, *changes(caffe, changed))


def require_same_data(context: RankContext, reader: BatchReader) -> None:
    """Raise InputError if hosts have other records; all ranks call this at the same place.

    It compares their number, and what the first, the middle and the last sample become, or of which database hosts
    have shares. Ranks in step do so together. Others only wait for rank 0's. Cost: three samples.
    """
    hosts = context.config.hosts
    if hosts is None:
        return
    row = [float(len(reader)), *digest_record(reader.fingerprint())]
    if context.config.is_async:
        found = _with_first(context, np.array(row))
    else:
        found = dict(enumerate(gather(context.transport, row, context.config.timeout_s)))
    for rank, own in found.items():
        name = rank_names(hosts.hosts)[rank]
        if own[0] != found[0][0]:
            raise InputError(
                f"{reader.described}: {name} has {int(own[0]):,} records, and host 0 {int(found[0][0]):,}; copy the "
                "data of host 0 there"
            )
        if (own != found[0]).any():
            advice = "copy the data of host 0 there, or give each host a share of one database"
            raise InputError(f"{reader.described}: {name} has other records than host 0; {advice}")


def _with_first(context: RankContext, own: Array) -> dict[int, Array]:
    """Rank 0's row and this rank's, which it shows; none if rank 0 is gone."""
    rank, first = context.lasting.group.rank, np.zeros_like(own)
    window = context.lasting.open_window("data", own.nbytes, 0)
    window.put(rank, 0, own)

    def is_there() -> bool:
        window.get(0, 0, first)
        return bool(first.any()) or context.is_gone(0)

    if not polled(is_there, Deadline.after(context.config.timeout_s), _POLL_S):
        raise DeadlineExceeded(f"rank {rank}: rank 0 did not open its data; see its log, or raise --timeout")
    return {0: first, rank: own} if first.any() else {}
