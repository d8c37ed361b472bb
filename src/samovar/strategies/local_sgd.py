"""Local SGD: workers train on their own and take the mean of their weights now and then."""

from collections.abc import Callable, Mapping

import numpy as np

from samovar.collectives.engine import Collectives, float32_region
from samovar.collectives.execute import PlanRunner
from samovar.core.errors import InputError
from samovar.core.stateful import State, StateValue
from samovar.strategies.base import Place, Reduced, Strategy, strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.recipe import Recipe, always
from samovar.strategies.settings import SYNC_PERIOD
from samovar.strategies.traits import SYNC_PERIOD_STEPS
from samovar.transports.base import Array, Region

_ORDER, _OF_BUFFER = "residual_order", "buffer"  # before, it was that of a plan's messages


class LocalSteps(Strategy):
    """Every worker updates its own x_i with its own gradient; after every `sync_period_steps`-th step: `_exchange`.

    All ranks start from the same weights. `_weights` is x_i, float32 (N,); `_shared` an area of the same shape for
    what is summed over ranks by `_all_reduce`. With the trait `leaves_frozen_out` it leaves out
    frozen weights at the end.
    """

    exchanges = "weights"

    def __init__(self, place: Place) -> None:
        assert place.chosen.sync_period_steps is not None, place.chosen
        self._world_size = place.num_workers
        self._buckets = place.buckets
        self._weights = place.buffers.weights.array
        self._sync_period_steps = place.chosen.sync_period_steps
        self._deadline = place.deadline
        self._num_summed = place.num_moving if self.traits.leaves_frozen_out else len(self._weights)
        self._open(place.collectives)

    def exchanges_at(self, step: int) -> bool:
        return (step + 1) % self._sync_period_steps == 0

    def uses_weights_after(self, step: int) -> bool:
        return self.exchanges_at(step)

    def reduced(self, _step: int) -> Reduced:
        """All buckets: each worker steps with its own gradients."""
        for bucket in self._buckets:
            yield bucket, 1.0

    def updated(self, step: int) -> None:
        self._stepped()
        if self.exchanges_at(step):
            self._exchange()

    def _open(self, collectives: Collectives) -> None:
        """The area that is summed over ranks, and how."""
        shared = float32_region(collectives, "exchanged weights", len(self._weights))
        self._shared = shared.array
        self._all_reduce = self._opened(collectives, "exchanged weights", shared.part(0, self._num_summed))

    def _opened(self, collectives: Collectives, name: str, shared: Region) -> PlanRunner:
        """How `shared` is summed over ranks."""
        return collectives.all_reduce(name, shared)

    def _stepped(self) -> None:
        """x_i has made a step of its own."""

    def _exchange(self) -> None:
        """All ranks are at the same due step."""
        raise NotImplementedError


def take_array(state: Mapping[str, StateValue], name: str, place: Array) -> None:
    """place = state[name]; raises InputError if that is not an array of the same shape."""
    value = state.get(name)
    if not isinstance(value, np.ndarray) or value.shape != place.shape:
        found = "missing" if value is None else f"of shape {np.shape(value)}"
        raise InputError(f"state of the strategy: {name!r} is {found}, not {place.shape}; is it of another net?")
    place[:] = value


def residual_notes(codec: str) -> State:
    """Notes about a state's residuals: the codec, and the order that they have after version 0.1.0."""
    return {"codec": codec, _ORDER: _OF_BUFFER}


def residuals_fit(state: Mapping[str, StateValue], codec: str | None, tell: Callable[[str], None]) -> bool:
    """Whether the residuals in the state are of this codec and in today's order. Tells if only the order is another."""
    if state.get("codec") != codec:
        return False
    is_today = codec is None or state.get(_ORDER) == _OF_BUFFER
    if not is_today:
        tell(
            f"the snapshot is of an older Samovar, which kept what {codec} left out in another order: that part is "
            "lost, and all else continues"
        )
    return is_today


def take_center(state: Mapping[str, StateValue], center: Array, weights: Array) -> None:
    """center = the state's; these weights if the state is empty."""
    if state:
        take_array(state, "center", center)
    else:
        center[:] = weights


@strategy(
    "local-sgd",
    exchange="weights, every period",
    waits_for="all workers, once a period",
    settings=(SYNC_PERIOD.by_default(8),),
    recipe=Recipe(settings={SYNC_PERIOD_STEPS: always(2)}),
    regroups=True,
    leaves_frozen_out=True,
)
class LocalSgd(LocalSteps):
    """Every `sync_period_steps` steps: x_i = (1/P) sum_j x_j, added in the plan's fixed order.

    Momentum stays with its worker. Evaluated and saved: the mean of the workers' weights as `drain` found them, which
    leaves the workers' own as they are; right after an exchange these are the mean.

    Cost: N floats of memory in addition to weights and gradients; every `sync_period_steps` steps one all-reduce of N
    floats, and three passes over them.

    Source: McMahan et al. 2017 (federated averaging); Stich 2019 (local SGD).
    """

    @classmethod
    def computes_near(cls, _chosen: StrategyConfig) -> bool:
        return True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._frozen = place.buffers.frozen
        self._is_common = True  # x_i is the same on all ranks
        self._mean: Array | None = None  # of weights that are not

    def _stepped(self) -> None:
        self._is_common = False
        self._mean = None

    def _exchange(self) -> None:
        self._weights[:] = self._mean_of_weights()
        self._is_common = True

    def _mean_of_weights(self) -> Array:
        self._shared[:] = self._weights
        self._all_reduce.run(self._deadline())
        self._shared /= np.float32(self._world_size)
        for part in self._frozen:  # not all summed, and the mean of equal values may be another one
            self._shared[part] = self._weights[part]
        return self._shared

    def drain(self) -> None:
        """Take the mean of the weights as they are, for `center`; the workers' own do not change."""
        if not self._is_common and self._mean is None:
            self._mean = self._mean_of_weights()

    def forget_drained(self) -> None:
        self._mean = None

    def center(self) -> Array | None:
        """The mean that `drain` took; None while the workers' own are equal, or not drained since they changed."""
        return self._mean

    def state_dict(self) -> State:
        return {"is_common": int(self._is_common)}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        self._is_common = bool(state.get("is_common", True))
        self._mean = None
