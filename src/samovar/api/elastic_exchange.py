"""The exchange of weights in an elastic job: each one is among the present workers."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from samovar.api.exchanges import Apply, Exchange, Parameters
from samovar.api.figures_wanted import warn
from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.core.stateful import State, StateValue
from samovar.frontends.torch.parameters import layout_of
from samovar.frontends.torch.state import FlatWeights
from samovar.membership.quorum_messages import Admission, Division, Go, Last
from samovar.membership.quorum_seat import QuorumSeat
from samovar.membership.rounds import Given, Rounds
from samovar.strategies.config import StrategyConfig
from samovar.strategies.elastic_weights import ElasticWeights
from samovar.transports.base import Region


class ElasticExchange(Exchange):
    """Steps of the worker's own, and after every period an exchange with all present workers; see `Rounds`.

    `around(state)` adds to a state what else a worker needs that comes. `on_group(go)` gets each new group, which
    `join(go, closing)` connects.
    Memory: that of `WeightExchange`, and N floats for a copy while an exchange is not sure to count.
    """

    def __init__(
        self,
        parameters: Parameters,
        config: StrategyConfig,
        alone: Collectives,
        seat: QuorumSeat,
        admission: Admission,
        given: Given,
        deadline: Callable[[], Deadline],
        around: Callable[[Given], Given],
        on_group: Callable[[Go], None],
        join: Callable[[Go, ExitStack], Collectives],
    ) -> None:
        self._parameters, self._join = parameters, join
        self._seat, self._admission = seat, admission
        self._around, self._on_group = around, on_group
        self._layout = layout_of(parameters)
        self._group = ExitStack()
        self._num_steps = 0  # since the last exchange
        self.border_step = int(given["replica"]["step"]) if given else 0  # the step after the last exchange
        self.border: Mapping[str, Any] = given["replica"] if given else {"step": 0, "epochs": [], "batches": []}
        self._rounds: Rounds | None = None
        self._weights = ElasticWeights(config, self._layout, self._hold, alone, deadline, given)

    @property
    def division(self) -> Division:
        """This worker's place among those of the round."""
        return self._admission.division if self._rounds is None else self._rounds.division

    @property
    def period_steps(self) -> int:
        return self._weights.period_steps

    def begin(self) -> None:
        """The founder hands its state to the others; they have theirs."""
        self._rounds = Rounds(self._seat, self, self._admission, warn)

    def step(self, step: int, apply: Apply) -> None:
        self._flat.require_in_place()
        apply()
        self._num_steps += 1
        if (step + 1) % self.period_steps == 0:
            self.come(Last.NO)

    def come(self, last: Last) -> bool:
        """Exchange with all present workers. Gives whether it was everybody's last exchange."""
        assert self._rounds is not None
        num_steps, self._num_steps = self._num_steps, 0
        return self._rounds.exchange(num_steps, last)

    def finish(self, _step: int) -> None:
        """Meet those that still train, round after round, until all are here."""
        while not self.come(Last.FINISH):
            pass

    def evaluated(self) -> AbstractContextManager[None]:
        self._flat.require_in_place()
        return self._flat.replaced(self._weights.common.copy())

    def center(self) -> dict[str, torch.Tensor] | None:
        return self._flat.named(self._weights.common)

    def state_dict(self) -> State:
        return self._weights.strategy.state_dict()

    def load_state_dict(self, state: Mapping[str, StateValue], step: int) -> None:
        """Begin the first round with the weights that the parameters have now, and this state of the strategy."""
        self._flat.gather()
        self._weights.restore((self._weights.region.array.copy(), state))
        self._weights.committed()
        self.border_step = step - step % self.period_steps
        self.border = self._around({})["replica"]

    def close(self) -> None:
        """Give the parameters memory of their own, and leave the group."""
        self._weights.release()
        self._group.close()

    # What follows is the `Trainee` of the rounds.

    def regroup(self, go: Go) -> None:
        self._weights.regroup(self._collectives_of(go))
        self._on_group(go)

    def kept(self) -> Any:
        with torch.no_grad():
            return self._weights.kept()

    def restore(self, kept: Any) -> None:
        with torch.no_grad():
            self._weights.restore(kept)

    def exchange(self) -> None:
        with torch.no_grad():
            self._weights.exchange()

    def committed(self) -> None:
        self._weights.committed()
        self.border_step += self.period_steps
        self.border = self._around({})["replica"]

    def given(self) -> Given:
        return self._around(self._weights.given())

    def _hold(self, region: Region) -> FlatWeights:
        self._flat = FlatWeights(self._parameters, self._layout, region.array)
        return self._flat

    def _collectives_of(self, go: Go) -> Collectives:
        self._group.close()
        return self._join(go, self._group)
