"""Elastic averaging in step: workers and a center that all of them keep pull at each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from samovar import _native
from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.strategies.local_steps import LocalSteps, take_array
from samovar.transports.base import Array, Region


@dataclass(frozen=True, slots=True)
class Elastic:
    """`moving_rate` is alpha; `overlap` how long an exchange may take: `none`, a `step`, or the whole `period`."""

    moving_rate: float
    overlap: str


class SyncEasgd(LocalSteps):
    """Every rank keeps the same copy of the center c. Every `sync_period_steps` steps, with the same d_i on both sides:

        d_i = alpha (x_i - c)
        x_i = x_i - d_i
        c   = c + sum_i d_i        (added in the plan's fixed order)

    so sum_i x_i + c changes by gradient steps alone. A worker needs the sum only when it computes its next d_i:
    until then it may travel behind the computation. `overlap` says by when it must have come, and with that how
    fresh `center` is between exchanges; the weights that training gives are the same bits for each.
    Evaluated and saved: c, after the exchange that is under way.

    Cost: 2N floats of memory beside weights and gradients; every `sync_period_steps` steps one all-reduce of N
    floats. With `period` an exchange reads and writes x and c once; else c is read once more.

    Source: Zhang, Choromanska and LeCun 2015 (elastic averaging); You, Buluc and Demmel 2017 (Sync EASGD).
    """

    def __init__(
        self,
        collectives: Collectives,
        buckets: Sequence[Bucket],
        weights: Region,
        sync_period_steps: int,
        elastic: Elastic,
        deadline: Callable[[], Deadline],
    ) -> None:
        super().__init__(collectives, buckets, weights, sync_period_steps, deadline)
        self._elastic = elastic
        self._center = self._weights.copy()
        self._is_under_way = False

    def _stepped(self) -> None:
        if self._elastic.overlap == "step":
            self.drain()

    def _exchange(self) -> None:
        differences, alpha = self._shared, self._elastic.moving_rate
        if self._is_under_way:
            self._all_reduce.finish(self._deadline())
            _native.elastic_exchange(self._weights, self._center, differences, alpha)
        else:
            _native.elastic_pull(self._weights, self._center, differences, alpha)
        self._is_under_way = self._elastic.overlap != "none"
        if self._is_under_way:
            self._all_reduce.start()
        else:
            self._all_reduce.run(self._deadline())
            self._settle()

    def _settle(self) -> None:
        """c = c + sum_i d_i"""
        _native.reduce(self._center, [self._center, self._shared])

    def drain(self) -> None:
        """Complete the exchange that is under way, which all ranks have begun."""
        if self._is_under_way:
            self._all_reduce.finish(self._deadline())
            self._is_under_way = False
            self._settle()

    def center(self) -> Array | None:
        """c, after `drain`."""
        self.drain()
        return self._center

    def state_dict(self) -> State:
        self.drain()
        return {"center": self._center.copy()}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        self.drain()
        if state:
            take_array(state, "center", self._center)
        else:
            self._center[:] = self._weights
