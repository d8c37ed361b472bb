"""One rank's share of a test pass; the weights that are tested, saved and reported, and whether they are equal."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from samovar.box.base import CenterWithVelocity
from samovar.collectives.engine import Collectives, RecordExchange, differing_ranks, digest_record
from samovar.collectives.execute import open_channel
from samovar.collectives.tree import tree_all_reduce
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, ReplicasDiffer
from samovar.core.group import Group
from samovar.core.near import Flat
from samovar.core.stateful import State
from samovar.data.reader import BatchReader
from samovar.data.stream import evaluation_batches
from samovar.frontends.caffe.net import CaffeNet
from samovar.membership.statistics import ShownStatistics, SummedStatistics
from samovar.model.half import NetOutput
from samovar.strategies.base import Strategy
from samovar.transports.base import Array, Notification, Region, Transport

MAX_VALUES = 1 << 12  # of all outputs together; nobody reads more
MAX_TABLE_VALUES = 1 << 25  # of all batches, 256 MiB


@dataclass(frozen=True, slots=True)
class TestResult:
    """Means over a test pass: each output by name, and the weighted sum of losses (None for a net without any).

    Value k of an output of several numbers is "name[k]". `batches` are the same outputs of each batch.
    """

    outputs: dict[str, float]
    loss: float | None
    batches: tuple[dict[str, float], ...]


class Evaluation:
    """The mean of every output of the test net over `num_batches` batches, as Caffe's test pass.

    Rank r computes batches r, r + P, and so on; if the net carries states from batch to batch, rank 0 computes all.
    Each result is made by one rank and only copied by the others (x + 0 = x). The mean is taken in batch order, so any
    number of workers gives the same bits. Workers wait for each other as long as batches come within `timeout_s`.
    `number` distinguishes several test nets. Raises InputError if the outputs have too many values.
    """

    def __init__(
        self,
        net: CaffeNet,
        reader: BatchReader,
        num_batches: int,
        transport: Transport,
        timeout_s: float,
        number: int = 0,
    ) -> None:
        self._net = net
        self._output_names = tuple(net.output_shapes)
        self._columns = _planned_names(net.output_shapes)
        self._reader = reader
        self._num_batches = num_batches
        self._group = transport.group
        self._timeout_s = timeout_s
        count = num_batches * (len(self._columns) + 1)
        if count > MAX_TABLE_VALUES:
            raise InputError(
                f"test net: {num_batches:,} batches of {len(self._columns):,} output values each; at most "
                f"{MAX_TABLE_VALUES // (len(self._columns) + 1):,} can be kept, lower test_iter or --iterations"
            )
        window = transport.open_window(f"test {number} results", count * 8, 0)
        self._results = Region.of(window, 0, count, np.float64)
        plan = tree_all_reduce(transport.group.rank, transport.group.world_size)
        self._progress = transport.open_window(f"test {number} progress", 0, transport.group.world_size)
        self._num_before = 0  # batches of earlier runs
        self._channel = open_channel(f"test {number} all-reduce", plan, transport, self._results)

    def run(self) -> TestResult:
        """Run the test; the result is the same on every rank."""
        table = self._results.array.reshape(self._num_batches, len(self._columns) + 1)
        table[...] = 0.0
        group, num_batches = self._group, self._num_batches
        if self._net.forget():
            group, num_batches = Group(0, 1), num_batches * (group.rank == 0)
        with torch.no_grad(), _kept_statistics(self._net):
            for batch, tensors in evaluation_batches(self._reader, group, num_batches):
                table[batch] = self._values(self._net(tensors))
                for peer in range(self._group.world_size):
                    self._progress.notify(peer, Notification(self._group.rank, self._num_before + batch + 1))
        for batch in range(self._num_batches):  # of a slow rank each may take as long
            peer = batch % group.world_size
            self._progress.wait(peer, self._num_before + batch + 1, peer, Deadline.after(self._timeout_s))
        self._num_before += self._num_batches
        self._channel.run(Deadline.after(self._timeout_s))
        means = [float(np.mean(table[:, column])) for column in range(table.shape[1])]
        loss = means[-1] if self._net.loss_weights else None
        return TestResult(self._named(means), loss, tuple(self._named(row) for row in table))

    def _named(self, row: Sequence[float] | npt.NDArray[np.float64]) -> dict[str, float]:
        return {name: float(value) for name, value in zip(self._columns, row, strict=False)}

    def _values(self, output: NetOutput) -> list[float]:
        """Every value of every output, then the loss."""
        values = named_values({name: output.scalars[name] for name in self._output_names})
        if tuple(values) != self._columns:
            raise InputError(
                f"test net: its outputs have {len(values)} values in this batch, {len(self._columns)} were planned; "
                "hide a blob whose size depends on the data with a Silence layer"
            )
        return [*values.values(), 0.0 if output.loss is None else float(output.loss)]


@contextmanager
def _kept_statistics(net: CaffeNet) -> Iterator[None]:
    """Put back afterwards what BatchNorm with `use_global_stats: false` changes: tests change no weights."""
    statistics = [info.parameter for info in net.parameter_infos if info.is_statistic]
    kept = [values.clone() for values in statistics]
    yield
    for values, before in zip(statistics, kept, strict=True):
        values.copy_(before)


def named_values(outputs: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Every value by name: that of "loss" as "loss", those of several in "name" as "name[0]", "name[1]", ..."""
    flat = {name: value.flatten().tolist() for name, value in outputs.items()}
    names = _value_names({name: len(values) for name, values in flat.items()})
    return dict(zip(names, (float(value) for values in flat.values() for value in values), strict=True))


