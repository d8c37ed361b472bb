"""Asynchronous SGD: workers push what their steps changed, the center adds it up, workers pull."""

from collections.abc import Mapping
from typing import cast

import numpy as np

from samovar.box.base import CenterWithVelocity
from samovar.core.stateful import State, StateValue
from samovar.strategies.base import Place, strategy
from samovar.strategies.center_steps import CenterSteps
from samovar.strategies.local_sgd import take_array
from samovar.strategies.recipe import Recipe, always
from samovar.strategies.settings import MAX_REFUSED, MAX_STALENESS, SYNC_PERIOD
from samovar.strategies.traits import Setting
from samovar.transports.base import Array

KEEP_MOMENTUM = Setting(
    "keep_momentum",
    bool,
    "Workers keep the solver's momentum, in Nesterov's form.",
    default=False,
    default_words="off",
    words=lambda is_kept, _: "each worker's momentum looks ahead" if is_kept else "",
    source="Hakimi et al. 2019 (DANA)",
    is_advanced=True,
)
_RECIPE = Recipe(settings={KEEP_MOMENTUM.name: always(True)})
_SETTINGS = (SYNC_PERIOD.by_default(1), MAX_STALENESS, MAX_REFUSED)
WORKERS_MOMENTUM = 0.9  # of a solver that says nothing


def center_momentum(momentum: float, world_size: int, looks_ahead: bool = False) -> float:
    """max(0, 1 - P (1 - mu)): with P times as many steps the center then moves as fast as one worker with mu.

    The total rate P eta / (1 - mu_c) is that worker's, eta / (1 - mu). Asynchrony acts like momentum by itself
    (Mitliagkas, Zhang, Hadjis and Re, 2016). Workers that look ahead need no such allowance. It is mu^(1/P) for them:
    P steps of the center forget what one step of that worker does.
    """
    if looks_ahead:
        return float(round(momentum ** (1.0 / world_size), 6))
    return max(0.0, round(1.0 - world_size * (1.0 - momentum), 6))


LOOK_AHEAD = Setting(
    "look_ahead",
    bool,
    "Workers step from where the center's momentum takes it until all have made a step.",
    default=False,
    default_words="off",
    words=lambda is_on, _: "workers look ahead by its momentum" if is_on else "",
    source="Kosson et al. 2020 (linear weight prediction)",
    is_advanced=True,
)
CENTER_MOMENTUM = Setting(
    "center_momentum",
    float,
    "Momentum of the center.",
    least=0,
    below=1,
    default=lambda chosen, world_size: center_momentum(WORKERS_MOMENTUM, world_size, bool(chosen[LOOK_AHEAD.name])),
    default_words="max(0, 1 - workers x (1 - the solver's)), or with --look-ahead the solver's ^ (1 / workers)",
    words="momentum {value:g} at the center",
    is_advanced=True,
)


