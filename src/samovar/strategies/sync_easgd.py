"""Elastic averaging in step: workers and a center that all of them keep pull at each other."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from samovar.collectives.encoded import Codec, Floats
from samovar.collectives.engine import Collectives, float32_region
from samovar.collectives.execute import PlanRunner
from samovar.core import near
from samovar.core.errors import InputError
from samovar.core.stateful import State, StateValue
from samovar.strategies.base import Place, strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.local_sgd import LocalSteps, residual_notes, residuals_fit, take_center
from samovar.strategies.recipe import Rule, always
from samovar.strategies.settings import (
    ALWAYS_COMPRESSES,
    COMPRESS_DIFFERENCES,
    ELASTIC_RECIPE,
    MOVING_RATE,
    OVERLAP,
    SYNC_PERIOD,
    WORKER_RATE,
    diverging_rate,
    further,
    pulls_too_far,
)
from samovar.strategies.traits import NONE, SYNC_PERIOD_STEPS, Chosen, Setting
from samovar.transports.base import Array, Region

# What these leave out comes with the next exchange or two.
_PROMPT_CODECS = ("bf16", "int8", "int4")


def _rate(_chosen: Chosen, world_size: int) -> float:
    """The center and the workers' mean then close nine tenths of their distance at an exchange."""
    return 0.9 / (world_size + 1)


def _each_step(rule: Rule, for_longer: Rule) -> Rule:
    """`rule` if workers exchange in each step, which a recipe has them do, unless a longer period is given."""
    return lambda chosen, world_size: (for_longer if (chosen[SYNC_PERIOD_STEPS] or 1) > 1 else rule)(chosen, world_size)


VARIANT = Setting(
    "variant",
    str,
    "How workers meet the center: by one all-reduce, or by a broadcast and an all-reduce.",
    choices=("reduce", "broadcast"),
    default="reduce",
    source="You, Buluc and Demmel 2017",
    is_advanced=True,
)


