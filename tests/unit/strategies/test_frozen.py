"""Weights that no worker changes keep their bits, though the mean of three equal numbers may be another one."""

from dataclasses import replace

import numpy as np
import pytest

from samovar.strategies.config import StrategyConfig
from tests.unit.strategies import test_definitions, test_slowmo
from tests.unit.strategies.harness import LAYOUT, Job, on_shm

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
    frozen = (STILL,) if CONFIGS[name].name == "local-sgd" else ()
    job = Job(CONFIGS[name], gradient, 12, start, drain_each_step=True, frozen=frozen)
    for left in on_shm(job, world_size):
        for found in (left.weights, left.center, *left.trace, *left.centers):
            assert found is None or found[STILL].tobytes() == start[STILL].tobytes()
        assert (left.weights != start).any()
