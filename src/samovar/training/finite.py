"""The end of a worker whose weights are infinite or no numbers."""

import math
from typing import Final

from samovar.core.buffer import FlatBuffer
from samovar.core.errors import NotFinite
from samovar.core.layout import LOOK_EVERY_STEPS, all_finite, first_not_finite
from samovar.solver.flat import Solver
from samovar.strategies.base import Strategy
from samovar.strategies.center_steps import CenterSteps

_WHAT_TO_DO: Final = "lower base_lr, or look at this rank's data"


class FiniteCheck:
    """Check `weights` after steps, and before they are tested, saved or reported.

    Ranks in step all get the bad values of one, so the run ends. If a center refuses a worker's update, the worker
    continues from the center, with its solver's momentum cleared. It ends when it has been refused too often.

    Cost: one read of N floats every 8 steps; after a step whose loss is not finite another one.
    """

    def __init__(self, weights: FlatBuffer, strategy: Strategy, solver: Solver, rank: int) -> None:
        self._weights = weights
        self._strategy = strategy
        self._solver = solver
        self._rank = rank
        self._when = "at the start"

    def after_step(self, steps_done: int, rate_step: int, loss: float) -> None:
        """Raises NotFinite; the rate of the step is that of `rate_step`."""
        rate = self._solver.config.policy.rate(rate_step)
        self._when = f"after step {steps_done} (loss {loss:.4g}, learning rate {rate:.4g})"
        if isinstance(self._strategy, CenterSteps):
            self._follow(self._strategy)
        elif steps_done % LOOK_EVERY_STEPS == 0 or not math.isfinite(loss):
            self.require()

    def require(self) -> None:
        """Raises NotFinite, naming the first parameter in the order of the net that is not finite."""
        weights = self._weights.array_N
        if not all_finite(weights):
            name = first_not_finite(reversed(self._weights.layout.entries), weights)
            raise NotFinite(f"rank {self._rank}: the weights of {name} are not finite {self._when}; {_WHAT_TO_DO}")

    def at_end(self) -> None:
        """Raise NotFinite if the center did not take this worker's last update."""
        assert isinstance(self._strategy, CenterSteps), self._strategy
        if self._strategy.is_sick:
            raise self._lost(self._strategy, "ends with weights that are not finite")

    def _follow(self, strategy: CenterSteps) -> None:
        if strategy.has_started_anew():
            for history in self._solver.histories:
                history.array_N.fill(0.0)
        if strategy.is_lost:
            raise self._lost(strategy, "had weights that are not finite too often in a row")

    def _lost(self, strategy: CenterSteps, what: str) -> NotFinite:
        times = f"the center refused {strategy.num_refused} of its updates"
        return NotFinite(f"rank {self._rank}: {what}, the last time {self._when}: {times}; {_WHAT_TO_DO}")
