"""The sentence about the time that parts of a step take."""

import pytest

from samovar.report.steps import Advice, Arrival, StepTimes, StragglerWatch, TimeSpent
from samovar.strategies.config import StrategyConfig
from samovar.training.observer import advice_for

ADVICE = Advice("another disk", "larger batches", "more cores")


def seconds(**given: float) -> StepTimes:
    return StepTimes(**{f"{kind}_s": value for kind, value in given.items()})


@pytest.mark.parametrize(
    ("spent", "arrival", "said"),
    [
        (seconds(forward=1, backward=2), None, "compute-bound"),
        (seconds(forward=1, backward=2, data=1), None, "input-bound"),
        (seconds(forward=1, backward=2, exchange=1), None, "communication-bound; try larger batches"),
        (seconds(forward=1, backward=2, exchange=1), Arrival(3, 0.9, 4.0), "wait 22% of the time for rank 3"),
        (seconds(forward=1, backward=2, exchange=1), Arrival(3, 0.1, 4.0), "communication-bound"),
    ],
)
def test_the_verdict_says_what_a_run_is_bound_by(spent: StepTimes, arrival: Arrival | None, said: str) -> None:
    whole = TimeSpent(ADVICE)
    for _ in range(5):
        whole.add(spent, arrival)
    verdict = whole.verdict()
    assert verdict is not None
    assert said in verdict
    assert f"forward {1 / sum(spent.by_kind().values()):.0%}" in verdict


def test_the_slowest_rank_is_the_one_that_others_waited_for_longest() -> None:
    whole = TimeSpent(ADVICE)
    for rank, late_s in ((1, 0.1), (3, 0.9), (2, 0.4)):
        whole.add(seconds(forward=2), Arrival(rank, late_s, 4.0))
    assert whole.slowest == (3, pytest.approx(0.9 / 6))


def test_a_run_without_steps_has_no_verdict() -> None:
    assert TimeSpent(ADVICE).verdict() is None


def test_a_rank_that_is_late_in_most_steps_is_named_once() -> None:
    watch = StragglerWatch()
    late = [watch.take(Arrival(2, 0.2, 0.5)) for _ in range(20)]
    said = [sentence for sentence in late if sentence is not None]
    assert late.index(said[0]) < 10
    assert len(said) == 1
    assert "rank 2 is slower than the others, which wait for it 200 ms of a step of 500 ms" in said[0]
    after = [watch.take(Arrival(1, 0.2, 0.5)) for _ in range(20)]
    assert any(sentence is not None and sentence.startswith("rank 1") for sentence in after)
    assert not any(watch.take(Arrival(2, 0.2, 0.5)) for _ in range(20)), "on a busy machine ranks take turns"


@pytest.mark.parametrize("late_s", [0.0, 0.02, 5e-4])
def test_small_delays_and_changing_ranks_are_noise(late_s: float) -> None:
    watch = StragglerWatch()
    assert all(watch.take(Arrival(2, late_s, 0.5)) is None for _ in range(20))
    assert all(watch.take(Arrival(step % 3, 0.2, 0.5)) is None for step in range(30))


@pytest.mark.parametrize(
    ("strategy", "advises_full"),
    [
        (StrategyConfig("sync"), True),
        (StrategyConfig("sync", overlap="full", bucket_size_bytes=4096), False),
        (StrategyConfig("round-robin-easgd"), False),
    ],
)
def test_advice_is_what_the_strategy_can_take(strategy: StrategyConfig, advises_full: bool) -> None:
    assert ("--overlap full" in advice_for(strategy).if_exchange) == advises_full
