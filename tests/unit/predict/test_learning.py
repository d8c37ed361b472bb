"""Workers learn on a simulated cluster, at its paces, and a center adds up their updates."""

from dataclasses import replace

import numpy as np
import pytest

from samovar.core.errors import InputError, NotFinite
from samovar.predict.center import CenterServers
from samovar.predict.cluster import Cluster, NetworkSpec, NodeSpec, WorkerSpec
from samovar.predict.digits import Digits, digits_for
from samovar.predict.learning import ALONE, Learned, Lesson, learned, subjects_for, taught
from samovar.predict.prediction import Question, fitting_settings, predicted
from samovar.predict.work import Segment, Work
from samovar.report.profile import LayerProfile, Profile
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import by_recipe

CLUSTER = Cluster("slow links", worker=WorkerSpec(jitter=1.0), network=NetworkSpec(1e7, 1e-4))
WORK = Work(1, (Segment("net", Digits().layout.num_elements, 0.004, 0.006),), 0.0, 0.0, 0.0)
SHORT = Digits(num_epochs=4)


def short(strategy: str, num_workers: int, cluster: Cluster = CLUSTER, **settings: object) -> Learned:
    config = StrategyConfig.given(strategy, settings)
    return learned(Lesson(config, cluster, WORK, num_workers), SHORT, num_points=4)


def test_a_worker_alone_learns_and_its_points_are_in_order() -> None:
    found = short("sync", 1)
    assert [point.steps for point in found.points] == [23, 45, 67, 89]
    losses = [point.loss for point in found.points]
    assert losses == sorted(losses, reverse=True)
    assert found.points[-1].accuracy > 0.9
    assert found.mean_staleness is None


def test_the_same_seed_learns_the_same_and_a_cluster_changes_nothing_in_step() -> None:
    here, elsewhere = (short("sync", 4, cluster) for cluster in (CLUSTER, Cluster("free")))
    assert here.points == short("sync", 4).points
    assert [point.loss for point in here.points] == pytest.approx([point.loss for point in elsewhere.points], rel=1e-4)


def test_slow_links_and_small_periods_make_updates_stale() -> None:
    often, seldom = (short("shm-easgd", 4, sync_period_steps=period) for period in (1, 8))
    assert sum(often.staleness.values()) == 4 * SHORT.num_steps
    assert (often.mean_staleness or 0.0) > 3 * (seldom.mean_staleness or 0.0)
    assert seldom.points[-1].accuracy > 0.8


@pytest.mark.parametrize("name", ["async-sgd", "hybrid-easgd", "diloco", "sync-easgd"])
def test_other_strategies_learn(name: str) -> None:
    nodes = replace(CLUSTER, node=NodeSpec(2))
    settings = {"sync_period_steps": 8} if name == "diloco" else {}
    found = short(name, 4, nodes, **settings)
    assert found.points[-1].accuracy > 0.6
    assert found.points[-1].loss < found.points[0].loss


def test_owners_and_overlap_are_left_out_of_a_lesson() -> None:
    asked = replace(question(4), strategies=("sync",), settings={"overlap": "full", "owner": "root"})
    assert [row.strategy for row in taught(asked, predicted(asked), (SHORT, 4, SHORT))] == [ALONE, "sync"]


def test_a_center_refuses_what_is_not_finite_and_keeps_its_momentum() -> None:
    servers = CenterServers([], 12, 1e9)
    servers.learn(3)
    ones = np.ones(3, np.float32)
    servers.add(ones, 0.5)
    servers.add(ones, 0.5)
    assert servers.values is not None
    assert servers.velocity is not None
    assert (servers.values.tolist(), servers.velocity.tolist()) == ([2.5] * 3, [1.5] * 3)
    with pytest.raises(NotFinite):
        servers.add(np.full(3, np.inf, np.float32), 0.0)
    weights = np.full(3, 4.5, np.float32)
    servers.pull(weights, 0.25)
    assert (servers.values.tolist(), weights.tolist()) == ([3.0] * 3, [4.0] * 3)


LARGE = Profile("large", 8, (LayerProfile("fc", "InnerProduct", 1_000_000, 0, 0, 0.1, 0.2),))


def question(*workers: int, has_recipes: bool = False) -> Question:
    names = ("sync", "sync-easgd")
    return Question(LARGE, CLUSTER, workers, names, 8, shares_batch=has_recipes, has_recipes=has_recipes)


def test_recipes_share_the_batch_and_give_the_settings_of_train() -> None:
    asked = question(4, has_recipes=True)
    assert fitting_settings(asked, "sync-easgd", 4)["sync_period_steps"] == 1
    assert "every step" in predicted(asked)[1].settings
    given = replace(asked, settings={"sync_period_steps": 5})
    assert fitting_settings(given, "sync-easgd", 4)["sync_period_steps"] == 5
    assert "sync_period_steps" not in fitting_settings(question(4), "sync-easgd", 4)


def test_an_adaptive_optimizer_has_the_settings_that_train_gives_it() -> None:
    asked = question(4, has_recipes=True)
    by_adam = replace(asked, profile=replace(LARGE, is_adaptive=True))
    for one, is_adaptive in ((asked, False), (by_adam, True)):
        chosen = by_recipe(StrategyConfig("diloco"), 4, is_adaptive=is_adaptive)
        assert fitting_settings(one, "diloco", 4)["sync_period_steps"] == chosen.sync_period_steps
    periods = [predicted(replace(one, strategies=("diloco",)))[0].settings for one in (asked, by_adam)]
    assert periods[0] != periods[1]


def test_everything_is_taught_in_the_time_of_the_prediction() -> None:
    asked = question(1, 4, 512)
    found = predicted(replace(asked, workers=(1, 4)))
    rows = taught(asked, found, subjects_for(asked, lambda workers, _: None if workers > 4 else SHORT))
    assert [(row.strategy, row.workers) for row in rows] == [(ALONE, 1), ("sync", 4), ("sync-easgd", 4)]
    assert rows[0].step_s == pytest.approx(1.5 * 0.3)  # half of its jitter, on average
    assert [row.step_s for row in rows[1:]] == [one.step_s for one in found if one.workers == 4]
    first = rows[1].learned.points[0]
    assert rows[1].hours_to(0.0) == pytest.approx(first.steps * rows[1].step_s / 3600)
    assert rows[1].hours_to(1.01) is None


def test_the_time_of_workers_of_different_pace_is_that_of_their_samples() -> None:
    slow = replace(CLUSTER, worker=WorkerSpec(slow_every=2, slow_factor=4.0))
    asked = replace(question(2), cluster=slow, strategies=("async-easgd",))
    found = predicted(asked)
    row = taught(asked, found, (SHORT, 2, SHORT))[1]
    assert 2 * 8 / row.step_s == pytest.approx(found[0].samples_per_s)


def test_too_many_workers_for_the_digits_are_refused() -> None:
    assert digits_for(16, False) == Digits(1024)
    assert digits_for(17, False) is None
    assert digits_for(64, True) == Digits(64)
    assert digits_for(65, True) is None
    assert digits_for(33, True) == Digits(33), "and all 30 epochs"
    with pytest.raises(InputError, match="add a smaller number to --workers"):
        subjects_for(question(128), digits_for)
