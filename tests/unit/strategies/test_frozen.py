"""Weights that no worker changes keep their bits, though the mean of three equal numbers may be another one."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from samovar.collectives.engine import PlannedCollectives
from samovar.strategies.base import Buffers, strategy
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.local_sgd import LocalSgd
from samovar.strategies.traits import KINDS
from samovar.transports.base import Region
from samovar.transports.sim.world import SimConfig, SimTransport, simulate
from tests.unit.strategies import test_definitions, test_slowmo
from tests.unit.strategies.harness import LAYOUT, NUM_ELEMENTS, Job, in_time, on_shm

(STILL,) = LAYOUT.parts(["c"])
PERIODS = {name: config for name, config in test_definitions.CONFIGS.items() if config.name != "sync"}
MIXED = replace(test_definitions.DILOCO, fragments=2, delay_steps=1, mixing=0.3)
CONFIGS: dict[str, StrategyConfig] = {**PERIODS, "diloco mixed by 0.3": MIXED, "slowmo": test_slowmo.CONFIG}


def gradient(rank: int, step: int, x: np.ndarray) -> np.ndarray:
    made = test_definitions.gradient(rank, step, x)
    made[STILL] = 0.0
    return made


@pytest.mark.parametrize("world_size", [3, 7])
@pytest.mark.parametrize("name", CONFIGS)
def test_weights_that_no_worker_changes_keep_their_bits(name: str, world_size: int) -> None:
    """The mean of `local-sgd` has no center to start from, and is told which are frozen."""
    start = test_definitions.start()
    job = Job(CONFIGS[name], gradient, 12, start, drain_each_step=True)
    told = replace(job, frozen=(STILL,))
    for each in [told] if CONFIGS[name].name == "local-sgd" else [job, told]:
        for left in on_shm(each, world_size):
            for found in (left.weights, left.center, *left.trace, *left.centers):
                assert found is None or found[STILL].tobytes() == start[STILL].tobytes()
            assert (left.weights != start).any()


def exchanged_bytes(transport: SimTransport, config: StrategyConfig) -> int:
    """What a rank sends in an exchange of weights of which the last are frozen."""
    weights = Region.of(transport.open_window("model", 4 * NUM_ELEMENTS, 0), 0, NUM_ELEMENTS, np.float32)
    collectives = PlannedCollectives(transport, lambda _num_bytes: "ring")
    buffers = Buffers(weights, weights.part(0, 0), frozen=(STILL,))
    made = build_strategy(config, collectives, LAYOUT.buckets(None), buffers, in_time)
    made.updated((config.sync_period_steps or 1) - 1)
    made.drain()
    return transport.bytes_sent


@pytest.mark.parametrize("name", ["local-sgd", "diloco", "slowmo", "sync-easgd period"])
def test_frozen_weights_behind_all_others_are_not_exchanged(name: str) -> None:
    assert STILL.stop == NUM_ELEMENTS
    sent = simulate(partial(exchanged_bytes, config=CONFIGS[name]), 2, SimConfig()).results
    assert sent == [4 * STILL.start] * 2


class OwnMean(LocalSgd):
    """Sums by itself."""


def test_a_strategy_of_a_users_own_sums_all_weights() -> None:
    declared = strategy("own-mean", settings=LocalSgd.traits.settings)
    config = replace(test_definitions.CONFIGS["local-sgd"], name=declared(OwnMean).traits.name)
    sent = simulate(partial(exchanged_bytes, config=config), 2, SimConfig()).results
    KINDS.pop("own-mean")
    assert sent == [4 * NUM_ELEMENTS] * 2
