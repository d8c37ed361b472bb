"""A rank's flat memory, and the strategy that shares it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from samovar.collectives.cost import ELEMENT_BYTES, choose_all_reduce, chosen_between, require_messages
from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.collectives.plans import IN_PLACE, REDUCE_SCATTERS
from samovar.collectives.tree import own_nodes
from samovar.config import RunConfig
from samovar.core.buffer import FlatBuffer, StagedBuffer, pinned
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.core.layout import Bucket, Layout
from samovar.core.near import NearArray, NearRegion
from samovar.data.order import Portions, batch_portions, shares, slice_portions
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import CaffeSolver, solver_config
from samovar.solver.flat import num_histories
from samovar.strategies.base import Buffers, CenterSeat, Strategy
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.exact import ExactSync, SliceSums
from samovar.strategies.factors import Factoring
from samovar.strategies.traits import AUTO, NONE
from samovar.strategies.trial import TrialCallback
from samovar.training.step import Parts
from samovar.transports.base import MappedWindow, Region, Transport


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Rows of float32 (N,) in the window: weights, gradient of a backward pass, the solver's input and its histories.

    `sums` are the gradient itself, or with --exact a row for each sum of slices; the solver reads the first one.
    `exchanged` has the weights on the device, and pinned memory of the host in which they are exchanged with a center.
    Nobody changes weights that are `frozen`.
    """

    weights: Region
    gradients: Region
    sums: Region
    histories: tuple[Region, ...]
    exchanged: StagedBuffer | None = None
    frozen: tuple[slice, ...] = ()

    @property
    def of_strategy(self) -> Buffers:
        if self.exchanged is None:
            return Buffers(self.weights, self.gradients, self.histories, frozen=self.frozen)
        host = NearRegion(self.exchanged.host.array_N)  # no other rank reads it
        return Buffers(cast(Region, host), cast(Region, host.part(0, 0)))

    def on_host(self) -> AbstractContextManager[None]:
        """A context in which the weights of the strategy are those of the model."""
        return nullcontext() if self.exchanged is None else self.exchanged.on_host()

    @property
    def summed(self) -> Region:
        return self.sums.part(0, len(self.gradients.array))

    @property
    def is_mapped(self) -> bool:
        """Whether ranks map each other's memory."""
        return isinstance(self.gradients.window, MappedWindow)


@dataclass(frozen=True, slots=True)
class Slices:
    """--exact: `num_slices` in all, rank r computes ranges[r]; each slice has `num_batches` batches."""

    ranges: tuple[tuple[int, int], ...]
    num_slices: int
    num_batches: int

    @classmethod
    def of(cls, config: RunConfig, caffe: CaffeSolver, net: CaffeNet) -> "Slices | None":
        """Raise InputError, naming the layers, if any layer mixes samples."""
        if config.exact is None:
            return None
        if mixing := net.mixing_layers:
            raise InputError(
                f"--exact {config.exact}: {net.path}: {', '.join(mixing)}: a sample counts there by its whole "
                "batch, so slices give other results; leave --exact out"
            )
        ranges = tuple((first, first + count) for first, count in shares(config.exact, config.workers))
        return cls(ranges, config.exact, caffe.iter_size)

    @property
    def leaves(self) -> tuple[tuple[int, int], ...]:
        """The ranges of the terms that are added up: a slice's batches count one by one."""
        return tuple((first * self.num_batches, stop * self.num_batches) for first, stop in self.ranges)

    @property
    def num_leaves(self) -> int:
        return self.num_slices * self.num_batches

    @property
    def num_rows(self) -> int:
        return max(len(own_nodes(own, self.num_leaves)) for own in self.leaves)


def possible(config: StrategyConfig, caffe: CaffeSolver) -> tuple[StrategyConfig, tuple[str, ...]]:
    """`config`, or the nearest one that this solver allows, with a notice."""
    if config.takes_factors and caffe.iter_size > 1:
        told = f"--factors {config.factors}: iter_size {caffe.iter_size} adds up gradients before they travel, so whole"
        settings, notices = possible(replace(config, factors=NONE), caffe)
        return settings, (told, *notices)
    if not config.divides_updates or caffe.clip_gradients is None:
        return config, ()
    if config.updates_parts:
        asked, instead, settings = "--owner parts", "--owner all", replace(config, owner="all")
    else:
        asked, instead = "--overlap full", "--overlap backward"
        settings = replace(config, overlap="backward", owner=None)
    notice = (
        f"{asked}: clip_gradients needs the norm of the whole gradient before the update; "
        f"so every rank updates everything, as with {instead}"
    )
    return settings, (notice,)


def divided(
    config: RunConfig, sharing: StrategyConfig, caffe: CaffeSolver, collective: str, is_near: bool
) -> StrategyConfig:
    """`sharing`, with updates in parts if `owner` is not set and nothing prevents it, as a device does (`is_near`).

    Raises InputError if parts were asked for, but `collective` makes no sums in parts.
    """
    if sharing.updates_parts and collective not in REDUCE_SCATTERS:
        raise InputError(
            f"--owner parts: {collective} makes no sums in parts; choose --collective {' or '.join(REDUCE_SCATTERS)}, "
            "or --owner all"
        )
    is_ours = sharing.source is None  # a strategy of the user's own sums whole buckets
    is_open = is_ours and sharing.owner is None and not sharing.exchanges_weights and sharing.overlap in (None, "none")
    if not is_open or is_near or sharing.codec is not None or caffe.clip_gradients is not None:
        return sharing
    by_parts = collective == IN_PLACE and config.workers > 1 and not sharing.takes_factors
    return replace(sharing, overlap="none", owner="parts" if by_parts else "all")


