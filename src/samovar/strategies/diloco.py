"""DiLoCo: workers train on their own; an outer optimizer takes their mean distance from the start as its gradient.

All at once after a period, or streaming: in fragments, behind the computation, compressed.
"""

from collections.abc import Mapping

import numpy as np

from samovar.collectives.encoded import Codec, Floats
from samovar.collectives.engine import Collectives, float32_region
from samovar.collectives.execute import PlanRunner
from samovar.core import near
from samovar.core.errors import InputError
from samovar.core.stateful import State, StateValue
from samovar.strategies.base import Place, strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.fragments import Fragment, Phase, cut
from samovar.strategies.local_sgd import LocalSteps, residual_notes, residuals_fit, take_array
from samovar.strategies.recipe import Recipe, always, by_root
from samovar.strategies.settings import ALWAYS_COMPRESSES, COMPRESS_DIFFERENCES, SYNC_PERIOD
from samovar.strategies.traits import NONE, SYNC_PERIOD_STEPS, Chosen, Setting
from samovar.transports.base import Array

_STREAMING = "Douillard et al. 2025 (Streaming DiLoCo)"

OUTER_RATE = Setting("outer_rate", float, "Rate of the outer step.", above=0, default=0.7, is_advanced=True)
OUTER_MOMENTUM = Setting(
    "outer_momentum", float, "Nesterov momentum of the outer step.", least=0, below=1, default=0.9, is_advanced=True
)
FRAGMENTS = Setting(
    "fragments",
    int,
    "Parts of the weights that are exchanged at different steps of the period.",
    least=1,
    default=1,
    words=lambda number, _: f"{number} fragments" if number > 1 else "",
    source=_STREAMING,
    is_advanced=True,
)
DELAY = Setting(
    "delay_steps",
    int,
    "Steps that an exchange travels behind before a worker takes its result.",
    least=0,
    unit="steps",
    default=0,
    words=lambda steps, _: f"taken {steps} step{'' if steps == 1 else 's'} later" if steps else "",
    source=_STREAMING,
    is_advanced=True,
)
MIXING = Setting(
    "mixing",
    float,
    "Share of a worker's own weights that stays when it takes the result of an exchange.",
    least=0,
    below=1,
    default=lambda chosen, _: 0.5 if chosen["delay_steps"] else 0.0,
    default_words="0.5 with a delay, else 0",
    words=lambda share, _: f"mixing {share:g}" if share else "",
    source=_STREAMING,
    is_advanced=True,
)


def _streams(chosen: Chosen) -> bool:
    """Whether an exchange is more than that of all weights at once."""
    is_late = bool(chosen["delay_steps"] or chosen["mixing"])
    return (chosen["fragments"] or 1) > 1 or chosen["compress"] not in (None, NONE) or is_late


def without_gain(chosen: Chosen, _num_workers: int) -> float:
    """The outer step moves the center rate / (1 - momentum) times as far as the workers went."""
    return float((1 - (chosen["outer_momentum"] or 0.0)) / (chosen["outer_rate"] or 1.0))


