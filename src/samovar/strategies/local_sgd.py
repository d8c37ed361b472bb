"""Local SGD: workers train on their own and take the mean of their weights now and then."""

from collections.abc import Mapping

import numpy as np

from samovar.core.stateful import State, StateValue
from samovar.strategies.local_steps import LocalPlace, LocalSteps
from samovar.strategies.traits import Chosen, Traits
from samovar.transports.base import Array


class LocalSgd(LocalSteps):
    """Every `sync_period_steps` steps: x_i = (1/P) sum_j x_j, added in the plan's fixed order.

    Momentum stays with its worker. Evaluated and saved: the mean of the workers' weights as `drain` found them, which
    leaves the workers' own as they are; right after an exchange these are the mean.

    Cost: N floats of memory beside weights and gradients; every `sync_period_steps` steps one all-reduce of N
    floats, and three passes over them.

    Source: McMahan et al. 2017 (federated averaging); Stich 2019 (local SGD).
    """

    traits = Traits("local-sgd", ("sync_period_steps",), default_period_steps=8)

    def __init__(self, place: LocalPlace) -> None:
        super().__init__(place)
        self._is_common = True  # x_i is the same on all ranks
        self._mean: Array | None = None  # of weights that are not

    @classmethod
    def of(cls, _chosen: Chosen, place: LocalPlace) -> "LocalSgd":
        return cls(place)

    def _stepped(self) -> None:
        self._is_common = False
        self._mean = None

    def _exchange(self) -> None:
        self._weights[:] = self._mean_of_weights()
        self._is_common = True

    def _mean_of_weights(self) -> Array:
        self._shared[:] = self._weights
        self._all_reduce.run(self._deadline())
        return np.divide(self._shared, np.float32(self._world_size), out=self._shared)

    def drain(self) -> None:
        """Take the mean of the weights as they are, for `center`; the workers' own do not change."""
        if not self._is_common and self._mean is None:
            self._mean = self._mean_of_weights()

    def center(self) -> Array | None:
        """The mean that `drain` took; None while the workers' own are equal, or not drained since they changed."""
        return self._mean

    def state_dict(self) -> State:
        return {"is_common": int(self._is_common)}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        self._is_common = bool(state.get("is_common", True))
        self._mean = None
