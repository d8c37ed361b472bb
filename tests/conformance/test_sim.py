"""Every plan on the simulator: exact results, counted cost, no race, at world sizes that no machine of ours has."""

import pytest

from tests.sim.harness import COLLECTIVES, SimCase, run_case

SMALL_WORLDS = (*range(1, 10), 16)
LARGE_WORLDS = (32, 64)
SIZES = (0, 1, 3, 1001)


@pytest.mark.parametrize("world_size", SMALL_WORLDS)
def test_every_plan_is_exact_and_costs_what_it_says(world_size: int) -> None:
    for collective in COLLECTIVES:
        for size in SIZES:
            run_case(SimCase(world_size + size, collective, world_size, size, "float32"))
        run_case(SimCase(world_size, collective, world_size, 1001, "float64"))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("world_size", LARGE_WORLDS)
def test_every_plan_is_exact_on_many_ranks(collective: str, world_size: int) -> None:
    run_case(SimCase(world_size, collective, world_size, 1001, "float32"))
