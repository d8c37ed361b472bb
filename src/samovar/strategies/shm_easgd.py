"""Elastic averaging through shared memory: the worker reads the center, and its push travels behind the next steps."""

import numpy as np

from samovar import _native
from samovar.box.base import Versions
from samovar.strategies.base import Place, strategy
from samovar.strategies.center_steps import ElasticSteps
from samovar.strategies.config import StrategyConfig
from samovar.strategies.settings import (
    ELASTIC_RECIPE,
    MAX_REFUSED,
    MAX_STALENESS,
    MOVING_RATE,
    READ_FIRST,
    SYNC_PERIOD,
    WORKER_RATE,
    diverging_rate,
    further,
    num_pushers,
    pulls_too_far,
)


@strategy(
    "shm-easgd",
    exchange="the elastic difference, pushed to the center while the next steps compute",
    waits_for="its own last push",
    settings=(
        SYNC_PERIOD.by_default(4),
        MOVING_RATE.by_default(lambda chosen, world_size: 0.5 / num_pushers(chosen, world_size), "0.5 / workers"),
        WORKER_RATE,
        MAX_STALENESS,
        READ_FIRST,
        MAX_REFUSED,
    ),
    pushes=True,
    recipe=ELASTIC_RECIPE,
    is_replayable=True,
)
class ShmEasgd(ElasticSteps):
    """SEASGD, as ShmCaffe-A runs it. Workers step on their own. Every `sync_period_steps` steps:

        wait for the own push before;  read c
        d   = alpha (x_i - c)
        x_i = x_i - d
        c   = c + d             (pushed in the background, while the next steps compute)

    So sum_i x_i + c changes by gradient steps alone, when all pushes have come, unless `worker_rate` beta is above
    alpha: then x_i goes beta (x_i - c), and c goes d. `read_first` reads c before it waits,
    as ShmCaffe does: c may then lack the worker's own last push. It waits for that push, for no other worker.

    Between a read and its push others change c. A default alpha is reduced to 1 / (1 + staleness), with the mean of the
    last pushes' staleness, if it is above. A given alpha is used as it is, with a warning. With `max_staleness_steps`
    S, the exchange after a push staler than S reads and changes c under its locks.

    Cost: 2N floats of memory in addition to weights and gradients. An exchange reads N floats, pushes N behind the
    computation, and makes one pass over x and c.

    Source: Ahn et al. 2018 (ShmCaffe): 11.5 times one GPU's speed with 16, and 5.7 points of accuracy lost there
    with alpha = 0.2 at every scale.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._reads_first = bool(place.chosen.read_first)
        self._max_staleness_steps = place.chosen.max_staleness_steps
        self._difference = np.empty_like(self._weights)
        self._is_warned = False

    @classmethod
    def warnings(cls, chosen: StrategyConfig, world_size: int) -> tuple[str, ...]:
        """Pushes may all read the same c, as in one exchange of all at once."""
        rate, limit = chosen.moving_rate, diverging_rate(chosen.worker_rate, num_pushers(chosen, world_size))
        if rate is None or rate < limit:
            return ()
        consequence = f"diverges where all read the center before any has pushed; under {limit:.4g} it does not"
        return pulls_too_far(rate, world_size, cls.default_rate(chosen, world_size), consequence)

    def drain(self) -> None:
        """Wait until this worker's push is in the center."""
        self._has_come()

    def _exchange(self) -> None:
        seen = self._read() if self._reads_first else None
        self.drain()
        if seen is not None and self._seen is not None:
            seen += self._seen > seen  # the worker's own push is no update of others
        if self._max_staleness_steps is not None and self.staleness.last > self._max_staleness_steps:
            versions = self._exchanged(self._usable_rate())  # read and changed at once: nothing is stale
            self._seen = versions - 1
            self._note_update(versions)
            return
        self._seen = self._read() if seen is None else seen
        rate = self._usable_rate()
        _native.elastic_pull(self._weights, self._copy, self._difference, rate)
        if more := further(self._worker_rate, rate):
            self._weights -= more * self._difference
        self._under_way = self._center.accumulate_in_background(self._next_sequence(), self._difference)

    def _read(self) -> Versions:
        return self._center.read(self._copy, self._deadline())

    def _usable_rate(self) -> float:
        most = 1.0 / (1.0 + self.staleness.mean)
        if self._rate <= most:
            return self._rate
        self._warn(most)
        return most if self._is_default else self._rate

    def _warn(self, most: float) -> None:
        if not self._is_warned:
            self._is_warned = True
            consequence = (
                "which is used while pushes are as stale"
                if self._is_default
                else "and the center may swing; the rate is used as it was given"
            )
            self._notices.append(
                f"moving rate {self._rate:.4g}: others make {self.staleness.mean:.1f} updates between this worker's "
                f"read of the center and its push; more than {most:.4g} is too much then, {consequence}"
            )
