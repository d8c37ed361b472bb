"""The weights that are tested, saved and told of, in the place of a worker's own."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from samovar.collectives.engine import Collectives, float32_region
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.strategies.base import Strategy


class EvaluatedWeights:
    """The strategy's center, where it has one; and the ranks' mean of what layers count but nobody learns.

    `statistics` names the parameters that each rank's forward passes change (BatchNorm's sums). Their mean over ranks
    is (1/P) sum_i s_i in the plan's order, the same bits on every rank.
    """

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
        self._world_size = collectives.group.world_size
        self._statistics = tuple(statistics) if self._world_size > 1 else ()
        self._deadline = deadline
        if self._statistics:
            num_elements = sum(weights.view(name).numel() for name in statistics)
            self._shared = float32_region(collectives, "statistics", num_elements)
            self._all_reduce = collectives.all_reduce("statistics", self._shared)

    @property
    def differ_between_ranks(self) -> bool:
        """Whether a rank's own weights are not those that are evaluated."""
        return self._strategy.exchanges == "weights" or bool(self._statistics)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model's weights are those that are evaluated; afterwards the worker's own again.

        Every rank must enter at the same step: what is under way is completed first. Training goes on with the same
        bits. Cost: where they differ, two copies of N floats and memory for one. Raises DeadlineExceeded.
        """
        self._strategy.drain()
        if not self.differ_between_ranks:
            yield
            return
        weights = self._weights.array_N
        own = weights.copy()
        try:
            self._put_in_place()
            yield
        finally:
            np.copyto(weights, own)

    def _put_in_place(self) -> None:
        """The center everywhere but in the statistics, which are the mean of the workers' own."""
        if self._statistics:
            parts = [self._weights.logical(name).ravel() for name in self._statistics]
            np.concatenate(parts, out=self._shared.array)
            self._all_reduce.run(self._deadline())
        if (center := self._strategy.center()) is not None:
            np.copyto(self._weights.array_N, center)
        start = 0
        for name in self._statistics:
            view = self._weights.view(name).numpy()
            view[...] = self._shared.array[start : start + view.size].reshape(view.shape) / np.float32(self._world_size)
            start += view.size