@strategy(
    "sync-easgd",
    exchange="the elastic difference to a center that all workers keep",
    waits_for="the exchange before, once a period",
    settings=(
        SYNC_PERIOD.by_default(8),
        MOVING_RATE.by_default(_rate, "0.9 / (workers + 1)"),
        WORKER_RATE,
        OVERLAP.among("none", "step", "period").by_default(
            lambda chosen, _: "none" if chosen["variant"] == "broadcast" else "period", "`period`"
        ),
        VARIANT,
        COMPRESS_DIFFERENCES.among(NONE, *_PROMPT_CODECS),
        ALWAYS_COMPRESSES,
    ),
    # If alpha P + beta is 1, the workers' mean and the center meet in each exchange. More of beta holds workers
    # together. For Adam, and for a longer period, this was not measured.
    recipe=replace(
        ELASTIC_RECIPE,
        settings={
            SYNC_PERIOD_STEPS: always(1),
            MOVING_RATE.name: _each_step(lambda _, world_size: 0.3 / world_size, _rate),
            WORKER_RATE.name: _each_step(always(0.7), always(0.5)),
        },
        if_adaptive={MOVING_RATE.name: _rate, WORKER_RATE.name: always(0.5)},
    ),
    regroups=True,
    leaves_frozen_out=True,
)
class SyncEasgd(LocalSteps):
    """Every rank keeps the same copy of the center c. Every `sync_period_steps` steps, with the same d_i on both sides:

        d_i = alpha (x_i - c)
        x_i = x_i - d_i
        c   = c + sum_i d_i        (added in the plan's fixed order)

    so sum_i x_i + c changes by gradient steps alone, unless `worker_rate` beta is above alpha: then x_i goes
    beta (x_i - c), and c goes sum_i d_i. A worker needs the sum only when it computes its next d_i:
    until then it may travel behind the computation. `overlap` says by when it must have come, and with that how
    fresh `center` is between exchanges; the weights that training gives are the same bits for each.
    Evaluated and saved: c, after the exchange that is under way.

    With a codec the sum is that of encoded messages, each with what the ones before left out, e_i on rank i:

        c = c + sum_i (d_i + e_i) - sum_i e'_i,        e_i = e'_i

    and sum_i (x_i + e_i) + c changes by gradient steps alone: nothing is lost, only late. All ranks add the same
    bytes, so their centers stay bitwise equal.

    Cost: 2N floats of memory in addition to weights and gradients; every `sync_period_steps` steps one all-reduce of N
    floats. With `period` an exchange reads and writes x and c once; else c is read once more. With a codec: the e_i,
    N floats on every rank, and its part of the bytes (`samovar.collectives.encoded`, `.gathered`).

    Sources: Zhang, Choromanska and LeCun 2015 (elastic averaging), You, Buluc and Demmel 2017 (Sync EASGD), Seide et
    al. 2014 (error feedback).
    """

    def __init__(self, place: Place) -> None:
        chosen = place.chosen
        assert chosen.moving_rate is not None, chosen
        self._moving_rate, self._overlap, self._codec = chosen.moving_rate, chosen.overlap, chosen.codec
        self._further = further(chosen.worker_rate, chosen.moving_rate)
        self._residual: Floats = np.zeros(0, np.float32)
        self._tell = place.callback.tell
        super().__init__(place)
        self._center = self._weights.copy()
        self._is_under_way = False

    @classmethod
    def of(cls, place: Place) -> "SyncEasgd":
        """`SyncEasgd`, or `BroadcastEasgd` by its variant."""
        return BroadcastEasgd(place) if place.chosen.variant == "broadcast" else cls(place)

    @classmethod
    def check(cls, chosen: StrategyConfig) -> None:
        is_broadcast = chosen.variant == "broadcast"
        if is_broadcast and chosen.overlap not in (None, "none"):
            raise InputError(
                f"--overlap {chosen.overlap}: --variant broadcast needs the center before it can continue; "
                "leave --overlap out, or choose --variant reduce"
            )
        if is_broadcast and chosen.codec is not None:
            raise InputError(
                f"--compress {chosen.compress}: --variant broadcast sends weights, which are never compressed; "
                "leave one of them out"
            )

    @classmethod
    def computes_near(cls, chosen: StrategyConfig) -> bool:
        return chosen.variant != "broadcast" and chosen.codec is None

    @classmethod
    def settled(cls, chosen: StrategyConfig, world_size: int) -> StrategyConfig:
        rate, limit = chosen.moving_rate, diverging_rate(chosen.worker_rate, world_size)
        assert rate is not None, chosen
        if rate >= limit:
            further_on = f" with worker rate {chosen.worker_rate:g}" if further(chosen.worker_rate, rate) else ""
            raise InputError(
                f"--moving-rate: got {rate:g}{further_on}; give more than 0 and less than {limit:.4g}, from which on "
                f"{world_size} workers and their center move apart (default {_rate(chosen, world_size):.4g})"
            )
        return chosen

    @classmethod
    def warnings(cls, chosen: StrategyConfig, world_size: int) -> tuple[str, ...]:
        rate = chosen.moving_rate
        if rate is None or rate * world_size <= 1:
            return ()
        consequence = f"moves the center past the workers' mean, to and fro; up to {1 / world_size:.4g} it does not"
        return pulls_too_far(rate, world_size, _rate(chosen, world_size), consequence)

    @classmethod
    def regrouped(cls, chosen: StrategyConfig) -> StrategyConfig:
        """No exchange is under way when workers come and go, and none has left anything out."""
        for flag, value, allowed in (
            ("--overlap", chosen.overlap, "none"),
            ("--variant", chosen.variant, "reduce"),
            ("--compress", chosen.compress, NONE),
        ):
            if value not in (None, allowed):
                raise InputError(f"{flag} {value}: with --elastic, {chosen.name} takes {flag} {allowed}; leave it out")
        return super().regrouped(replace(chosen, overlap="none"))

    @property
    def is_compressed(self) -> bool | None:
        """Whether differences are, from the first exchange on; None if not asked for."""
        return None if self._codec is None else len(self._residual) > 0

    def exchanges_at(self, step: int) -> bool:
        """With `overlap` "step" also where an exchange under way must be complete."""
        return super().exchanges_at(step) or (self._overlap == "step" and self._is_under_way)

    def uses_weights_after(self, step: int) -> bool:
        return super().exchanges_at(step)

    def _opened(self, collectives: Collectives, name: str, shared: Region) -> PlanRunner:
        """One worker sends nothing, and encodes nothing."""
        if self._codec is None or collectives.group.world_size == 1:
            return super()._opened(collectives, name, shared)
        runner = collectives.encoded_all_reduce(name, shared, Codec(self._codec))
        self._residual = runner.residual
        return runner

    def _stepped(self) -> None:
        if self._overlap == "step":
            self.drain()

    def _exchange(self) -> None:
        differences, alpha = self._shared, self._moving_rate
        if self._is_under_way:
            self._all_reduce.finish(self._deadline())
            near.elastic_exchange(self._weights, self._center, differences, alpha)
        else:
            near.elastic_pull(self._weights, self._center, differences, alpha)
        if self._further:
            self._weights -= self._further * differences
        self._is_under_way = self._overlap != "none"
        if self._is_under_way:
            self._all_reduce.start()
        else:
            self._all_reduce.run(self._deadline())
            self._settle()

    def _settle(self) -> None:
        """c = c + sum_i d_i"""
        near.add(self._center, self._shared)

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
        kept: State = {"center": np.array(self._center)}
        if self.is_compressed and self._codec is not None:
            kept |= {**residual_notes(self._codec), "residual": self._residual.copy()}
        return kept

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """The residual of another codec or order is left out."""
        self.drain()
        take_center(state, self._center, self._weights)
        left_out = np.asarray(state.get("residual", ()))
        fits = residuals_fit(state, self._codec, self._tell) and left_out.shape == self._residual.shape
        self._residual[:] = left_out if fits else 0.0


class BroadcastEasgd(SyncEasgd):
    """`SyncEasgd` in two collectives: every `sync_period_steps` steps rank 0 sends c to all, before the sum of all d_i.

    The same bits, twice the traffic: kept as the baseline that `SyncEasgd` is measured against.

    Cost: 2N floats of memory in addition to weights and gradients; every `sync_period_steps` steps a broadcast and an
    all-reduce of N floats each, nothing of it behind the computation.

    Source: You, Buluc and Demmel 2017, the first of their three Sync EASGD.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        center = float32_region(place.collectives, "center", len(self._weights))
        self._broadcast = place.collectives.broadcast("center", center.part(0, self._num_summed))
        center.array[:] = self._center
        self._center = center.array

    def _exchange(self) -> None:
        self._broadcast.run(self._deadline())
        super()._exchange()
