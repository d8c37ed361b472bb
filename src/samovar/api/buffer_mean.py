"""The mean over ranks of a model's floating buffers (BatchNorm's statistics), for evaluation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from samovar.api.process_group import ProcessGroup, by_windows, lasting_ranks
from samovar.collectives.engine import float32_region
from samovar.core.clock import Deadline
from samovar.frontends.torch.state import BufferMean
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
        self._buffers = BufferMean(model)
        num_elements = self._buffers.size
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

    def stepped(self, step: int) -> None:
        """Show this rank's buffers if it is time; call it after each step."""
        if self._shown is not None and step % self._period == 0:
            self._buffers.gather(self._shown.own)
            self._shown.show()

    def close(self) -> None:
        """Let go of the memory that other ranks reach."""
        self._summed = self._shown = None

    def sum(self) -> None:
        """Take part in a mean that others need."""
        if self._summed is not None:
            self._buffers.gather(self._summed.own)
            self._summed.sum()

    @contextmanager
    def mean(self) -> Iterator[None]:
        """A context in which the model's buffers are the mean."""
        statistics = self._shown or self._summed
        if statistics is None:
            yield
            return
        self._buffers.gather(statistics.own)
        if self._shown is not None:
            self._shown.show(has_stepped=False)
        with self._buffers.replaced(statistics.mean()):
            yield
