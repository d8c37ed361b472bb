"""One rank's share of a test pass."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from samovar.collectives.execute import open_channel
from samovar.collectives.tree import tree_all_reduce
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.data.stream import BatchReader, evaluation_batches
from samovar.model.output import NetOutput
from samovar.transports.base import Region, Transport


class Evaluation:
    """The mean of every output of the test net over `num_batches` batches, as Caffe's test pass.

    Rank r computes batches r, r + P, ...; each result is made by one rank and only copied by the others
    (x + 0 = x), and the mean is taken in batch order: the same bits for any number of workers.
    """

    def __init__(
        self,
        net: nn.Module,
        output_names: tuple[str, ...],
        reader: BatchReader,
        num_batches: int,
        transport: Transport,
        timeout_s: float,
    ) -> None:
        self.num_samples = num_batches * reader.config.batch_size
        self._net = net
        self._names = output_names
        self._reader = reader
        self._num_batches = num_batches
        self._group = transport.group
        self._timeout_s = timeout_s
        count = num_batches * len(output_names)
        window = transport.open_window("test results", count * 8, 0)
        self._results = Region.of(window, 0, count, np.float64)
        plan = tree_all_reduce(transport.group.rank, transport.group.world_size)
        self._channel = open_channel("test all-reduce", plan, transport, self._results)

    def run(self) -> dict[str, float]:
        """Mean of each output, by name; the same on every rank."""
        table = self._results.array.reshape(self._num_batches, len(self._names))
        table[...] = 0.0
        with torch.no_grad():
            for batch, tensors in evaluation_batches(self._reader, self._group, self._num_batches):
                table[batch] = self._outputs(tensors)
        self._channel.run(Deadline.after(self._timeout_s))
        return {name: float(np.mean(table[:, column])) for column, name in enumerate(self._names)}

    def _outputs(self, tensors: Mapping[str, torch.Tensor]) -> list[float]:
        output: NetOutput = self._net(tensors)
        for name in self._names:
            if output.scalars[name].numel() != 1:
                shape = tuple(output.scalars[name].shape)
                raise InputError(f"test net: output {name!r} has shape {shape}; a test pass needs single numbers")
        return [float(output.scalars[name]) for name in self._names]
