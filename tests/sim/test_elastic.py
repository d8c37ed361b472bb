"""Elastic jobs on simulated machines, seed by seed, with joins, leaves and deaths at any action; mistakes are found."""

from typing import Any

import pytest

from samovar.membership.quorum_messages import Decision
from samovar.membership.rounds import Rounds
from samovar.transports.sim.races import Race
from tests.sim.elastic import STRATEGIES, ElasticCase, WrongSum, run_elastic

NUM_SEEDS = 100
BLOCK = 100


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


class GoesOn(Rounds):
    """Planted: keeps what an exchange made of its weights, also if it did not count."""

    def __init__(self, seat: Any, trainee: Any, admission: Any) -> None:
        super().__init__(seat, trainee, admission)
        trainee.restore = lambda _kept: None


class TrustsItself(Rounds):
    """Planted: a result counts for whoever has it, whatever the others say."""

    def _attempt(self, go):
        verdict = super()._attempt(go)
        if not verdict.is_committed and self._has_result():
            self._commit(Decision(True))
        return verdict


class SaysYes(Rounds):
    """Planted: votes for a result that it may not have."""

    def _has_result(self):
        super()._has_result()
        return True


class WrongRound(Rounds):
    """Planted: gives its own state to those that come, and not that on which the round ended."""

    def _commit(self, verdict):
        trainee: Any = self._trainee
        given = {**trainee.given(), "weights": trainee.region.array + 1.0}
        trainee.given = lambda: given
        super()._commit(verdict)


@pytest.mark.parametrize("mistake", [GoesOn, TrustsItself, SaysYes, WrongRound])
def test_a_planted_mistake_is_found(mistake: type[Rounds]) -> None:
    with pytest.raises((WrongSum, Race)) as found:
        play(mistake)
    assert any("to repeat: " in note for note in found.value.__notes__)


def play(mistake: type[Rounds]) -> None:
    for seed in range(200):
        run_elastic(ElasticCase.of_seed(seed), mistake)
