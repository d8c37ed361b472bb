"""Every plan on the simulator: exact results, counted cost, no race, at world sizes that no machine of ours has."""

import pytest

from tests.sim.harness import COLLECTIVES, SimCase, run_case

SMALL_WORLDS = (*range(1, 10), 16)
LARGE_WORLDS = (32, 64)
MANY_MESSAGES = (
    "ring",
    "ring in parts",
    "reduce-scatter",
    "all-gather",
)  # the square of the ranks
SIZES = (0, 1, 3, 1001)


@pytest.mark.parametrize("world_size", SMALL_WORLDS)
def test_every_plan_is_exact_and_costs_what_it_says(world_size: int) -> None:
    for collective in COLLECTIVES:
        for size in SIZES:
            run_case(SimCase(world_size + size, collective, world_size, size, "float32"))
        run_case(SimCase(world_size, collective, world_size, 1001, "float64"))


@pytest.mark.parametrize(
    ("world_size", "collective"),
    [
        pytest.param(size, name, marks=[pytest.mark.slow] if size == LARGE_WORLDS[-1] and name in MANY_MESSAGES else [])
        for size in LARGE_WORLDS
        for name in COLLECTIVES
    ],
)
def test_every_plan_is_exact_on_many_ranks(world_size: int, collective: str) -> None:
    run_case(SimCase(world_size, collective, world_size, 1001, "float32"))
