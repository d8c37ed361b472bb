"""The weights that are tested, saved and reported, in the place of a worker's own; a check that they are equal."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from samovar.box.base import CenterWithVelocity
from samovar.collectives.engine import Collectives, RecordExchange, differing_ranks, digest_record
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.errors import ReplicasDiffer
from samovar.core.near import Flat
from samovar.core.stateful import State
from samovar.membership.statistics import ShownStatistics, SummedStatistics
from samovar.strategies.base import Strategy
from samovar.transports.base import Array, Transport


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
