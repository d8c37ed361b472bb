"""DiLoCo: workers train on their own; an outer optimizer takes their mean distance from the start as its gradient."""

from collections.abc import Mapping

import numpy as np

from samovar import _native
from samovar.core.stateful import State, StateValue
from samovar.strategies.base import Place, strategy
from samovar.strategies.local_sgd import LocalSteps, take_array
from samovar.strategies.recipe import Recipe, always
from samovar.strategies.settings import SYNC_PERIOD
from samovar.strategies.traits import SYNC_PERIOD_STEPS, Chosen, Setting
from samovar.transports.base import Array

OUTER_RATE = Setting("outer_rate", float, "Rate of the outer step.", above=0, default=0.7, is_advanced=True)
OUTER_MOMENTUM = Setting(
    "outer_momentum", float, "Nesterov momentum of the outer step.", least=0, below=1, default=0.9, is_advanced=True
)


def _without_gain(chosen: Chosen, _num_workers: int) -> float:
    """The outer step moves the center rate / (1 - momentum) times as far as the workers went."""
    return float((1 - (chosen["outer_momentum"] or 0.0)) / (chosen["outer_rate"] or 1.0))


# Workers that go less far stay closer together, and the outer step makes up for it.
RECIPE = Recipe(settings={SYNC_PERIOD_STEPS: always(16)}, rate=_without_gain)


@strategy(
    "diloco",
    exchange="weights, every period, through an outer optimizer",
    waits_for="all workers, once a period",
    settings=(SYNC_PERIOD.by_default(50), OUTER_RATE, OUTER_MOMENTUM),
    recipe=RECIPE,
)
class DiLoCo(LocalSteps):
    """Every `sync_period_steps` steps, with c the weights that all workers set out from and v = 0 at first:

        delta = c - (1/P) sum_i x_i
        v     = momentum * v + delta
        c     = c - rate * (delta + momentum * v)
        x_i   = c

    which is a step of torch's SGD(nesterov=True). The inner optimizer's momentum stays with its worker.
    Evaluated and saved: c; between two exchanges, after `drain`, what an exchange at that moment would make of c.

    Cost: 3N floats of memory in addition to weights and gradients; every `sync_period_steps` steps one all-reduce of N
    floats, and two passes over them.

    Source: Douillard et al. 2023, DiLoCo: Distributed low-communication training of language models.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._outer = place.chosen["outer_rate"], place.chosen["outer_momentum"]
        self._center = self._weights.copy()
        self._velocity = np.zeros_like(self._center)
        self._is_common = True  # x_i = c
        self._ahead: Array | None = None  # c as an exchange now would make it

    def _stepped(self) -> None:
        self._is_common = False
        self._ahead = None

    def _exchange(self) -> None:
        self._sum_weights()
        self._outer_step(self._weights, self._center, self._velocity)
        self._is_common = True

    def _sum_weights(self) -> None:
        self._shared[:] = self._weights
        self._all_reduce.run(self._deadline())

    def _outer_step(self, weights: Array, center: Array, velocity: Array) -> None:
        _native.outer_step(weights, center, velocity, self._shared, self._world_size, *self._outer)

    def drain(self) -> None:
        """Find what an exchange would make of c now, for `center`; c and the workers' weights do not change."""
        if not self._is_common and self._ahead is None:
            self._sum_weights()
            self._outer_step(self._shared, self._center.copy(), self._velocity.copy())
            self._ahead = self._shared

    def center(self) -> Array | None:
        """c, or what `drain` found, until the next step."""
        return self._center if self._ahead is None else self._ahead

    def state_dict(self) -> State:
        return {
            "center": self._center.copy(),
            "velocity": self._velocity.copy(),
            "is_common": int(self._is_common),
        }

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        if state:
            take_array(state, "center", self._center)
            take_array(state, "velocity", self._velocity)
        else:
            self._center[:] = self._weights
            self._velocity[:] = 0.0
        self._is_common = bool(state.get("is_common", True))
        self._ahead = None
