"""The mean over ranks of a model's floating buffers (BatchNorm's statistics), for evaluation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from torch import nn

from samovar.api.process_group import ProcessGroup, by_windows, lasting_ranks
from samovar.collectives.engine import float32_region
from samovar.core.clock import Deadline
from samovar.frontends.torch.state import BufferMean, mean_buffers
from samovar.membership.statistics import ShownStatistics, SummedStatistics


class ReplicaBuffers:
    """Of ranks that meet to evaluate the sum; of those at their own speed what each shows after its steps.

    These are the ranks of this host; one that died counts with what it showed last. Cost there: a copy at each step.
    """

    def __init__(
        self, model: nn.Module, processes: ProcessGroup, deadline: Callable[[], Deadline], *, is_async: bool
    ) -> None:
        num_elements = sum(buffer.numel() for buffer in mean_buffers(model))
        self._summed: SummedStatistics | None = None
        self._shown: ShownStatistics | None = None
        if not num_elements or processes.group.world_size == 1:
            return
        if is_async:
            reached = by_windows(processes.collectives)
            region = float32_region(reached, "shown buffers", num_elements + 1)
            self._shown = ShownStatistics(region, lasting_ranks(reached))
        else:
            self._summed = SummedStatistics(processes.collectives, num_elements, deadline)
        self._result = np.zeros(num_elements, np.float32)
        self._gathered = BufferMean(model, (self._shown or self._summed).own)  # type: ignore[union-attr]
        self._mean = BufferMean(model, self._result)

    def stepped(self) -> None:
        """After each step."""
        if self._shown is not None:
            self._gathered.gather()
            self._shown.show()

    def sum(self) -> None:
        """Take part in a mean that others want."""
        if self._summed is not None:
            self._gathered.gather()
            self._summed.sum()

    @contextmanager
    def mean(self) -> Iterator[None]:
        """Inside, the model's buffers are the mean."""
        statistics = self._shown or self._summed
        if statistics is None:
            yield
            return
        self._gathered.gather()
        if self._shown is not None:
            self._shown.show()
        self._result[:] = statistics.mean()
        with self._mean.replaced(1.0):
            yield
