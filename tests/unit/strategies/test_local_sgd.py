"""When strategies that average take the mean of weights off their border."""

from functools import partial

import numpy as np
import pytest

from samovar.collectives.engine import PlannedCollectives
from samovar.strategies.base import Buffers
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Region
from samovar.transports.sim.world import SimConfig, SimTransport, simulate
from tests.unit.strategies.harness import LAYOUT, NUM_ELEMENTS, in_time


def drained(transport: SimTransport, config: StrategyConfig) -> list[tuple[int, float]]:
    """After each of three drains: the bytes sent so far, and the mean."""
    window = transport.open_window("model", 2 * NUM_ELEMENTS * 4, 0)
    weights, gradients = (Region.of(window, at * NUM_ELEMENTS * 4, NUM_ELEMENTS, np.float32) for at in range(2))
    collectives = PlannedCollectives(transport, lambda _num_bytes: "ring")
    strategy = build_strategy(config, collectives, LAYOUT.buckets(None), Buffers(weights, gradients), in_time)
    weights.array[:] = transport.group.rank
    strategy.updated(0)
    found = []
    for number in range(3):
        if number == 2:  # the program has written others
            weights.array[:] = 8.0
            strategy.forget_drained()
        strategy.drain()
        center = strategy.center()
        assert center is not None
        found.append((transport.bytes_sent, float(center[0])))
    return found


@pytest.mark.parametrize("name", ["local-sgd", "diloco", "streaming", "slowmo"])
def test_a_drained_mean_is_not_taken_again_unless_weights_may_have_changed(name: str) -> None:
    config = StrategyConfig("diloco" if name == "streaming" else name, sync_period_steps=4)
    if name != "local-sgd":
        config = config.but({"outer_rate": 1.0, "outer_momentum": 0.0})
    if name == "streaming":
        config = config.but({"fragments": 2})
    for found in simulate(partial(drained, config=config), 2, SimConfig()).results:
        (first, mean), (second, same), (third, loaded) = found
        assert (mean, same, loaded) == (0.5, 0.5, 8.0)
        assert first == second < third
