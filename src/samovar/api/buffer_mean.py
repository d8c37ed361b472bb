"""The mean over ranks of a model's floating buffers (BatchNorm's statistics), for evaluation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from torch import nn

from samovar.api.process_group import ProcessGroup, by_windows, lasting_ranks
from samovar.collectives.engine import float32_region
from samovar.core.clock import Deadline
from samovar.frontends.torch.state import BufferMean, num_values
from samovar.membership.statistics import NUM_MARKS, ShownStatistics, SummedStatistics


class ReplicaBuffers:
    """The mean of all ranks' buffers. Ranks in step add theirs up when they evaluate.

    Ranks at a center show theirs after each `period` steps instead, which costs a copy, and on a device a wait. Only
    ranks of this host that still make steps count then.
    """

    def __init__(
        self,
        model: nn.Module,
        processes: ProcessGroup,
        deadline: Callable[[], Deadline],
        *,
        is_async: bool,
        period: int = 1,
    ) -> None:
        self._period = period
        num_elements = num_values(model)
        self._summed: SummedStatistics | None = None
        self._shown: ShownStatistics | None = None
        if not num_elements or processes.group.world_size == 1:
            return
        if is_async:
            reached = by_windows(processes.collectives)
            region = float32_region(reached, "shown buffers", num_elements + NUM_MARKS)
            self._shown = ShownStatistics(region, lasting_ranks(reached))
        else:
            self._summed = SummedStatistics(processes.collectives, num_elements, deadline)
        self._result = np.zeros(num_elements)
        self._gathered = BufferMean(model, (self._shown or self._summed).own)  # type: ignore[union-attr]
        self._mean = BufferMean(model, self._result)

    def stepped(self, step: int) -> None:
        """Show this rank's buffers if it is time; call it after each step."""
        if self._shown is not None and step % self._period == 0:
            self._gathered.gather()
            self._shown.show()

    def close(self) -> None:
        """Let go of the memory that other ranks reach."""
        if self._summed is not None or self._shown is not None:
            self._summed = self._shown = None
            del self._gathered

    def sum(self) -> None:
        """Take part in a mean that others need."""
        if self._summed is not None:
            self._gathered.gather()
            self._summed.sum()

    @contextmanager
    def mean(self) -> Iterator[None]:
        """A context in which the model's buffers are the mean."""
        statistics = self._shown or self._summed
        if statistics is None:
            yield
            return
        self._gathered.gather()
        if self._shown is not None:
            self._shown.show(has_stepped=False)
        self._result[:] = statistics.mean()
        with self._mean.replaced(1.0):
            yield
