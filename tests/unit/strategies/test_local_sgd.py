"""When local SGD takes the mean of weights off its border."""

import numpy as np

from samovar.collectives.engine import PlannedCollectives
from samovar.strategies.base import Buffers
from samovar.strategies.build import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Region
from samovar.transports.sim.world import SimConfig, SimTransport, simulate
from tests.unit.strategies.harness import LAYOUT, NUM_ELEMENTS, in_time


def drained(transport: SimTransport) -> list[tuple[int, float]]:
    """After each of three drains: the bytes sent so far, and the mean."""
    window = transport.open_window("model", 2 * NUM_ELEMENTS * 4, 0)
    weights, gradients = (Region.of(window, at * NUM_ELEMENTS * 4, NUM_ELEMENTS, np.float32) for at in range(2))
    collectives = PlannedCollectives(transport, lambda _num_bytes: "ring")
    config, buckets = StrategyConfig("local-sgd", sync_period_steps=4), LAYOUT.buckets(None)
    strategy = build_strategy(config, collectives, buckets, Buffers(weights, gradients), in_time)
    weights.array[:] = transport.group.rank
    strategy.updated(0)
    found = []
    for number in range(3):
        if number == 2:  # the program has loaded others
            weights.array[:] = 8.0
            strategy.forget_drained()
        strategy.drain()
        center = strategy.center()
        assert center is not None
        found.append((transport.bytes_sent, float(center[0])))
    return found


def test_a_drained_mean_is_not_taken_again_unless_weights_may_have_changed() -> None:
    for found in simulate(drained, 2, SimConfig()).results:
        (first, mean), (second, same), (third, loaded) = found
        assert (mean, same, loaded) == (0.5, 0.5, 8.0)
        assert first == second < third