def open_memory(
    transport: Transport,
    layout: Layout,
    slices: Slices | None,
    device: torch.device | None = None,
    *,
    at_center: bool = False,
) -> RankMemory:
    """Without histories: these are in the solver's memory, unless they travel to other ranks.

    Memory of a `device` is reached by collectives of that device alone. Weights there that are exchanged `at_center`
    have memory of the host for it.
    """
    size = layout.num_elements
    if device is not None:
        return _near_memory(layout, device, at_center)
    num_sums = 0 if slices is None else slices.num_rows
    rows = _rows(transport, "model", size, 2 + num_sums)
    gradients = rows.part(size, 2 * size)
    sums = gradients if slices is None else rows.part(2 * size, (2 + num_sums) * size)
    return RankMemory(rows.part(0, size), gradients, sums, ())


def _near_memory(layout: Layout, device: torch.device, at_center: bool) -> RankMemory:
    size = layout.num_elements
    rows = [torch.zeros(size, dtype=torch.float32, device=device) for _ in range(1 if at_center else 2)]
    exchanged = StagedBuffer(FlatBuffer(layout, pinned(size, device)), device) if at_center else None
    rows += [] if exchanged is None else [exchanged.near.tensor_N]
    gradients, weights = (cast(Region, NearRegion(NearArray(row))) for row in rows)
    return RankMemory(weights, gradients, gradients, (), exchanged)


def with_histories(
    memory: RankMemory, transport: Transport, strategy: StrategyConfig, caffe: CaffeSolver
) -> RankMemory:
    """The same with the solver's histories in a window, if a rank keeps only some of them."""
    if not strategy.divides_updates:
        return memory
    size, count = len(memory.weights.array), num_histories(solver_config(caffe))
    rows = _rows(transport, "histories", size, count)
    return replace(memory, histories=tuple(rows.part(row * size, (row + 1) * size) for row in range(count)))


def _rows(transport: Transport, name: str, size: int, count: int) -> Region:
    return Region.of(transport.open_window(name, count * size * 4, 0), 0, count * size, np.float32)


def make_strategy(
    strategy: StrategyConfig,
    collectives: Collectives,
    buckets: Sequence[Bucket],
    memory: RankMemory,
    slices: Slices | None,
    deadline: Callable[[], Deadline],
    seat: CenterSeat | None,
    callback: TrialCallback | None = None,
    factoring: Factoring | None = None,
) -> Strategy:
    if slices is not None:
        assert isinstance(collectives, PlannedCollectives), collectives
        return ExactSync(collectives, buckets, memory.sums, slices.leaves, deadline)
    made = build_strategy(strategy, collectives, buckets, memory.of_strategy, deadline, seat, callback, factoring)
    made.on_host = memory.on_host
    return made


def step_parts(config: RunConfig, caffe: CaffeSolver, memory: RankMemory, slices: Slices | None, rank: int) -> Parts:
    """The batches of a rank's step, and how their gradients are added up."""
    if slices is None:
        return Parts(caffe.iter_size, config.workers, caffe.iter_size)
    first, stop = own = slices.leaves[rank]
    rows = memory.sums.array.reshape(-1, len(memory.gradients.array))
    sums = SliceSums(memory.gradients.array, rows, own, slices.num_leaves)
    return Parts(stop - first, slices.num_slices, 1, sums)


def portions(group: Group, global_batch: int, slices: Slices | None) -> Portions:
    """The samples that a rank reads; InputError for more workers, or slices, than samples."""
    if slices is None:
        return batch_portions(group, global_batch)
    if global_batch < slices.num_slices:
        raise InputError(
            f"--exact {slices.num_slices}: a batch of {global_batch} samples has no sample for each slice; "
            f"give at most {global_batch}"
        )
    return slice_portions(global_batch, slices.num_slices, slices.ranges[group.rank], slices.num_batches)


def chosen_collective(config: RunConfig, memory: RankMemory, buckets: Sequence[Bucket]) -> str:
    """The plan by name: --collective, or for `auto` the best one for the largest bucket.

    A pure function of the configuration and the net, so that every rank and every resumed run finds the same.
    """
    if config.exact is not None:
        return "slice-tree"
    if config.strategy.collective != AUTO:
        if config.hosts is not None or config.transport != AUTO:
            require_messages(config.strategy.collective)
        return config.strategy.collective
    num_bytes = max(bucket.stop - bucket.start for bucket in buckets) * ELEMENT_BYTES
    if config.hosts is not None:
        return chosen_between(config.calibration, config.hosts.sizes, config.workers)(num_bytes)
    return choose_all_reduce(config.calibration, config.workers, num_bytes, memory.is_mapped, config.oversubscribed)
