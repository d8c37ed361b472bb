"""`slowmo` against its rule in float64, over mapped memory and in the simulator."""

from dataclasses import replace

import numpy as np
import pytest

from samovar.strategies.config import StrategyConfig
from tests.unit.strategies.harness import Job, on_shm, on_sim
from tests.unit.strategies.references import Traces
from tests.unit.strategies.test_definitions import NUM_STEPS, RATE, TOLERANCE, distance, gradient, same, start

CONFIG = StrategyConfig("slowmo", "ring", sync_period_steps=4, outer_rate=0.9, outer_momentum=0.6)
JOB = Job(CONFIG, gradient, NUM_STEPS, start())


def by_the_rule(world_size: int) -> Traces:
    x = np.tile(start().astype(float), (world_size, 1))
    center, u = x[0], np.zeros_like(x[0])
    weights, centers = [], []
    for step in range(NUM_STEPS):
        x = x - RATE * np.stack([gradient(rank, step, x[rank]) for rank in range(world_size)])
        ahead = 0.6 * u + (center - x.mean(axis=0))
        moved = center - 0.9 * ahead
        if (step + 1) % 4 == 0:
            center, u = moved, ahead
            x = np.broadcast_to(center, x.shape)
        weights.append(x)
        centers.append(moved)
    return weights, centers


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_weights_and_center_are_those_of_the_float64_loop(world_size: int) -> None:
    ranks = on_shm(replace(JOB, drain_each_step=True), world_size)
    weights, centers = by_the_rule(world_size)
    for rank, left in enumerate(ranks):
        for step in range(NUM_STEPS):
            assert distance(left.trace[step], weights[step][rank]) < TOLERANCE, (rank, step)
            assert distance(left.centers[step], centers[step]) < TOLERANCE, (rank, step)


def test_the_same_bits_twice_and_in_the_simulator() -> None:
    first = on_shm(JOB, 3)
    assert same(first, on_shm(JOB, 3))
    assert same(first, on_sim(JOB, 3, 0))
