"""A thousand seeds of random delays over plans and world sizes; a failing one prints the command that repeats it."""

import pytest

from tests.sim.harness import COLLECTIVES, SimCase, run_case

NUM_SEEDS = 1000
BLOCK = 100


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_no_seed_finds_a_race_a_deadlock_or_a_wrong_result(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run_case(SimCase.of_seed(seed))


@pytest.mark.parametrize("seed", range(0, NUM_SEEDS, 100))
def test_the_same_seed_gives_the_same_events(seed: int) -> None:
    first, second = (run_case(SimCase.of_seed(seed)) for _ in range(2))
    assert first == second


def test_seeds_cover_every_plan_and_differ() -> None:
    drawn = [SimCase.of_seed(seed) for seed in range(NUM_SEEDS)]
    assert {case.collective for case in drawn} == set(COLLECTIVES)
    hashes = {run_case(SimCase(seed, "ring", 5, 64, "float32")).event_hash for seed in range(20)}
    assert len(hashes) > 10
