"""What is made of the results of ranks."""

from dataclasses import replace
from pathlib import Path

import pytest

from samovar.config import RunConfig
from samovar.launcher import outcomes
from samovar.report.result import Foreseen
from samovar.strategies.config import StrategyConfig
from tests.unit.report.examples import RESULT, WORKER

CONFIG = RunConfig("train", Path("solver.prototxt"), workers=2, strategy=StrategyConfig("async-easgd"))
FORESEEN = Foreseen(
    cluster="here", net="n", strategy="async-easgd", workers=2, predicted_s=1.0, measured_s=1.1, profile="p"
)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_run_that_lost_workers_for_good_is_not_compared_with_its_prediction(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    """Its pace is that of the others."""
    monkeypatch.setattr(outcomes, "foreseen", lambda _ran: FORESEEN)
    workers = (WORKER, replace(WORKER, is_gone=is_gone))
    found = outcomes.with_foresight(CONFIG, replace(RESULT, by_worker=workers), 0.0)
    assert found.foreseen == (None if is_gone else FORESEEN)