def _value_names(counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(name if count == 1 else f"{name}[{index}]" for name, count in counts.items() for index in range(count))


def _planned_names(shapes: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """The names of all values; InputError for more than `MAX_VALUES`."""
    counts = {name: prod(shape) for name, shape in shapes.items()}
    if sum(counts.values()) > MAX_VALUES:
        largest = max(counts, key=lambda name: counts[name])
        raise InputError(
            f"test net: output {largest!r} has shape {tuple(shapes[largest])}, but a test pass takes at most "
            f"{MAX_VALUES:,} values. End the net with a loss or Accuracy, or hide the blob with a Silence layer"
        )
    return _value_names(counts)


class StatisticViews:
    """Views of the parameters `names`, one after the other, which forward passes change and the solver does not."""

    def __init__(self, weights: FlatBuffer, names: Sequence[str]) -> None:
        self._names, self._views = names, [weights.view(name) for name in names]
        self.num_elements = sum(view.numel() for view in self._views)

    def of(self, weights: FlatBuffer) -> "StatisticViews":
        """The same parameters of other weights."""
        return StatisticViews(weights, self._names)

    def gather(self, out: Array) -> None:
        for view, part in self._with(out):
            part.copy_(view.reshape(-1))

    def put(self, values: Array) -> None:
        for view, part in self._with(values):
            view.copy_(part.view(view.shape))

    def _with(self, flat: Array) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        parts = torch.split_with_sizes(torch.from_numpy(flat), [view.numel() for view in self._views])
        yield from zip(self._views, parts, strict=True)


class EvaluatedWeights:
    """The evaluated weights of ranks in step: the strategy's center, if any, and the ranks' mean of `statistics`."""

    def __init__(
        self,
        strategy: Strategy,
        weights: FlatBuffer,
        statistics: Sequence[str],
        collectives: Collectives,
        deadline: Callable[[], Deadline],
    ) -> None:
        self._strategy = strategy
        self._weights = weights
        self._views = StatisticViews(weights, statistics if collectives.group.world_size > 1 else ())
        self._statistics: SummedStatistics | None = None
        if self._views.num_elements:
            self._statistics = SummedStatistics(collectives, self._views.num_elements, deadline)

    @property
    def differ_between_ranks(self) -> bool:
        """Whether a rank's own weights are not those that are evaluated."""
        return self._strategy.exchanges == "weights" or self._statistics is not None

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the evaluated weights; afterwards the worker's own again.

        Every rank must enter at the same step: an exchange under way is completed first. Training continues with the
        same bits. Cost: if they differ, two copies of N floats and memory for one. Raises DeadlineExceeded.
        """
        self._strategy.drain()
        if not self.differ_between_ranks:
            yield
            return
        with _kept(self._weights.array_N):
            mean = None
            if self._statistics is not None:
                self._views.gather(self._statistics.own)
                mean = self._statistics.mean()
            if (center := self._strategy.center()) is not None:
                self._weights.array_N[:] = center
            if mean is not None:
                self._views.put(mean)
            yield


class CenterWeights:
    """The evaluated weights of asynchronous ranks: the center as it is now, with the workers' mean of `statistics`.

    Every rank must enter `EvaluatedWeights` at the same step; any worker may enter these at any time.

    `last` are the weights that the host knows without a wait: `weights` themselves, or from a device those of the last
    exchange. Others see their statistics.
    """

    differ_between_ranks = False  # a snapshot holds the center alone, whichever rank writes it

    def __init__(
        self,
        center: CenterWithVelocity,
        with_velocity: bool,
        weights: FlatBuffer,
        last: FlatBuffer,
        views: StatisticViews,
        statistics: ShownStatistics,
        deadline: Callable[[], Deadline],
    ) -> None:
        self._center = center
        self._with_velocity = with_velocity
        self._weights, self._last = weights, last
        self._views, self._last_views = views, views.of(last)
        self._statistics = statistics
        self._deadline = deadline
        self._read: Array = np.empty_like(last.array_N)
        self._settled: Array | None = None

    def settle(self) -> None:
        """Keep the center as it is now, as the result of this launch; others may still change it.

        Cost: N floats of memory.
        """
        self._settled = np.empty_like(self._read)
        self._center.read(self._settled, self._deadline())

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the center's weights; afterwards the worker's own again, with the same bits.

        Cost: four copies of N floats and memory for two. Raises DeadlineExceeded.
        """
        with _kept(self._weights.array_N):
            if (center := self._settled) is None:
                if self._weights.is_near:  # its statistics are newer than those shown
                    self._views.gather(self._statistics.own)
                self._center.read(center := self._read, self._deadline())
            self._weights.array_N[:] = center
            self._views.put(self._statistics.mean())
            yield

    def strategy_state(self) -> State:
        """Inside `in_place`: the strategy's part of a snapshot, which holds the center's velocity, and the center.

        It does not read through the strategy, whose reads may be recorded. Cost: two copies of N floats at most.
        """
        if not self._with_velocity:
            return {}
        velocity = np.empty_like(self._read)
        self._center.read_velocity(velocity, self._deadline())
        return {"center": np.array(self._weights.array_N), "velocity": velocity}

    def publish_statistics(self) -> None:
        """Show this worker's statistics to the others."""
        self._last_views.gather(self._statistics.own)
        self._statistics.show()

    def take_statistics(self) -> None:
        """Continue from the statistics of this worker's earlier life, if it showed any."""
        if self._statistics.were_shown:
            self._views.put(self._statistics.own)
            self._last_views.put(self._statistics.own)

    def distance(self) -> float:
        """||x - c|| / ||c||, x being this worker's weights, on a device the last exchanged. Cost: a read of c."""
        self._center.read(self._read, self._deadline())
        length = float(np.linalg.norm(self._read))
        np.subtract(self._last.array_N, self._read, out=self._read)
        return float(np.linalg.norm(self._read)) / length if length > 0 else 0.0


@contextlib.contextmanager
def _kept(array: Flat) -> Iterator[None]:
    """Restore `array` afterwards."""
    own = array.copy()
    try:
        yield
    finally:
        array[:] = own


def gather(transport: Transport, numbers: Sequence[float], timeout_s: float) -> npt.NDArray[np.float64]:
    """Every rank's numbers on every rank, shape (P, len(numbers)); waits for all ranks."""
    exchange = RecordExchange(transport, len(numbers))
    return exchange.gather(numbers, Deadline.after(timeout_s))


def require_equal(transport: Transport, weights_sha256: str, timeout_s: float, strategy: str = "sync") -> None:
    """Raise ReplicasDiffer, naming the ranks, unless every rank has this hash of the weights it evaluates."""
    hashes = gather(transport, digest_record(bytes.fromhex(weights_sha256)), timeout_s)
    if differing := differing_ranks(hashes):
        raise ReplicasDiffer(
            f"the weights that ranks {differing} evaluate differ from those of rank 0; this must not happen with "
            f"strategy {strategy!r}: please report it with the run folder"
        )
