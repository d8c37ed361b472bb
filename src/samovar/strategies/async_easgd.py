"""Elastic averaging one worker at a time: first come first served, with momentum, without locks, or in rank order."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from samovar.core.stateful import StateValue
from samovar.strategies.base import Place, strategy
from samovar.strategies.center_steps import ElasticSteps, planned
from samovar.strategies.settings import (
    ELASTIC_RECIPE,
    MAX_REFUSED,
    MOVING_RATE,
    OVERLAP,
    SYNC_PERIOD,
    WORKER_RATE,
    further,
)
from samovar.transports.base import Array, Notification

_SETTINGS = (
    SYNC_PERIOD.by_default(8),
    MOVING_RATE.by_default(lambda _, world_size: min(0.9 / world_size, 0.5), "min(0.9 / workers, 0.5)"),
    WORKER_RATE,
    MAX_REFUSED,
)


@strategy(
    "async-easgd",
    exchange="the elastic difference to one center, at its own speed",
    waits_for="locks of the center's chunks",
    settings=(*_SETTINGS, replace(OVERLAP.among("none", "period"), default_words="`none`")),
    recipe=ELASTIC_RECIPE,
    is_replayable=True,
)
class AsyncEasgd(ElasticSteps):
    """Workers step on their own, with any solver. Every `sync_period_steps` steps, with one d on both sides:

        d   = alpha (x_i - c)
        x_i = x_i - d
        c   = c + d             (chunk by chunk, first come, first served)

    So sum_i x_i + c changes by gradient steps alone, unless `worker_rate` beta is above alpha: then x_i goes
    beta (x_i - c), and c goes d. A worker waits for the chunks' locks, for no other worker. Staleness counts the
    others' exchanges since its own last one.

    With `overlap` "period" the exchange runs behind the next `sync_period_steps` steps. x_i is sent as it is. d comes
    back, and is subtracted where the next exchange begins. c has d earlier than x_i has.

    Cost: N floats of memory in addition to weights and gradients, with overlap 3N. An exchange reads and writes N
    floats at the center, in one pass over x and c; overlap adds two copies.

    Source: Zhang, Choromanska and LeCun 2015 (asynchronous EASGD); You, Buluc and Demmel 2017 (Async EASGD), who
    find it faster to the same accuracy than Async SGD.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._overlaps = overlaps = place.chosen.overlap == "period"
        self._rate_sent = self._rate
        # x as it was sent, and as it comes back.
        self._sent, self._pulled = (np.empty_like(self._weights if overlaps else self._weights[:0]) for _ in range(2))

    def drain(self) -> None:
        """Wait for the exchange under way, and take its d off these weights."""
        if self._has_come():
            self._sent -= self._pulled
            if more := further(self._worker_rate, self._rate_sent):
                self._sent *= 1 + more
            self._weights -= self._sent

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Wait for the exchange under way first; its d belongs to weights that are replaced."""
        self._has_come()
        super().load_state_dict(state)

    def _take_center(self) -> None:
        self._has_come()
        super()._take_center()

    def _exchange(self) -> None:
        if not self._overlaps:
            self._note_update(self._exchanged(self._rate))
            return
        self.drain()
        self._sent[:] = self._pulled[:] = self._weights
        self._rate_sent = self._rate  # workers may come before d does
        self._under_way = self._center.exchange_in_background(self._next_sequence(), self._pulled, self._rate_sent)


@strategy(
    "async-measgd",
    exchange="the same as `async-easgd`; the optimizer must have momentum",
    needs_momentum=True,
    recipe=ELASTIC_RECIPE,
)
class AsyncMeasgd(AsyncEasgd):
    """`AsyncEasgd` whose workers' solver has momentum mu, which stays with its worker:

        v_i = mu v_i - eta g_i;  x_i = x_i + v_i, then the exchange

    Cost: as `AsyncEasgd`, and the solver's.

    Source: Zhang, Choromanska and LeCun 2015 (EAMSGD); You, Buluc and Demmel 2017 (Async MEASGD), who find it
    faster to the same accuracy than Async MSGD.
    """


@strategy(
    "hogwild-easgd",
    exchange="the same as `async-easgd`, without locks: of two exchanges at once one may be lost",
    waits_for="no other worker",
    has_locks=False,
    is_replayable=False,
    recipe=ELASTIC_RECIPE,
)
class HogwildEasgd(AsyncEasgd):
    """`AsyncEasgd` at a center without locks: of two exchanges of one element at the same time one may be lost.

    A worker's own side is whole, so sum_i x_i + c may change by the lost part. No worker waits.

    Cost: as `AsyncEasgd`.

    Source: Recht, Re, Wright and Niu 2011 (Hogwild); You, Buluc and Demmel 2017 (Hogwild EASGD), who find it as
    fast as Sync EASGD, and both the fastest of all.
    """


@strategy(
    "round-robin-easgd",
    exchange="the elastic difference to one center, in the order of ranks",
    waits_for="the rank before",
    settings=_SETTINGS,
    in_turn=True,
    is_replayable=False,
    recipe=ELASTIC_RECIPE,
)
class RoundRobinEasgd(AsyncEasgd):
    """`AsyncEasgd` strictly in the order of ranks: worker i + 1 exchanges when worker i has, rank 0 after the last.

    The same bits at every run. Notifications carry the turn around. `drain` carries it around once more, so that
    all ranks read the same c, which `center` gives until the next one. All ranks must exchange and drain equally often.

    Cost: as `AsyncEasgd`, and P exchanges one after the other each time.

    Source: You, Buluc and Demmel 2017 (Original EASGD), whose Sync EASGD takes 5.3 times less time.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        collectives = place.collectives
        self._ring = planned(collectives, place.chosen.name).transport.open_window("turns", 0, 1)
        self._group = collectives.group
        self._num_turns = 0
        self._is_drained = False

    def exchanges_at(self, step: int) -> bool:
        return self.is_due(step)

    def drain(self) -> None:
        """Read c when all ranks have had their turn. Waits for them: all must call it after the same step."""
        if not self._is_drained:
            self._in_turn(lambda: self._center.read(self._copy, self._deadline()))
            self._is_drained = True

    def center(self) -> Array | None:
        """c as the last `drain` found it."""
        self.drain()
        return self._copy

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        super().load_state_dict(state)
        self._is_drained = False

    def _meet_center(self) -> None:
        """Pass the turn on, even if this rank's exchange is refused."""
        self._in_turn(super()._meet_center)
        self._is_drained = False

    def _in_turn(self, act: Callable[[], object]) -> None:
        """Wait for the rank before, act, tell the next one."""
        rank, world_size = self._group.rank, self._group.world_size
        turn = self._num_turns + (rank > 0)
        before, following = (rank - 1) % world_size, (rank + 1) % world_size
        if turn and world_size > 1:
            self._ring.wait(0, turn, before, self._deadline())
        act()
        self._num_turns += 1
        if world_size > 1:
            self._ring.notify(following, Notification(0, self._num_turns))
