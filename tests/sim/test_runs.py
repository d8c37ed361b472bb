"""Runs of every strategy under faults, seed by seed."""

import pytest

from tests.sim.center_runs import run_strategy
from tests.sim.runs import RunCase

NUM_SEEDS, NUM_QUICK = 1000, 60
BLOCK = 94


@pytest.mark.parametrize("first", [0])
def test_no_seed_finds_a_wrong_weight_or_a_run_without_end(first: int) -> None:
    for seed in range(first, NUM_QUICK):
        run_strategy(RunCase.of_seed(seed))
