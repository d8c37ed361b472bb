"""Membership on simulated machines, seed by seed; planted mistakes are found."""

import pytest

from samovar.membership.session import Session
from tests.sim.sessions import FilledTooSoon, NeverTold, SessionCase, WrongSession, run_sessions


@pytest.mark.parametrize("seed", range(60))
def test_ranks_train_when_the_center_is_filled_or_end_where_it_never_is(seed: int) -> None:
    run_sessions(SessionCase.of_seed(seed))


@pytest.mark.parametrize("mistake", [FilledTooSoon, NeverTold])
def test_a_planted_mistake_is_found(mistake: type[Session]) -> None:
    with pytest.raises(WrongSession) as found:
        play(mistake)
    assert any("to repeat: " in note for note in found.value.__notes__)


def play(mistake: type[Session]) -> None:
    for seed in range(60):
        run_sessions(SessionCase.of_seed(seed), mistake)
