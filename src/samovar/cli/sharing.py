"""A rank's flat memory, and the strategy on it: what workers share, and how."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from samovar.collectives.choose import ELEMENT_BYTES, choose_all_reduce
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.slice_tree import own_nodes
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.core.layout import Bucket, Layout
from samovar.data.order import Portions, batch_portions, shares, slice_portions
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import CaffeSolver, solver_config
from samovar.solver.build import num_histories
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.build import build_strategy
from samovar.strategies.center_steps import CenterSeat
from samovar.strategies.config import AUTO, StrategyConfig
from samovar.strategies.exact import ExactSync, SliceSums
from samovar.strategies.trial import Witness
from samovar.transports.base import MappedWindow, Region, Transport
from samovar.worker.step import Parts


@dataclass(frozen=True, slots=True)
class Memory:
    """Rows of float32 (N,) in the window: weights, a backward pass's gradient, what the solver reads, what it keeps.

    `sums` are the gradient itself, or with --exact a row for each sum of slices, of which the solver reads the first.
    """

    weights: Region
    gradients: Region
    sums: Region
    histories: tuple[Region, ...]

    @property
    def summed(self) -> Region:
        return self.sums.part(0, len(self.gradients.array))

    @property
    def is_mapped(self) -> bool:
        """Whether ranks can reach each other's memory as their own."""
        return isinstance(self.gradients.window, MappedWindow)


@dataclass(frozen=True, slots=True)
class Slices:
    """--exact: `num_slices` in all, rank r computes ranges[r]; each slice has `num_batches` batches."""

    ranges: tuple[tuple[int, int], ...]
    num_slices: int
    num_batches: int

    @classmethod
    def of(cls, config: RunConfig, caffe: CaffeSolver, net: CaffeNet) -> "Slices | None":
        """InputError, naming them, for layers that mix samples."""
        if config.exact is None:
            return None
        if mixing := net.mixing_layers:
            raise InputError(
                f"--exact {config.exact}: {net.path}: {', '.join(mixing)}: a sample's values there depend on others of "
                "its batch, so that slices are not what the whole batch is; leave --exact out"
            )
        ranges = tuple((first, first + count) for first, count in shares(config.exact, config.workers))
        return cls(ranges, config.exact, caffe.iter_size)

    @property
    def leaves(self) -> tuple[tuple[int, int], ...]:
        """The ranges of what is added up: a slice's batches count one by one."""
        return tuple((first * self.num_batches, stop * self.num_batches) for first, stop in self.ranges)

    @property
    def num_leaves(self) -> int:
        return self.num_slices * self.num_batches

    @property
    def num_rows(self) -> int:
        return max(len(own_nodes(own, self.num_leaves)) for own in self.leaves)


def possible(config: StrategyConfig, caffe: CaffeSolver) -> tuple[StrategyConfig, tuple[str, ...]]:
    """`config`, or what comes nearest to it with this solver, and a sentence that says so."""
    if not config.has_owners or caffe.clip_gradients is None:
        return config, ()
    notice = (
        "--overlap full: clip_gradients needs the norm of the whole gradient before anything is updated; "
        "every rank updates everything then, as with --overlap backward"
    )
    return replace(config, overlap="backward", owner=None), (notice,)


def open_memory(
    transport: Transport, layout: Layout, strategy: StrategyConfig, caffe: CaffeSolver, slices: Slices | None
) -> Memory:
    """Histories lie in the window only where they travel to other ranks."""
    size = layout.num_elements
    num_sums = 0 if slices is None else slices.num_rows
    num_kept = num_histories(solver_config(caffe)) if strategy.has_owners else 0
    window = transport.open_window("model", (2 + num_sums + num_kept) * size * 4, 0)

    def rows(first: int, count: int) -> Region:
        return Region.of(window, first * size * 4, count * size, np.float32)

    gradients = rows(1, 1)
    sums = gradients if slices is None else rows(2, num_sums)
    return Memory(rows(0, 1), gradients, sums, tuple(rows(2 + num_sums + index, 1) for index in range(num_kept)))


def make_strategy(
    strategy: StrategyConfig,
    collectives: PlannedCollectives,
    buckets: Sequence[Bucket],
    memory: Memory,
    slices: Slices | None,
    deadline: Callable[[], Deadline],
    seat: CenterSeat | None,
    witness: Witness | None = None,
) -> Strategy:
    if slices is not None:
        return ExactSync(collectives, buckets, memory.sums, slices.leaves, deadline)
    buffers = Buffers(memory.weights, memory.gradients, memory.histories)
    return build_strategy(strategy, collectives, buckets, buffers, deadline, seat, witness)


def step_parts(config: RunConfig, caffe: CaffeSolver, memory: Memory, slices: Slices | None, rank: int) -> Parts:
    """The batches of a rank's step, and how their gradients are added up."""
    if slices is None:
        return Parts(caffe.iter_size, config.workers, caffe.iter_size)
    first, stop = own = slices.leaves[rank]
    rows = memory.sums.array.reshape(-1, len(memory.gradients.array))
    sums = SliceSums(memory.gradients.array, rows, own, slices.num_leaves)
    return Parts(stop - first, slices.num_slices, 1, sums)


def portions(group: Group, global_batch: int, slices: Slices | None) -> Portions:
    """The samples that a rank reads; InputError where there are more workers, or slices, than samples."""
    if slices is None:
        return batch_portions(group, global_batch)
    if global_batch < slices.num_slices:
        raise InputError(
            f"--exact {slices.num_slices}: a batch of {global_batch} samples has no sample for each slice; "
            f"give at most {global_batch}"
        )
    return slice_portions(global_batch, slices.num_slices, slices.ranges[group.rank], slices.num_batches)


def chosen_collective(config: RunConfig, memory: Memory, buckets: Sequence[Bucket]) -> str:
    """The plan by name: --collective, or for `auto` the best one for the largest bucket.

    A pure function of the configuration and the net, so that every rank and every resumed run finds the same.
    """
    if config.exact is not None:
        return "slice-tree"
    if config.strategy.collective != AUTO:
        return config.strategy.collective
    num_bytes = max(bucket.stop - bucket.start for bucket in buckets) * ELEMENT_BYTES
    return choose_all_reduce(config.calibration, config.workers, num_bytes, memory.is_mapped, config.oversubscribed)
