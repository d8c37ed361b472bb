"""Elastic jobs on simulated machines, seed by seed, with joins, leaves and deaths at any action; mistakes are found."""

from functools import partial

import pytest

from samovar.membership.quorum import Quorum
from samovar.membership.quorum_messages import Admission
from samovar.membership.rounds import MOST_ATTEMPTS, Rounds
from samovar.transports.sim.world import SimConfig, simulate
from tests.sim.elastic import STRATEGIES, Book, ElasticCase, SimSeat, Worker, run_elastic, work
from tests.sim.elastic_mistakes import ELASTIC_MISTAKES, ElasticMistake
from tests.sim.script import Cut, Script

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


def test_workers_that_never_reach_each_other_end_and_say_why() -> None:
    """The quorum reaches both, as over a network that lets pass one port alone."""
    book = Book.of(ElasticCase(0, "local-sgd", "tree", 2, 2, 0, 0, ""), Quorum, Script(0, ""))
    book.faults.cuts = [Cut(frozenset({0}), 0.0, 1e6, is_one_way=False)]
    told: dict[str, int] = {}

    class Telling(Rounds):
        def __init__(self, seat: SimSeat, trainee: Worker, admission: Admission) -> None:
            super().__init__(seat, trainee, admission, lambda text: told.update({text: seat.number}))

    run = simulate(partial(work, book, Telling), 2, SimConfig(held_s=book.faults.held_s))
    for ending in run.results:
        assert ending.startswith(f"the same workers failed {MOST_ATTEMPTS} times to exchange: rank ")
        assert "did not notify" in ending
    assert sorted(set(told.values())) == [0, 1]
    assert len(told) == 2 * (MOST_ATTEMPTS - 1)


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
