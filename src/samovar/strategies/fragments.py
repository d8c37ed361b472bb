"""Runs of the flat weights that are exchanged one by one, each behind the computation."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from samovar.collectives.encoded import Floats
from samovar.collectives.execute import PlanRunner
from samovar.core.clock import Deadline
from samovar.core.layout import ALIGNMENT_ELEMENTS
from samovar.transports.base import Array

# step(num_learned, weights, center, velocity, differences): c and v make a step by the sum of differences; weights = c.
OuterStep: TypeAlias = Callable[[int, Array, Array, Array, Array], None]


class Phase(IntEnum):
    """How a fragment of a worker's weights stands to that of c. States hold its value."""

    OWN = 0  # steps were made since
    AWAITED = 1  # c has what the last exchange makes of it, or will; the worker's weights have not
    COMMON = 2  # the worker has just taken c


@dataclass(slots=True)
class Fragment:
    """A run of the flat weights that is exchanged as one, after the steps whose number leaves `due` of a period.

    Arrays are views: x_i, c, v and the area that `runner` sums over ranks. `residual` is what messages left out, empty
    without a codec. The first `num_learned` elements are learned.
    """

    due: int
    weights: Array
    center: Array
    velocity: Array
    summed: Array
    runner: PlanRunner
    residual: Floats
    num_learned: int
    phase: Phase = Phase.COMMON
    is_under_way: bool = False

    def post(self) -> None:
        """Begin the sum of c - x_i."""
        np.subtract(self.center, self.weights, out=self.summed)
        self.runner.start()
        self.phase, self.is_under_way = Phase.AWAITED, True

    def land(self, deadline: Deadline, step: OuterStep) -> None:
        """Complete the sum that is under way, and step c with it."""
        if self.is_under_way:
            self.runner.finish(deadline)
            self.is_under_way = False
            step(self.num_learned, self.summed, self.center, self.velocity, self.summed)

    def mix(self, share: float) -> None:
        """x_i = c + share (x_i - c): where it is c, it keeps its bits."""
        if share:
            self.weights -= self.center
            self.weights *= np.float32(share)
            self.weights += self.center
        else:
            self.weights[:] = self.center

    def look_ahead(self, deadline: Deadline, step: OuterStep) -> None:
        """summed = c as an exchange now would make it; else nothing changes."""
        if self.phase is not Phase.OWN:
            self.summed[:] = self.center
            return
        kept = self.residual.copy()
        np.subtract(self.center, self.weights, out=self.summed)
        self.runner.run(deadline)
        self.residual[:] = kept
        step(self.num_learned, self.summed, self.center.copy(), self.velocity.copy(), self.summed)


def cut(num_elements: int, num_parts: int) -> list[slice]:
    """Parts of about equal size that begin on cache lines."""
    lines = -(-num_elements // ALIGNMENT_ELEMENTS)
    bounds = [min(number * lines // num_parts * ALIGNMENT_ELEMENTS, num_elements) for number in range(num_parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]
