"""The mean over ranks of BatchNorm's running statistics, which layers count and the solver does not learn."""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.transports.base import Array, Region


class SummedStatistics:
    """The mean over ranks in step: (1/P) sum_i s_i in the plan's order and in float64, the same bits on every rank.

    So a float32 that is equal on all ranks keeps its bits. All ranks call `mean` (or `sum`, if a rank only takes part)
    at the same place. Cost: an all-reduce of 8 bytes a value.
    """

    def __init__(self, collectives: Collectives, num_elements: int, deadline: Callable[[], Deadline]) -> None:
        self._deadline = deadline
        self._world_size = collectives.group.world_size
        memory = collectives.region("statistics", 8 * num_elements)
        region = Region.of(memory.window, memory.offset, num_elements, np.float64)
        self.own = region.array
        self._all_reduce = collectives.all_reduce("statistics", region)

    def sum(self) -> None:
        """Replace `own` by the sum."""
        self._all_reduce.run(self._deadline())

    def mean(self) -> Array:
        self.sum()
        return self.own / self._world_size


NUM_MARKS = 3  # float32s after a rank's statistics: the time of the last step, as one float64, and the mean step
_LATE_STEPS = 32


class ShownStatistics:
    """The mean over asynchronous ranks: each shows its statistics after every step, and any of them reads all.

    `region`, float32 (num_elements + NUM_MARKS,), is in memory that the `ranks` can read of each other, also of a dead
    one. Weights move on, so statistics age: a rank counts while it made a step in the last 32 steps of its own pace.
    The rank of the last step counts always. A rank does not count if a value of it is infinite or NaN, and that of
    another rank is finite. A value that no rank has finite stays so: a mask of -inf, for example.
    """

    def __init__(self, region: Region, ranks: Sequence[int]) -> None:
        self._region, self._ranks = region, ranks
        self.own = region.array[:-NUM_MARKS]
        self.were_shown = _time_s(region.array) > 0  # by an earlier life of this rank

    def show(self, *, has_stepped: bool = True) -> None:
        """Let others read `own` from now on."""
        marks, now_s, last_s = self._region.array[-NUM_MARKS:], time.monotonic(), _time_s(self._region.array)
        if last_s > 0 and not has_stepped:
            return
        step_s, mean_s = now_s - last_s if last_s > 0 else math.inf, float(marks[2])  # known from the second step on
        marks[2] = mean_s + 0.1 * (step_s - mean_s) if 0 < mean_s < math.inf else step_s
        marks[:2].view(np.float64)[0] = now_s

    def mean(self) -> Array:
        """The mean of all that count; zeros if none was shown."""
        rows = [row for row in map(self._row, self._ranks) if _time_s(row) > 0]
        if not rows:
            return np.zeros_like(self.own)
        last_s = max(map(_time_s, rows))
        values = np.stack([row[:-NUM_MARKS] for row in rows if last_s - _time_s(row) <= _LATE_STEPS * row[-1]])
        finite = np.isfinite(values)
        is_well = np.all(finite | ~finite.any(axis=0), axis=1)
        chosen = values[is_well] if is_well.any() else values
        with np.errstate(invalid="ignore"):
            return np.asarray(np.add.reduce(chosen, axis=0, dtype=np.float64) / len(chosen), np.float32)

    def _row(self, rank: int) -> Array:
        shown = np.empty_like(self._region.array)
        self._region.window.get(rank, self._region.offset, shown)
        return shown


def _time_s(row: Array) -> float:
    return float(row[-NUM_MARKS:-1].view(np.float64)[0])
