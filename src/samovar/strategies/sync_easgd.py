"""Elastic averaging in step: workers and a center that all of them keep pull at each other."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from samovar import _native
from samovar.collectives.encoded import Codec, Floats
from samovar.collectives.engine import Collectives, float32_region
from samovar.collectives.execute import PlanRunner
from samovar.core.stateful import State, StateValue
from samovar.strategies.local_sgd import LocalPlace, LocalSteps, take_array
from samovar.strategies.traits import Chosen, Traits
from samovar.transports.base import Array, Region


@dataclass(frozen=True, slots=True)
class Elastic:
    """`moving_rate` is alpha; `overlap` how long an exchange may take: `none`, a `step`, or the whole `period`.

    `codec` is how differences travel; None: as they are.
    """

    moving_rate: float
    overlap: str
    codec: str | None = None


class SyncEasgd(LocalSteps):
    """Every rank keeps the same copy of the center c. Every `sync_period_steps` steps, with the same d_i on both sides:

        d_i = alpha (x_i - c)
        x_i = x_i - d_i
        c   = c + sum_i d_i        (added in the plan's fixed order)

    so sum_i x_i + c changes by gradient steps alone. A worker needs the sum only when it computes its next d_i:
    until then it may travel behind the computation. `overlap` says by when it must have come, and with that how
    fresh `center` is between exchanges; the weights that training gives are the same bits for each.
    Evaluated and saved: c, after the exchange that is under way.

    With a codec the sum is that of encoded messages, each with what the ones before left out, e_i on rank i:

        c = c + sum_i (d_i + e_i) - sum_i e'_i,        e_i = e'_i

    and sum_i (x_i + e_i) + c changes by gradient steps alone: nothing is lost, only late. All ranks add the same
    bytes, so their centers stay bitwise equal.

    Cost: 2N floats of memory beside weights and gradients; every `sync_period_steps` steps one all-reduce of N
    floats. With `period` an exchange reads and writes x and c once; else c is read once more. With a codec: the e_i,
    N floats on every rank, and its part of the bytes (`samovar.collectives.encoded`, `.gathered`).

    Source: Zhang, Choromanska and LeCun 2015 (elastic averaging); You, Buluc and Demmel 2017 (Sync EASGD); Seide et
    al. 2014 (what a message leaves out comes with the next one).
    """

    traits = Traits(
        "sync-easgd",
        ("sync_period_steps", "moving_rate", "overlap", "variant", "compress"),
        default_period_steps=8,
        overlaps=("none", "step", "period"),
    )

    def __init__(self, place: LocalPlace, elastic: Elastic) -> None:
        self._elastic = elastic
        self._residual: Floats = np.zeros(0, np.float32)
        super().__init__(place)
        self._center = self._weights.copy()
        self._is_under_way = False

    @classmethod
    def of(cls, chosen: Chosen, place: LocalPlace) -> "SyncEasgd | BroadcastEasgd":
        """`SyncEasgd`, or `BroadcastEasgd` by its variant."""
        assert chosen.moving_rate is not None
        if chosen.variant == "broadcast":
            return BroadcastEasgd(place, chosen.moving_rate)
        assert chosen.overlap is not None
        return cls(place, Elastic(chosen.moving_rate, chosen.overlap, chosen.codec))

    @property
    def is_compressed(self) -> bool | None:
        """Whether differences are, from the first exchange on; None where nobody asked for it."""
        return None if self._elastic.codec is None else len(self._residual) > 0

    def _opened(self, collectives: Collectives, name: str, shared: Region) -> PlanRunner:
        """One worker sends nothing, and encodes nothing."""
        if self._elastic.codec is None or collectives.group.world_size == 1:
            return super()._opened(collectives, name, shared)
        runner = collectives.encoded_all_reduce(name, shared, Codec(self._elastic.codec))
        self._residual = runner.residual
        return runner

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
        """`residual` is this rank's own: every rank must save its state and load it again."""
        self.drain()
        kept: State = {"center": self._center.copy()}
        if self.is_compressed and self._elastic.codec is not None:
            kept |= {"codec": self._elastic.codec, "residual": self._residual.copy()}
        return kept

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """The residual of another codec or plan is left out."""
        self.drain()
        if state:
            take_array(state, "center", self._center)
        else:
            self._center[:] = self._weights
        left_out = np.asarray(state.get("residual", ()))
        fits = state.get("codec") == self._elastic.codec and left_out.shape == self._residual.shape
        self._residual[:] = left_out if fits else 0.0


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
