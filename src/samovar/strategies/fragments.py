"""Runs of the flat weights that are exchanged one by one, each behind the computation."""

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np

from samovar.collectives.encoded import Floats
from samovar.collectives.execute import PlanRunner
from samovar.core.clock import Deadline
from samovar.core.layout import ALIGNMENT_ELEMENTS
from samovar.transports.base import Array


@dataclass(frozen=True, slots=True)
class OuterStep:
    """A step of SGD with Nesterov's momentum, by the mean of `world_size` differences; by that alone if not learned."""

    world_size: int
    rate: float
    momentum: float

    def apply(self, differences: Array, center: Array, velocity: Array, num_learned: int) -> None:
        """Change center and velocity in place, by the sum of differences, whose array is scratch afterwards."""
        rate, momentum = np.float32(self.rate), np.float32(self.momentum)
        differences /= np.float32(self.world_size)
        moves, velocity = differences[:num_learned], velocity[:num_learned]
        velocity *= momentum
        velocity += moves
        moves += momentum * velocity
        moves *= rate
        center -= differences


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

    def land(self, deadline: Deadline, outer: OuterStep) -> None:
        """Complete the sum that is under way, and step c with it."""
        if self.is_under_way:
            self.runner.finish(deadline)
            self.is_under_way = False
            outer.apply(self.summed, self.center, self.velocity, self.num_learned)

    def mix(self, share: float) -> None:
        """x_i = c + share (x_i - c): where it is c, it keeps its bits."""
        if share:
            self.weights -= self.center
            self.weights *= np.float32(share)
            self.weights += self.center
        else:
            self.weights[:] = self.center

    def look_ahead(self, deadline: Deadline, outer: OuterStep) -> None:
        """summed = c as an exchange now would make it; else nothing changes."""
        ahead = self.center.copy()
        if self.phase is Phase.OWN:
            kept = self.residual.copy()
            np.subtract(self.center, self.weights, out=self.summed)
            self.runner.run(deadline)
            self.residual[:] = kept
            outer.apply(self.summed, ahead, self.velocity.copy(), self.num_learned)
        self.summed[:] = ahead


def cut(num_elements: int, num_parts: int) -> list[slice]:
    """Parts of about equal size that begin on cache lines."""
    lines = -(-num_elements // ALIGNMENT_ELEMENTS)
    bounds = [min(number * lines // num_parts * ALIGNMENT_ELEMENTS, num_elements) for number in range(num_parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]
