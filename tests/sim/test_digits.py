"""Workers at a center learn as one worker does with the same batch in all; with the papers' moving rate 16 do not.

They learn as in `samovar predict --learn`.
"""

from functools import cache

import pytest

from samovar.predict.cluster import Cluster, NetworkSpec, WorkerSpec
from samovar.predict.digits import Digits
from samovar.predict.learning import Lesson, learned
from samovar.predict.work import Segment, Work
from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import StrategyConfig

SEEDS = (0, 1, 2)
AT_A_CENTER = [name for name in STRATEGIES if StrategyConfig(name).needs_center]
# A step takes 10 ms or up to twice that; an exchange occupies the center's link for 2 ms, so that 16 workers at period
# 1 wait for it.
CLUSTER = Cluster("busy", worker=WorkerSpec(jitter=1.0), network=NetworkSpec(1e7, 1e-4))
WORK = Work(1, (Segment("net", Digits().layout.num_elements, 0.004, 0.006),), 0.0, 0.0, 0.0)


def accuracy(strategy: StrategyConfig, num_workers: int, seed: int = 0) -> float:
    lesson = Lesson(strategy, CLUSTER, WORK, num_workers, seed=seed)
    return learned(lesson, Digits(), num_points=1).points[-1].accuracy


@cache
def mean_accuracy(strategy: StrategyConfig, num_workers: int) -> float:
    return sum(accuracy(strategy, num_workers, seed) for seed in SEEDS) / len(SEEDS)


def alone() -> float:
    return mean_accuracy(StrategyConfig(), 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_workers", [8, 16])
@pytest.mark.parametrize("name", ["shm-easgd", "hybrid-easgd"])
def test_with_defaults_many_that_push_are_as_good_as_one(name: str, num_workers: int) -> None:
    assert mean_accuracy(StrategyConfig(name), num_workers) > alone() - 0.01


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", AT_A_CENTER)
def test_with_defaults_four_are_as_good_as_one(name: str) -> None:
    assert mean_accuracy(StrategyConfig(name), 4) > alone() - 0.01


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_moving_rate_of_shmcaffe_does_no_harm_at_the_default_period() -> None:
    """Sixteen with a rate of 0.2 are as good as one where they exchange every fourth step; see the next test."""
    default, papers = StrategyConfig("shm-easgd"), StrategyConfig("shm-easgd", moving_rate=0.2)
    found = {rate: mean_accuracy(config, 16) for rate, config in (("default", default), ("0.2", papers))}
    print(f"accuracy by moving rate {found}, of one worker {alone()}")
    assert found["0.2"] > alone() - 0.01


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_moving_rate_of_shmcaffe_is_too_much_for_sixteen() -> None:
    """A rate of 0.2 and an exchange every step, at every scale: the paper lost 5.7 points with 16 workers."""
    papers = StrategyConfig("shm-easgd", sync_period_steps=1, moving_rate=0.2)
    assert accuracy(papers, 16) < alone() - 0.05
