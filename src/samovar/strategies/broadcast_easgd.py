"""Elastic averaging in step as it was first built: the center travels to the workers, their weights to it."""

from collections.abc import Mapping

import numpy as np

from samovar import _native
from samovar.collectives.engine import float32_region
from samovar.core.stateful import State, StateValue
from samovar.strategies.local_steps import LocalPlace, LocalSteps, take_array
from samovar.strategies.traits import Traits
from samovar.transports.base import Array


class BroadcastEasgd(LocalSteps):
    """`SyncEasgd` in two collectives. Every `sync_period_steps` steps:

        c from rank 0 to all;  s = sum_i x_i
        x_i = x_i - alpha (x_i - c)
        c   = c + alpha (s - P c)

    The same rule, other roundings, twice the traffic: kept as the baseline that `SyncEasgd` is measured against.
    Evaluated and saved: c.

    Cost: 3N floats of memory beside weights and gradients; every `sync_period_steps` steps a broadcast and an
    all-reduce of N floats each, nothing of it behind the computation.

    Source: You, Buluc and Demmel 2017, the first of their three Sync EASGD.
    """

    traits = Traits("sync-easgd, broadcast", ("sync_period_steps", "moving_rate"), default_period_steps=8)

    def __init__(self, place: LocalPlace, moving_rate: float) -> None:
        super().__init__(place)
        center = float32_region(place.collectives, "center", len(self._weights))
        self._broadcast = place.collectives.broadcast("center", center)
        self._center = center.array
        self._center[:] = self._weights
        self._differences = np.empty_like(self._center)
        self._moving_rate = moving_rate

    def _stepped(self) -> None:
        """Nothing: no exchange outlives its step."""

    def _exchange(self) -> None:
        deadline = self._deadline()
        self._shared[:] = self._weights
        self._broadcast.run(deadline)
        self._all_reduce.run(deadline)
        _native.elastic_pull(self._weights, self._center, self._differences, self._moving_rate)
        pull = self._shared - np.float32(self._world_size) * self._center
        self._center += np.float32(self._moving_rate) * pull

    def drain(self) -> None:
        """Nothing: no exchange outlives its step."""

    def center(self) -> Array | None:
        return self._center

    def state_dict(self) -> State:
        return {"center": self._center.copy()}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        if state:
            take_array(state, "center", self._center)
        else:
            self._center[:] = self._weights
