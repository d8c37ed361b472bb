"""The mean over ranks of a model's floating buffers (BatchNorm's statistics), for evaluation."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from torch import nn

from samovar.api.crews import by_windows, lasting_ranks
from samovar.api.process_group import ProcessGroup
from samovar.collectives.engine import float32_region
from samovar.core.clock import Deadline
from samovar.frontends.torch.buffers import BufferMean, mean_buffers


class SummedBuffers:
    """Of ranks that meet to evaluate: an all-reduce."""

    def __init__(self, model: nn.Module, team: ProcessGroup, deadline: Callable[[], Deadline]) -> None:
        num_elements = sum(buffer.numel() for buffer in mean_buffers(model))
        self._is_needed = num_elements > 0 and team.group.world_size > 1
        if self._is_needed:
            region = float32_region(team.collectives, "buffers", num_elements)
            self._mean = BufferMean(model, region.array)
            self._runner = team.collectives.all_reduce("buffers", region)
        self._deadline = deadline
        self._scale = 1.0 / team.group.world_size

    def stepped(self) -> None:
        """Nothing: they are summed when they are asked for."""

    def sum(self) -> None:
        if self._is_needed:
            self._mean.gather()
            self._runner.run(self._deadline())

    @contextmanager
    def mean(self) -> Iterator[None]:
        self.sum()
        with ExitStack() as stack:
            if self._is_needed:
                stack.enter_context(self._mean.replaced(self._scale))
            yield


class ShownBuffers:
    """Of ranks that step freely: each shows its own after every step, and whoever wants the mean reads all of them.

    The ranks are those of this host; one that died counts with what it showed last. Cost: a copy at each step.
    """

    def __init__(self, model: nn.Module, team: ProcessGroup) -> None:
        self._num_elements = sum(buffer.numel() for buffer in mean_buffers(model))
        reached = by_windows(team.collectives)
        self._ranks = lasting_ranks(reached) if self._num_elements else ()
        # The last element: 1 when the others are shown.
        self._region = float32_region(reached, "shown buffers", self._num_elements + 1)
        self._own = BufferMean(model, self._region.array)
        self._sum = np.zeros(self._num_elements, np.float32)
        self._mean = BufferMean(model, self._sum)

    def stepped(self) -> None:
        if self._ranks:
            self._own.gather()
            self._region.array[-1] = 1.0

    def sum(self) -> None:
        """Nothing: who wants the mean reads what is shown."""

    @contextmanager
    def mean(self) -> Iterator[None]:
        self.stepped()
        shown, count = np.empty_like(self._region.array), 0
        self._sum[:] = 0.0
        for rank in self._ranks:
            self._region.window.get(rank, self._region.offset, shown)
            if shown[-1]:
                self._sum += shown[:-1]
                count += 1
        with self._mean.replaced(1.0 / max(1, count)):
            yield
