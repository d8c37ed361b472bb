"""One rank's share of a test pass."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from samovar.collectives.execute import open_channel
from samovar.collectives.tree import tree_all_reduce
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.data.reader import BatchReader
from samovar.data.stream import evaluation_batches
from samovar.frontends.caffe.net import CaffeNet
from samovar.model.half import NetOutput
from samovar.transports.base import Notification, Region, Transport

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
