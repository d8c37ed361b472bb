"""A thousand seeds of random delays over overlaps, plans, buckets and world sizes; and mistakes that are caught."""

import pytest

from tests.sim.step_mistakes import STEP_MISTAKES
from tests.sim.steps import OVERLAPS, StepsCase, run_steps

NUM_SEEDS = 1000
BLOCK = 100
NUM_MISTAKEN_SEEDS = 12


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_no_seed_finds_stale_weights_a_race_or_a_deadlock(first: int) -> None:
    """The weights of every layer and step are those of the sum in whole numbers: the same bits in every case."""
    for seed in range(first, first + BLOCK):
        run_steps(StepsCase.of_seed(seed))


def test_seeds_cover_every_overlap_and_repeat() -> None:
    assert {StepsCase.of_seed(seed).overlap for seed in range(NUM_SEEDS)} == set(OVERLAPS)
    case = StepsCase(5, "full", "tree", 4, 1)
    assert run_steps(case).event_hash == run_steps(case).event_hash


@pytest.mark.parametrize("name", STEP_MISTAKES)
def test_a_mistake_is_caught_and_only_by_what_is_meant_to(name: str) -> None:
    mistake = STEP_MISTAKES[name]
    found = [error for error in map(_ending(name), range(NUM_MISTAKEN_SEEDS)) if error is not None]
    assert len(found) > NUM_MISTAKEN_SEEDS // 2
    strangers = [error for error in found if not isinstance(error, mistake.caught_by)]
    assert not strangers, strangers[0]


def _ending(name: str):
    def ending(seed: int) -> Exception | None:
        try:
            run_steps(StepsCase(seed, "full", "tree", (4, 5, 7)[seed % 3], 1), STEP_MISTAKES[name].build)
        except Exception as error:
            return error
        return None

    return ending
