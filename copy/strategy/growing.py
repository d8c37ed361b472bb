"""A strategy of your own: local SGD whose period grows. Workers stay close while they learn most, and send less later.

    samovar train --solver solver.prototxt --workers 2 --strategy growing.py:GrowingSgd --growth 1.2

In a loop of your own: `samovar.replicate(model, optimizer, GrowingSgd, growth=1.2)`.
"""

import math

import samovar
from samovar.strategies.base import Place
from samovar.strategies.local_sgd import LocalSgd
from samovar.strategies.settings import SYNC_PERIOD

GROWTH = samovar.Setting("growth", float, "How many times longer each period is than the last.", above=1, default=1.5)


@samovar.strategy("growing-sgd", settings=(SYNC_PERIOD.by_default(2), GROWTH))
class GrowingSgd(LocalSgd):
    """Workers take the mean of their weights after tau steps of their own, then after tau g, tau g^2, ... more.

    Exchange k comes after tau (g^k - 1) / (g - 1) steps: which steps have one depends on nothing else, so that a run
    that is resumed has the same bits.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._first_steps, self._growth = place.chosen["sync_period_steps"], place.chosen["growth"]

    def exchanges_at(self, step: int) -> bool:
        return self._num_exchanges(step + 1) > self._num_exchanges(step)

    def _num_exchanges(self, num_steps: int) -> int:
        periods = math.log1p(num_steps * (self._growth - 1) / self._first_steps) / math.log(self._growth)
        return int(periods + 1e-9)  # what rounding takes from a whole number
