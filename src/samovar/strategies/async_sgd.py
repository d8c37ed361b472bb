"""Asynchronous SGD: workers push what their steps changed, the center adds it up, workers pull."""

from collections.abc import Mapping

import numpy as np

from samovar.box.base import CenterWithVelocity
from samovar.collectives.engine import Collectives
from samovar.core.stateful import State, StateValue
from samovar.strategies.center_steps import CenterSteps, Rate, Workplace
from samovar.strategies.local_sgd import take_array
from samovar.strategies.traits import Chosen, Traits
from samovar.transports.base import Array

_SETTINGS = ("sync_period_steps", "max_staleness_steps", "max_refused_pushes")


class AsyncSgd(CenterSteps):
    """A worker steps from the center's weights as it pulled them, c_pulled. Every `sync_period_steps` steps:

        d = x - c_pulled        (one plain step: d = -eta g)
        c = c + d               (first come, first served)
        x = c_pulled = c        (read again)

    Any solver without momentum of its own makes the step. With `max_staleness_steps` S a worker reads c before it
    pushes; where others have made more than S updates since it pulled, its d is set aside, and it goes on from what
    it has just read. Waits for the chunks' locks, for no worker.

    Cost: 2N floats of memory beside weights and gradients; per exchange N floats written and N read, and N more read
    with a bound.

    Source: Dean et al. 2012 (Downpour SGD); You, Buluc and Demmel 2017 (Async SGD). There a counterpart that every
    elastic method beats in time to accuracy.
    """

    traits = Traits("async-sgd", _SETTINGS, default_period_steps=1, has_center=True, is_replayable=True)

    def __init__(self, place: Workplace, max_staleness_steps: int | None = None) -> None:
        super().__init__(place)
        self.num_set_aside = 0
        self._max_staleness_steps = max_staleness_steps
        self._pulled = np.empty_like(self._weights)
        self._momentum = 0.0

    @classmethod
    def of(cls, chosen: Chosen, place: Workplace, _rate: Rate, _collectives: Collectives) -> "AsyncSgd":
        return cls(place, chosen.max_staleness_steps)

    def begin_step(self, _step: int) -> None:
        """The first time: pull."""
        if self._seen is None:
            self._take_center()

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        super().load_state_dict(state)
        self._seen = None  # pull before the next step

    def _take_center(self) -> None:
        self._seen = self._center.read(self._pulled, self._deadline())
        self._weights[:] = self._pulled

    def _exchange(self) -> None:
        if self._is_too_stale():
            return
        difference = np.subtract(self._weights, self._pulled, out=self._pulled)
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
        self._set_aside(staleness)
        self._seen = found
        self._weights[:] = self._pulled[:] = self._copy
        return True

    def _set_aside(self, staleness: int) -> None:
        self.num_set_aside += 1
        if self.num_set_aside == 1:
            self._notices.append(
                f"--max-staleness {self._max_staleness_steps}: others made {staleness} updates while this worker made "
                "its step, which is set aside; its samples do not count, and so for each further one"
            )


class AsyncMsgd(AsyncSgd):
    """`AsyncSgd` whose center keeps the momentum mu, one for all workers:

        v = mu v + d
        c = c + v

    Cost: as `AsyncSgd`, and N floats at the center.

    Source: You, Buluc and Demmel 2017 (Async MSGD).
    """

    traits = Traits(
        "async-msgd",
        (*_SETTINGS, "center_momentum"),
        default_period_steps=1,
        has_center=True,
        has_velocity=True,
        is_replayable=True,
    )

    def __init__(self, place: Workplace, max_staleness_steps: int | None, momentum: float) -> None:
        super().__init__(place, max_staleness_steps)
        self._momentum = momentum

    @classmethod
    def of(cls, chosen: Chosen, place: Workplace, _rate: Rate, _collectives: Collectives) -> "AsyncMsgd":
        assert chosen.center_momentum is not None
        return cls(place, chosen.max_staleness_steps, chosen.center_momentum)

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


class HogwildSgd(AsyncSgd):
    """`AsyncSgd` at a center without locks: of two updates of one element at the same time one may be lost.

    Waits for nobody. Cost: as `AsyncSgd`.

    Source: Recht, Re, Wright and Niu 2011 (Hogwild); You, Buluc and Demmel 2017 (Hogwild SGD).
    """

    traits = Traits("hogwild-sgd", _SETTINGS, default_period_steps=1, has_center=True, has_locks=False)
