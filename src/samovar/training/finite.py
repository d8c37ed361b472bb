"""The end of a worker whose weights are infinite or no numbers."""

import math
from typing import Final

from samovar.core.buffer import FlatBuffer
from samovar.core.errors import NotFinite
from samovar.core.layout import LOOK_EVERY_STEPS, all_finite
from samovar.frontends.torch.late import LateLook
from samovar.frontends.torch.parameters import first_not_finite
from samovar.solver.flat import Solver
from samovar.strategies.base import Strategy
from samovar.strategies.center_steps import CenterSteps

_WHAT_TO_DO: Final = "lower base_lr, or look at this rank's data"


class FiniteCheck:
    """Check `weights` after steps, and before they are tested, saved or reported.

    Ranks in step all get the bad values of one, so the run ends. If a center refuses a worker's update, the worker
    continues from the center, with its solver's momentum cleared. It ends when it has been refused too often.

    Cost: one read of N floats every 8 steps; after a step whose loss is not finite another one. On a device no step
    waits: a look after step 8 is answered after step 16.
    """

    def __init__(self, weights: FlatBuffer, strategy: Strategy, solver: Solver, rank: int) -> None:
        self._weights = weights
        self._strategy = strategy
        self._solver = solver
        self._rank = rank
        self._when = "at the start"
        self._late_look = LateLook()
        names = [entry.spec.name for entry in reversed(weights.layout.entries)]
        self._views = {name: weights.view(name) for name in names}

    def after_step(self, steps_done: int, rate_step: int, loss: float | None) -> None:
        """Raises NotFinite; the rate of the step is that of `rate_step`. `loss` is None if it is not known yet."""
        rate = self._solver.config.policy.rate(rate_step)
        shown = "" if loss is None else f"loss {loss:.4g}, "
        self._when = f"after step {steps_done} ({shown}learning rate {rate:.4g})"
        if isinstance(self._strategy, CenterSteps):
            self._follow(self._strategy)
        elif loss is not None and not math.isfinite(loss):
            self.require()
        elif steps_done % LOOK_EVERY_STEPS == 0:
            self._look(steps_done)

    def require(self) -> None:
        """Raises NotFinite, naming the first parameter in the order of the net that is not finite."""
        if not self._weights.is_near and all_finite(self._weights.array_N):
            return
        if name := first_not_finite(self._views):
            raise NotFinite(f"rank {self._rank}: the weights of {name} are not finite {self._when}; {_WHAT_TO_DO}")

    def require_own(self) -> None:
        """Raises NotFinite if a snapshot must not hold these weights, or the histories of this worker's solver.

        At a center a worker may heal, and continues. Cost: one read of each.
        """
        if isinstance(self._strategy, CenterSteps):
            return
        self.require()
        for history in self._solver.histories:
            if name := first_not_finite({name: history.view(name) for name in self._views}):
                raise NotFinite(
                    f"rank {self._rank}: the solver's histories of {name} are not finite {self._when}: a gradient was "
                    "too large to square; set clip_gradients, or look at this rank's data"
                )

    def _look(self, steps_done: int) -> None:
        if not self._weights.is_near:
            self.require()
        elif (found := self._late_look.look(steps_done, self._views)) is not None:
            step, name = found
            raise NotFinite(f"rank {self._rank}: the weights of {name} are not finite after step {step}; {_WHAT_TO_DO}")

    def at_end(self) -> None:
        """Raise NotFinite if the center did not take this worker's last update."""
        assert isinstance(self._strategy, CenterSteps), self._strategy
        if self._strategy.is_sick:
            raise self._lost(self._strategy, "ends with weights that are not finite")

    def _follow(self, strategy: CenterSteps) -> None:
        if strategy.has_started_anew():
            self._solver.begin_again()
        if strategy.is_lost:
            raise self._lost(strategy, "had weights that are not finite too often in a row")

    def _lost(self, strategy: CenterSteps, what: str) -> NotFinite:
        times = f"the center refused {strategy.num_refused} of its updates"
        return NotFinite(f"rank {self._rank}: {what}, the last time {self._when}: {times}; {_WHAT_TO_DO}")
