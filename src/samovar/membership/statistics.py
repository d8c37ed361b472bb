"""The mean over ranks of BatchNorm's running statistics, which layers count and the solver does not learn."""

from collections.abc import Callable, Sequence

import numpy as np

from samovar.collectives.engine import Collectives, float32_region
from samovar.core.clock import Deadline
from samovar.transports.base import Array, Region


class SummedStatistics:
    """The mean over ranks in step: (1/P) sum_i s_i in the plan's order, the same bits on every rank.

    All ranks call `mean` (or `sum`, if a rank only takes part) at the same place. Cost: an all-reduce.
    """

    def __init__(self, collectives: Collectives, num_elements: int, deadline: Callable[[], Deadline]) -> None:
        self._deadline = deadline
        self._world_size = np.float32(collectives.group.world_size)
        region = float32_region(collectives, "statistics", num_elements)
        self.own = region.array
        self._all_reduce = collectives.all_reduce("statistics", region)

    def sum(self) -> None:
        """Replace `own` by the sum."""
        self._all_reduce.run(self._deadline())

    def mean(self) -> Array:
        self.sum()
        return self.own / self._world_size


class ShownStatistics:
    """The mean over asynchronous ranks: each shows its statistics after every step, and any of them reads all.

    `region`, float32 (num_elements + 1,), is in memory that the `ranks` can read of each other, also of a dead one.
    Its last element says that the others are shown. A rank does not count if a value of it is infinite or NaN, and
    that of another rank is finite. A value that no rank has finite stays so: a mask of -inf, for example.
    """

    def __init__(self, region: Region, ranks: Sequence[int]) -> None:
        self._region, self._ranks = region, ranks
        self.own = region.array[:-1]
        self.were_shown = bool(region.array[-1])  # by an earlier life of this rank

    def show(self) -> None:
        """Let others read `own` from now on."""
        self._region.array[-1] = 1.0

    def mean(self) -> Array:
        """The mean of all that were shown; zeros if none was."""
        shown, rows = np.empty_like(self._region.array), []
        for rank in self._ranks:
            self._region.window.get(rank, self._region.offset, shown)
            if shown[-1]:
                rows.append(shown[:-1].copy())
        if not rows:
            return np.zeros_like(self.own)
        values = np.stack(rows)
        finite = np.isfinite(values)
        is_well = np.all(finite | ~finite.any(axis=0), axis=1)
        chosen = values[is_well] if is_well.any() else values
        with np.errstate(invalid="ignore"):
            return np.asarray(np.add.reduce(chosen, axis=0) / np.float32(len(chosen)))