@strategy(
    "async-sgd",
    exchange="the change that its steps made; it then takes the center's weights",
    waits_for="locks of the center's chunks",
    settings=(_SETTINGS[0], KEEP_MOMENTUM, *_SETTINGS[1:]),
    is_replayable=True,
    recipe=_RECIPE,
)
class AsyncSgd(CenterSteps):
    """A worker steps from the center's weights as it pulled them, c_pulled. Every `sync_period_steps` steps:

        d = x - c_pulled        (one plain step: d = -eta g)
        c = c + d               (first come, first served)
        x = c_pulled = c        (read again)

    Any solver without momentum of its own makes the step, or with `keep_momentum` one with Nesterov's: each of P
    workers then has its own velocity and pushes

        v = mu v + g,    d = -eta / P (mu v + g)

    So d looks one step of all workers ahead, about as far as they have moved c since it was pulled.

    Of statistics of forward passes (BatchNorm's) d is 1 / P of the change: all P changes would take c past what workers
    have seen.

    A worker waits for the chunks' locks, for no other worker. With `max_staleness_steps` S it reads c before it pushes.
    If others have made more than S updates since it pulled, its d is set aside. It then continues from the center that
    it has just read.

    Cost: 2N floats of memory in addition to weights and gradients. An exchange writes and reads N floats, and reads N
    more with a bound.

    Source: Dean et al. 2012 (Downpour SGD); You, Buluc and Demmel 2017 (Async SGD), where every elastic method beats it
    in time to accuracy. The momentum is that of Hakimi, Barkai, Gabel and Schuster 2019 (DANA-Slim).
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.num_set_aside = 0
        self._max_staleness_steps = place.chosen.max_staleness_steps
        self._pulled = np.empty_like(self._weights)
        self._momentum = place.chosen.center_momentum or 0.0
        self._num_workers, self._num_learned = place.num_workers, place.num_learned

    def resize(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def begin_step(self, _step: int) -> None:
        """The first time: pull."""
        if self._seen is None:
            self._take_center()

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        super().load_state_dict(state)
        self._seen = None  # pull before the next step

    def _take_center(self) -> None:
        self._seen = self._center.read(self._pulled, self._deadline())
        self._step_from_pulled()

    def _step_from_pulled(self) -> None:
        self._weights[:] = self._pulled

    def _exchange(self) -> None:
        if self._is_too_stale():
            return
        difference = np.subtract(self._weights, self._pulled, out=self._pulled)
        difference[self._num_learned :] *= np.float32((1.0 - self._momentum) / self._num_workers)
        deadline = self._deadline()
        self._note_update(self._center.accumulate(self._next_sequence(), difference, deadline, self._momentum))
        self._take_center()

    def _is_too_stale(self) -> bool:
        """With a bound: whether the difference was set aside, and the center read again."""
        if self._max_staleness_steps is None:
            return False
        assert self._seen is not None, "begin_step comes first"
        found = self._center.read(self._copy, self._deadline())
        staleness = int((found - self._seen).max(initial=0))
        if staleness <= self._max_staleness_steps:
            return False
        self.num_set_aside += 1
        if self.num_set_aside == 1:
            self._notices.append(
                f"--max-staleness {self._max_staleness_steps}: others made {staleness} updates while this worker made "
                "its step, which is set aside, and so is each further one that is as late"
            )
        self._seen = found
        self._pulled[:] = self._copy
        self._step_from_pulled()
        return True


@strategy(
    "async-msgd",
    exchange="the same as `async-sgd`; the center has momentum",
    settings=(_SETTINGS[0], LOOK_AHEAD, CENTER_MOMENTUM, *_SETTINGS[1:]),
    has_velocity=True,
    recipe=Recipe(settings={LOOK_AHEAD.name: always(True)}),
)
class AsyncMsgd(AsyncSgd):
    """`AsyncSgd` whose center keeps the momentum mu, one for all workers:

        v = mu v + d
        c = c + v

    With `look_ahead` each of P workers steps from c_pulled = c + P v: about where c will be when its d comes there.
    Of statistics d is (1 - mu) / P of the change, and nobody looks ahead.

    Cost: as `AsyncSgd`, and N floats at the center; with `look_ahead` N more at each worker, which it reads too.

    Source: You, Buluc and Demmel 2017 (Async MSGD); Kosson et al. 2020 for the prediction of weights by momentum.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._ahead = np.empty_like(self._weights) if place.chosen.look_ahead else None

    def _step_from_pulled(self) -> None:
        if self._ahead is not None:
            cast(CenterWithVelocity, self._center).read_velocity(self._ahead, self._deadline())
            self._ahead *= np.float32(self._num_workers)
            self._pulled[: self._num_learned] += self._ahead[: self._num_learned]
        super()._step_from_pulled()

    def state_dict(self) -> State:
        """c, and v where the center can tell it, on the first worker alone."""
        state = super().state_dict()
        if state and isinstance(self._center, CenterWithVelocity):
            velocity: Array = np.empty_like(self._weights)
            self._center.read_velocity(velocity, self._deadline())
            state["velocity"] = velocity
        return state

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        super().load_state_dict(state)
        if self._is_first and isinstance(self._center, CenterWithVelocity):
            velocity = np.zeros_like(self._weights)
            if "velocity" in state:
                take_array(state, "velocity", velocity)
            self._center.write_velocity(velocity, self._deadline())


@strategy(
    "hogwild-sgd",
    exchange="the same as `async-sgd`, without locks: of two updates at once one may be lost",
    waits_for="no other worker",
    has_locks=False,
    is_replayable=False,
    recipe=_RECIPE,
)
class HogwildSgd(AsyncSgd):
    """`AsyncSgd` at a center without locks: of two updates of one element at the same time one may be lost.

    No worker waits. Cost: as `AsyncSgd`.

    Source: Recht, Re, Wright and Niu 2011 (Hogwild); You, Buluc and Demmel 2017 (Hogwild SGD).
    """
