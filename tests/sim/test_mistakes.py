"""Every planted mistake is caught, by the means that its line names."""

from random import Random

import pytest

from tests.sim.harness import SimCase, run_case
from tests.sim.mistakes import MISTAKES, Mistake

NUM_SEEDS = 12
SIZE = 257


def endings(mistake: Mistake) -> list[Exception | None]:
    """The end of each seed."""
    return [ending(seed, mistake) for seed in range(NUM_SEEDS)]


def ending(seed: int, mistake: Mistake) -> Exception | None:
    case = SimCase(seed, mistake.collective, Random(seed).choice(mistake.world_sizes), SIZE, "float32")
    try:
        run_case(case, mistake.parts)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_caught_by_most_seeds_and_only_by_what_is_meant_to(name: str) -> None:
    found = [error for error in endings(MISTAKES[name]) if error is not None]
    assert len(found) > NUM_SEEDS // 2
    strangers = [error for error in found if not isinstance(error, MISTAKES[name].caught_by)]
    assert not strangers, strangers[0]
    assert all("to repeat: python tools/simulate.py --of plans --seed" in error.__notes__[-1] for error in found)
