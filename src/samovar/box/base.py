"""The interface of a center: parameters that workers change together, each at its own speed."""

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from samovar.core.clock import Deadline
from samovar.core.errors import NotFinite
from samovar.transports.base import Array, Pending

# int64 (num_chunks,): how many updates each chunk holds.
Versions: TypeAlias = npt.NDArray[np.int64]


class Push(Pending, Protocol):
    """An update under way."""

    @property
    def versions(self) -> Versions:
        """Each chunk's version with this update in it; once `wait` has returned."""


class PendingPush:
    """See `Push`: an update under way, for the end of which `landed(deadline)` waits."""

    def __init__(self, landed: Callable[[Deadline], Versions]) -> None:
        self._landed = landed
        self._versions: Versions | None = None

    @property
    def is_awaited(self) -> bool:
        return self._versions is not None

    @property
    def versions(self) -> Versions:
        assert self._versions is not None, "wait comes first"
        return self._versions

    def wait(self, deadline: Deadline) -> None:
        if self._versions is None:
            try:
                self._versions = self._landed(deadline)
            except NotFinite:  # an answer, too: the next push may come
                self._versions = np.zeros(0, np.int64)
                raise


class Center(Protocol):
    """The center c, float32 (N,), as one member sees it; cut into chunks of `chunk_elements` (the last may be smaller).

    A chunk is read and changed as a whole, in one order for all members, unless the member takes no locks. An update
    carries a `sequence` number, one more than the member's last. A chunk that holds it already stays as it is, so an
    update may be tried again after any failure. Arrays are float32 (N,), contiguous. Raises DeadlineExceeded,
    RankFailed.
    """

    @property
    def num_elements(self) -> int: ...

    @property
    def chunk_elements(self) -> int: ...

    def write(self, values: Array, deadline: Deadline) -> None:
        """c = values, which overwrites updates by others. Versions do not change."""

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        """destination = c; returns the version of each chunk that was read."""

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        """c += difference, or with momentum m and the center's own velocity v: v = m v + difference; c += v.

        Returns each chunk's version with this update in it.
        """

    def accumulate_in_background(self, sequence: int, difference: Array) -> Push:
        """Begin `accumulate`; never waits. The array must not be touched until the wait for it is over."""

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        """d = moving_rate (x - c), x -= d, c += d, for x = weights.

        Returns each chunk's version with this update in it.
        """

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> Push:
        """Begin `exchange`; waits for nothing. The array must not be touched until the wait for it is over."""


@runtime_checkable
class CenterWithVelocity(Center, Protocol):
    """A center whose velocity v, float32 (N,), can be read, and while there are no updates loaded."""

    def read_velocity(self, destination: Array, deadline: Deadline) -> Versions:
        """destination = v; returns the version of each chunk that was read."""

    def write_velocity(self, values: Array, deadline: Deadline) -> None:
        """v = values."""


class SeatCenter(CenterWithVelocity, Protocol):
    """The center of a box, as one of its members has it."""

    @property
    def lock_wait_s(self) -> float:
        """Seconds that this member lost to others at the center so far."""
