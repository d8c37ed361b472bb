"""SlowMo: workers train on their own; their mean distance from the start moves a slow momentum."""

from dataclasses import replace

import numpy as np

from samovar.strategies.base import strategy
from samovar.strategies.diloco import OUTER_MOMENTUM, OUTER_RATE, DiLoCo, without_gain
from samovar.strategies.recipe import Recipe, always
from samovar.strategies.settings import SYNC_PERIOD
from samovar.strategies.traits import SYNC_PERIOD_STEPS
from samovar.transports.base import Array


@strategy(
    "slowmo",
    exchange="weights, every period, through a slow momentum",
    waits_for="all workers, once a period",
    settings=(
        SYNC_PERIOD.by_default(12),
        OUTER_RATE.by_default(1.0),
        replace(OUTER_MOMENTUM, help="Slow momentum of the outer step.").by_default(0.5),
    ),
    recipe=Recipe(
        {SYNC_PERIOD_STEPS: always(8), OUTER_RATE.name: always(0.5), OUTER_MOMENTUM.name: always(0.3)},
        rate=without_gain,
    ),
    regroups=True,
    leaves_frozen_out=True,
)
class SlowMo(DiLoCo):
    """Every `sync_period_steps` steps, with c the weights that all workers set out from and u = 0 at first:

        delta = (1/P) sum_i (c - x_i)
        u     = momentum * u + delta
        c     = c - rate * u
        x_i   = c

    which at a constant learning rate gamma is the paper's u' = u / gamma. With rate 1 and momentum 0 it is `local-sgd`.
    Evaluated and saved: as `DiLoCo`.

    Cost: as `DiLoCo`; four passes over N floats.

    Source: Wang, Tantia, Ballas and Rabbat 2020, SlowMo, equations 2 and 3.
    """

    def _outer_step(self, weights: Array, center: Array, velocity: Array, summed: Array, *outer: float) -> None:
        rate, momentum = (np.float32(value) for value in outer)
        summed /= np.float32(self._world_size)
        velocity *= momentum
        velocity += summed
        center -= rate * velocity
        weights[:] = center