@strategy(
    "diloco",
    exchange="weights, every period, through an outer optimizer",
    waits_for="all workers, once a period",
    settings=(
        SYNC_PERIOD.by_default(50),
        OUTER_RATE,
        OUTER_MOMENTUM,
        FRAGMENTS,
        DELAY,
        MIXING,
        COMPRESS_DIFFERENCES.among(NONE, "bf16", "int8", "int4"),
        ALWAYS_COMPRESSES,
    ),
    # Workers that go less far stay closer together, and the outer step makes up for it. After Adam's steps a center of
    # much momentum lags behind; half more than the root, and 8 steps, were measured on a transformer with four workers.
    recipe=Recipe(
        {SYNC_PERIOD_STEPS: always(16)},
        {SYNC_PERIOD_STEPS: always(8), OUTER_MOMENTUM.name: always(0.5)},
        without_gain,
        adaptive_rate=by_root(1.5),
    ),
    regroups=True,
    leaves_frozen_out=True,
)
class DiLoCo(LocalSteps):
    """Every `sync_period_steps` steps, with c the weights that all workers set out from and v = 0 at first:

        delta = (1/P) sum_i (c - x_i)
        v     = momentum * v + delta
        c     = c - rate * (delta + momentum * v)
        x_i   = c

    which is a step of torch's SGD(nesterov=True). Statistics of forward passes (BatchNorm's) take no such step: c has
    their mean. With fragments, a delay, mixing or a codec it is `StreamingDiLoCo`.
    The inner optimizer's momentum stays with its worker.
    Evaluated and saved: c; between two exchanges, after `drain`, what an exchange at that moment would make of c.

    Cost: 3N floats of memory in addition to weights and gradients; every `sync_period_steps` steps one all-reduce of N
    floats, and three passes over them.

    Source: Douillard et al. 2023, DiLoCo: Distributed low-communication training of language models.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._outer = place.chosen["outer_rate"], place.chosen["outer_momentum"]
        self._num_learned = place.num_learned
        self._center = self._weights.copy()
        self._velocity = self._weights.copy()
        self._velocity[:] = 0.0
        self._is_common = True  # x_i = c
        self._ahead: Array | None = None  # c as an exchange now would make it

    @classmethod
    def of(cls, place: Place) -> "DiLoCo":
        """This class, or `StreamingDiLoCo` by the settings."""
        return StreamingDiLoCo(place) if _streams(place.chosen) else cls(place)

    @classmethod
    def computes_near(cls, chosen: StrategyConfig) -> bool:
        return not _streams(chosen)

    @classmethod
    def settled(cls, chosen: StrategyConfig, _world_size: int) -> StrategyConfig:
        period = chosen.sync_period_steps or 1
        if (chosen.fragments or 1) > period:
            raise InputError(
                f"--fragments: got {chosen.fragments}; give at most {period}, the steps of the period, or a longer "
                "--sync-period: no two are exchanged after the same step"
            )
        if (chosen.delay_steps or 0) >= period:
            raise InputError(
                f"--delay: got {chosen.delay_steps} steps; give less than the {period} steps of the period, after "
                "which the same weights are exchanged again, or a longer --sync-period"
            )
        return chosen

    @classmethod
    def regrouped(cls, chosen: StrategyConfig) -> StrategyConfig:
        if _streams(chosen):
            raise InputError(
                f"{chosen.name}: with --elastic all weights are exchanged at once; leave --fragments, --delay, "
                "--mixing and --compress out"
            )
        return super().regrouped(chosen)

    def _stepped(self) -> None:
        self._is_common = False
        self._ahead = None

    def _exchange(self) -> None:
        self._sum_differences()
        self._step_center(self._num_learned, self._weights, self._center, self._velocity, self._shared)
        self._is_common = True

    def _sum_differences(self) -> None:
        self._shared[:] = self._center
        self._shared -= self._weights
        self._all_reduce.run(self._deadline())

    def _step_center(self, num_learned: int, *arrays: Array) -> None:
        """weights = center = a step by the sum of all differences; statistics would overshoot, so c has their mean."""
        for part, outer in ((slice(num_learned), self._outer), (slice(num_learned, None), (1.0, 0.0))):
            weights, center, velocity, summed = (array[part] for array in arrays)
            self._outer_step(weights, center, velocity, summed, *outer)

    def _outer_step(self, weights: Array, center: Array, velocity: Array, summed: Array, *outer: float) -> None:
        near.outer_step(weights, center, velocity, summed, self._world_size, *outer)

    def drain(self) -> None:
        """Find what an exchange would make of c now, for `center`; c and the workers' weights do not change."""
        if not self._is_common and self._ahead is None:
            self._sum_differences()
            center, velocity = self._center.copy(), self._velocity.copy()
            self._step_center(self._num_learned, self._shared, center, velocity, self._shared)
            self._ahead = self._shared

    def forget_drained(self) -> None:
        self._ahead = None

    def center(self) -> Array | None:
        """c, or what `drain` found, until the next step."""
        return self._center if self._ahead is None else self._ahead

    def state_dict(self) -> State:
        return {
            "center": np.array(self._center),
            "velocity": np.array(self._velocity),
            "is_common": int(self._is_common),
        }

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Raises InputError if an exchange of other settings was under way."""
        _require_nothing_awaited(state)
        self._take_center(state)
        self._is_common = bool(state.get("is_common", not state))
        self._ahead = None

    def _take_center(self, state: Mapping[str, StateValue]) -> None:
        if state:
            take_array(state, "center", self._center)
            take_array(state, "velocity", self._velocity)
        else:
            self._center[:] = self._weights
            self._velocity[:] = 0.0


class StreamingDiLoCo(DiLoCo):
    """`DiLoCo` in F fragments, each exchanged once in H = `sync_period_steps` steps, H / F steps after the one before.

    Fragment p begins after steps t with (t + 1) mod H = (p + 1) H / F, and is taken `delay_steps` steps later:

        at t            d_i   = c - x_i
                        delta = (1/P) sum_i d_i
        at t + delay    v     = momentum * v + delta
                        c     = c - rate * (delta + momentum * v)
                        x_i   = c + mixing * (x_i - c)

    The sum travels behind the steps in between. With a codec it is that of encoded messages, each with what the ones
    before left out, e_i on rank i:

        delta = (1/P) (sum_i (d_i + e_i) - sum_i e'_i),        e_i = e'_i

    so what an exchange leaves out comes with the next one. Evaluated and saved, after `drain`: c after exchanges under
    way, and of the other fragments what an exchange at that moment would make of c.

    Cost: 3N floats of memory in addition to weights and gradients, with a codec 4N. Each H / F steps it needs one
    all-reduce of N / F floats, or of their messages, and five passes over them.

    Sources: Douillard et al. 2025, Streaming DiLoCo with overlapping communication; Seide et al. 2014 (error feedback).
    """

    def __init__(self, place: Place) -> None:
        chosen = place.chosen
        self._codec = chosen.codec if place.num_workers > 1 else None
        self._asks_for_codec = chosen.codec is not None
        self._num_fragments, self._delay = int(chosen["fragments"]), int(chosen["delay_steps"])
        self._mixing, self._tell = float(chosen["mixing"]), place.callback.tell
        super().__init__(place)
        self._fragments = [self._fragment(number, *opened) for number, opened in enumerate(self._runners)]

    @property
    def is_compressed(self) -> bool | None:
        """Whether differences are, from the first exchange on; None if not asked for."""
        return self._codec is not None if self._asks_for_codec else None

    def exchanges_at(self, step: int) -> bool:
        steps = (step, step - self._delay)
        return any(self._is_due(fragment, each) for fragment in self._fragments for each in steps if each >= 0)

    def updated(self, step: int) -> None:
        self._stepped()
        for fragment in self._fragments:
            if self._is_due(fragment, step):
                fragment.post()
        for fragment in self._fragments:
            if fragment.phase is Phase.AWAITED and self._is_due(fragment, step - self._delay):
                fragment.land(self._deadline(), self._step_center)
                fragment.mix(self._mixing)
                fragment.phase = Phase.OWN if self._delay else Phase.COMMON

    def _is_due(self, fragment: Fragment, step: int) -> bool:
        return (step + 1) % self._sync_period_steps == fragment.due

    def _open(self, collectives: Collectives) -> None:
        """One worker sends nothing, and encodes nothing."""
        shared = float32_region(collectives, "exchanged weights", len(self._weights))
        self._shared = shared.array
        self._runners: list[tuple[slice, PlanRunner, Floats]] = []
        for number, part in enumerate(cut(len(self._weights), self._num_fragments)):
            name, region = f"fragment {number}", shared.part(part.start, part.stop)
            if self._codec is None:
                self._runners.append((part, collectives.all_reduce(name, region), np.zeros(0, np.float32)))
            else:
                encoded = collectives.encoded_all_reduce(name, region, Codec(self._codec))
                self._runners.append((part, encoded, encoded.residual))

    def _fragment(self, number: int, part: slice, runner: PlanRunner, residual: Floats) -> Fragment:
        due = (number + 1) * self._sync_period_steps // self._num_fragments % self._sync_period_steps
        weights, center, velocity = self._weights[part], self._center[part], self._velocity[part]
        num_learned = min(max(self._num_learned - part.start, 0), part.stop - part.start)
        return Fragment(due, weights, center, velocity, self._shared[part], runner, residual, num_learned)

    def _stepped(self) -> None:
        self._ahead = None
        for fragment in self._fragments:
            if fragment.phase is Phase.COMMON:
                fragment.phase = Phase.OWN

    def _land(self) -> None:
        """Complete the sums that are under way, which all ranks have begun; workers take them when it is time."""
        for fragment in self._fragments:
            fragment.land(self._deadline(), self._step_center)

    def drain(self) -> None:
        """Complete what is under way, and find what exchanges now would make of the other fragments of c."""
        self._land()
        if self._ahead is None and any(fragment.phase is Phase.OWN for fragment in self._fragments):
            for fragment in self._fragments:
                fragment.look_ahead(self._deadline(), self._step_center)
            self._ahead = self._shared

    def state_dict(self) -> State:
        """Residuals are this rank's own: every rank must save its state and load it again."""
        self._land()
        kept: State = {
            "center": self._center.copy(),
            "velocity": self._velocity.copy(),
            "schedule": self._schedule(),
            "phases": np.array([fragment.phase for fragment in self._fragments], np.int64),
        }
        if self._codec is not None:
            kept |= residual_notes(self._codec)
            kept |= {f"residual/{n}": fragment.residual.copy() for n, fragment in enumerate(self._fragments)}
        return kept

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """The residuals of another codec, cut or order are left out.

        Raises InputError if an exchange of other settings was under way.
        """
        self._land()
        fits = np.array_equal(state.get("schedule", ()), self._schedule())
        if not fits:
            _require_nothing_awaited(state)
        self._take_center(state)
        other = Phase.OWN if state else Phase.COMMON
        is_same = fits and residuals_fit(state, self._codec, self._tell)
        phases = np.asarray(state["phases"]).tolist() if fits else [other] * self._num_fragments
        for number, (fragment, phase) in enumerate(zip(self._fragments, phases, strict=True)):
            fragment.phase = Phase(phase)
            left_out = np.asarray(state.get(f"residual/{number}", ()))
            fragment.residual[:] = left_out if is_same and left_out.shape == fragment.residual.shape else 0.0
        self._ahead = None

    def _schedule(self) -> Array:
        """Number of fragments, period and delay."""
        return np.array([self._num_fragments, self._sync_period_steps, self._delay], np.int64)


def _require_nothing_awaited(state: Mapping[str, StateValue]) -> None:
    """Raises InputError if the state holds fragments whose workers have not taken their exchange yet."""
    if Phase.AWAITED in np.asarray(state.get("phases", ())):
        fragments, period, delay = np.asarray(state["schedule"]).tolist()
        raise InputError(
            f"state of the strategy: it was saved while an exchange was under way, with {fragments} fragments, a "
            f"period of {period} and a delay of {delay} steps; resume with these settings"
        )
