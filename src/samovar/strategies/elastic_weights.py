"""Flat weights and their strategy, whose group of ranks may change before every exchange."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from samovar.collectives.engine import Collectives, float32_region
from samovar.core.clock import Deadline
from samovar.core.layout import Layout
from samovar.core.stateful import State
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.strategies.traits import SYNC_PERIOD_STEPS
from samovar.transports.base import Array, Region


class Held(Protocol):
    """A model whose parameters are in a flat buffer, or follow it."""

    def gather(self) -> None:
        """Bring the buffer up to date."""

    def scatter(self) -> None:
        """Bring parameters up to date with the buffer."""

    def release(self) -> None:
        """Give the parameters memory of their own."""


class ElasticWeights:
    """The weights of one worker of an elastic job.

    `hold(region)` puts the model's weights into a region, float32 (N,). The first group is `alone`, this rank. The
    strategy's settings follow the number of ranks. A worker that comes begins with what `given` was at another.

    Cost: N floats in addition to those of the strategy, and N more if it has no center.
    """

    def __init__(
        self,
        config: StrategyConfig,
        layout: Layout,
        hold: Callable[[Region], Held],
        alone: Collectives,
        deadline: Callable[[], Deadline],
        given: Mapping[str, Any],
    ) -> None:
        self.period_steps: int = resolved(config, 1)[SYNC_PERIOD_STEPS]
        self._config, self._layout, self._deadline = config, layout, deadline
        self._hold = hold
        self._build(alone)
        if given:
            self.restore((np.asarray(given["weights"]), given["strategy"]))
        self._common: Array | None = None
        self.committed()

    @property
    def strategy(self) -> Strategy:
        return self._strategy

    @property
    def region(self) -> Region:
        """The weights of this rank, until the next exchange."""
        return self._region

    @property
    def common(self) -> Array:
        """The weights that all agreed on at the last exchange: the center, or the mean. Read them only."""
        center = self._strategy.center()
        assert center is not None or self._common is not None
        return center if center is not None else self._common  # type: ignore[return-value]

    def regroup(self, collectives: Collectives) -> None:
        """Exchange in this group from now on. Never waits."""
        kept = self.kept()
        self.release()
        self._build(collectives)
        self.restore(kept)

    def kept(self) -> tuple[Array, State]:
        """A copy of all that an exchange changes: weights, and the strategy's state."""
        self._held.gather()
        return self._region.array.copy(), self._strategy.state_dict()

    def restore(self, kept: tuple[Array, Mapping[str, Any]]) -> None:
        weights, state = kept
        self._region.array[:] = weights
        self._held.scatter()
        self._strategy.load_state_dict(state)

    def exchange(self) -> None:
        """Exchange with the whole group, also before a period is over."""
        self._held.gather()
        self._strategy.updated(self.period_steps - 1)
        self._held.scatter()

    def committed(self) -> None:
        """The exchange counts: its weights are those that all agree on."""
        if self._strategy.center() is None:
            self._common = self._region.array.copy()

    def given(self) -> Mapping[str, Any]:
        """The state that a worker needs to begin after this exchange."""
        return {"weights": self.common, "strategy": self._strategy.state_dict()}

    def release(self) -> None:
        """Give the model memory of its own."""
        self._held.release()

    def _build(self, collectives: Collectives) -> None:
        self._region = float32_region(collectives, "weights", self._layout.num_elements)
        self._held = self._hold(self._region)
        buffers = Buffers(self._region, self._region.part(0, 0))
        made = (collectives, self._layout.buckets(), buffers, self._deadline)
        self._strategy = build_strategy(self._config, *made)
