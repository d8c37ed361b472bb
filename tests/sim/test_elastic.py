"""Elastic jobs on simulated machines, seed by seed, with joins, leaves and deaths at any action; mistakes are found."""

import pytest

from tests.sim.elastic import STRATEGIES, ElasticCase, run_elastic
from tests.sim.elastic_mistakes import ELASTIC_MISTAKES, ElasticMistake

NUM_SEEDS = 100
BLOCK = 100
NUM_SEEDS_TO_FIND = 200


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BLOCK))
def test_no_seed_loses_a_sum_or_stalls(first: int) -> None:
    endings: list[str] = []
    for seed in range(first, first + BLOCK):
        endings += run_elastic(ElasticCase.of_seed(seed)).results
    assert {"trained", "died", "left"} <= set(endings)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(NUM_SEEDS, 10_000, 1200))
def test_many_more_seeds(first: int) -> None:
    for seed in range(first, first + 1200):
        run_elastic(ElasticCase.of_seed(seed))


def test_seeds_cover_every_strategy_and_repeat() -> None:
    assert {ElasticCase.of_seed(seed).strategy for seed in range(NUM_SEEDS)} == set(STRATEGIES)
    case = ElasticCase.of_seed(5)
    assert run_elastic(case).event_hash == run_elastic(case).event_hash


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if mistake.is_rare else ())
        for name, mistake in ELASTIC_MISTAKES.items()
    ],
)
def test_a_planted_mistake_is_found(name: str) -> None:
    with pytest.raises(AssertionError) as found:
        play(ELASTIC_MISTAKES[name])
    assert any("to repeat: " in note for note in found.value.__notes__)


def play(mistake: ElasticMistake) -> None:
    for seed in range(NUM_SEEDS_TO_FIND):
        run_elastic(ElasticCase.of_seed(seed), mistake.rounds, quorum=mistake.quorum)
