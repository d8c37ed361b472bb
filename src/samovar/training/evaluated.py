"""The weights that are tested, saved and told of, in the place of a worker's own."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from samovar.box.base import CenterWithVelocity
from samovar.collectives.engine import Collectives, float32_region
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.stateful import State
from samovar.membership.progress_table import ProgressTable
from samovar.strategies.base import Strategy
from samovar.transports.base import Array


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


class CenterWeights:
    """The center as it is now; in it, of what layers count but nobody learns (`statistics`), the workers' mean.

    Workers are those of the launch. Unlike `EvaluatedWeights`, which every rank must enter at one step, here nobody
    waits.
    """

    differ_between_ranks = False  # a snapshot holds the center alone, whoever writes it

    def __init__(
        self,
        center: CenterWithVelocity,
        with_velocity: bool,
        weights: FlatBuffer,
        statistics: Sequence[str],
        crew: ProgressTable,
        deadline: Callable[[], Deadline],
    ) -> None:
        self._center = center
        self._with_velocity = with_velocity
        self._weights = weights
        self._views = [weights.view(name).numpy() for name in statistics]
        self._crew = crew
        self._deadline = deadline
        self._read = np.empty_like(weights.array_N)
        self._settled: Array | None = None

    def settle(self) -> None:
        """From now on the center is what it is now, whoever goes on to change it: what this launch gives.

        Cost: N floats of memory.
        """
        self._settled = np.empty_like(self._read)
        self._center.read(self._settled, self._deadline())

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model's weights are the center; afterwards the worker's own again, with the same bits.

        Cost: three copies of N floats and memory for two. Raises DeadlineExceeded.
        """
        own = self._weights.array_N.copy()
        try:
            self._take_center()
            self._put_statistics(self._crew.mean_statistics())
            yield
        finally:
            np.copyto(self._weights.array_N, own)

    def strategy_state(self) -> State:
        """Inside `in_place`: what a strategy has in a snapshot beside the center, and the center to which it belongs.

        Read past the strategy, whose own way to the center may be recorded. Cost: two copies of N floats at most.
        """
        if not self._with_velocity:
            return {}
        velocity = np.empty_like(self._read)
        self._center.read_velocity(velocity, self._deadline())
        return {"center": self._weights.array_N.copy(), "velocity": velocity}

    def publish_statistics(self) -> None:
        """Show the others what this worker's layers count."""
        start, shown = 0, self._crew.own_statistics
        for view in self._views:
            shown[start : start + view.size] = view.ravel()
            start += view.size

    def take_statistics(self) -> None:
        """Go on from what this worker's earlier life showed, if it came so far."""
        if self._crew.has_shown:
            self._put_statistics(self._crew.own_statistics)

    def distance(self) -> float:
        """||x - c|| / ||c||, x being this worker's weights. Cost: a read of the center."""
        self._center.read(self._read, self._deadline())
        length = float(np.linalg.norm(self._read))
        np.subtract(self._weights.array_N, self._read, out=self._read)
        return float(np.linalg.norm(self._read)) / length if length > 0 else 0.0

    def _take_center(self) -> None:
        if self._settled is None:
            self._center.read(self._weights.array_N, self._deadline())
        else:
            np.copyto(self._weights.array_N, self._settled)

    def _put_statistics(self, values: np.typing.NDArray[np.float32]) -> None:
        start = 0
        for view in self._views:
            view[...] = values[start : start + view.size].reshape(view.shape)
            start += view.size
