"""Recipes of strategies: what they change, and what stays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.integrations.shared import SharedTraining
from samovar.strategies.base import strategy
from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import by_recipe, recipe_changes, resolved
from samovar.strategies.local_sgd import LocalSgd
from samovar.strategies.traits import KINDS


def test_each_of_ours_has_one_and_all_but_sync_use_it_by_default() -> None:
    recipes = {name: KINDS[name].traits.recipe for name in STRATEGIES}
    assert all(recipes.values())
    assert [name for name, recipe in recipes.items() if recipe and not recipe.is_default] == ["sync"]


@pytest.mark.parametrize("is_adaptive", [False, True])
@pytest.mark.parametrize("num_workers", [2, 4, 16])
@pytest.mark.parametrize("name", STRATEGIES)
def test_its_settings_are_allowed_and_told_as_changes(name: str, num_workers: int, is_adaptive: bool) -> None:
    chosen = resolved(by_recipe(StrategyConfig(name), num_workers, is_adaptive=is_adaptive), num_workers)
    default = resolved(StrategyConfig(name), num_workers)
    told = recipe_changes(chosen, num_workers, is_adaptive=is_adaptive)
    recipe = KINDS[name].traits.recipe
    assert recipe is not None
    assert recipe.rate_factor(chosen, num_workers, is_adaptive=False) == recipe.rate(chosen, num_workers) > 0
    names = {*recipe.settings, *(recipe.if_adaptive if is_adaptive else ())}
    assert {change.name: (change.before, change.after) for change in told} == {
        key: (default[key] or 0.0, chosen[key]) for key in names if chosen[key] != default[key]
    }


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_worker_needs_none(name: str) -> None:
    assert by_recipe(StrategyConfig(name), 1, is_adaptive=True) == StrategyConfig(name)


def test_a_given_setting_stays() -> None:
    given = resolved(by_recipe(StrategyConfig("sync-easgd", sync_period_steps=5), 4, is_adaptive=False), 4)
    assert given.sync_period_steps == 5
    assert [change.name for change in recipe_changes(given, 4, is_adaptive=False)] == ["worker_rate"]
    assert given.worker_rate == 0.5


@pytest.mark.parametrize(("rate", "momentum", "factor"), [(0.7, 0.9, 1 / 7), (1.0, 0.0, 1.0), (1.0, 0.5, 0.5)])
def test_an_outer_step_makes_up_for_a_lower_rate(rate: float, momentum: float, factor: float) -> None:
    chosen = StrategyConfig("diloco", outer_rate=rate, outer_momentum=momentum)
    recipe = chosen.traits.recipe
    assert recipe is not None
    assert recipe.rate(chosen, 4) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("name", "more", "factor"),
    [
        ("sync", {}, 1.0),
        ("local-sgd", {}, 2.0),
        ("diloco", {}, 3.0 * 0.5 / 0.7),
        ("diloco", {"outer_momentum": 0.9}, 3.0 * 0.1 / 0.7),
        ("slowmo", {}, 2.0 * 0.7 / 0.5),
        ("async-sgd", {}, 2.0),
        ("async-easgd", {"moving_rate": 0.25}, 2.0 * 1.5),
        ("sync-easgd", {"moving_rate": 0.25, "worker_rate": 0.75}, 2.0 * 1.75),
        ("sync-easgd", {"moving_rate": 0.25, "worker_rate": 0.1}, 2.0 * 1.25),  # which goes at least as far as alpha
        ("async-easgd", {"moving_rate": 0.01}, 2.0 * 4.0),
        ("async-easgd", {"moving_rate": 0.25, "sync_period_steps": 2}, 2.0),
        ("hybrid-easgd", {"moving_rate": 0.5, "group_size": 2}, 2.0**0.5 * 1.5),
    ],
)
def test_adam_steps_farther_on_a_part_of_the_batch_and_against_the_pull(
    name: str, more: dict[str, Any], factor: float
) -> None:
    chosen = resolved(by_recipe(StrategyConfig(name).but(more), 4, is_adaptive=True), 4)
    recipe = chosen.traits.recipe
    assert recipe is not None
    assert recipe.rate_factor(chosen, 4, is_adaptive=True) == pytest.approx(factor)


@pytest.mark.parametrize("num_workers", [2, 4, 16])
@pytest.mark.parametrize(
    "name", ["sync-easgd", "async-easgd", "hogwild-easgd", "round-robin-easgd", "shm-easgd", "hybrid-easgd"]
)
def test_an_elastic_center_moves_as_far_as_one_worker(name: str, num_workers: int) -> None:
    """With steps of length f, workers whose mean is q ahead of the center come to (q + f)(1 - alpha G - beta)."""
    config = StrategyConfig(name).but({"group_size": 2} if name == "hybrid-easgd" else {})
    chosen = resolved(by_recipe(config, num_workers, is_adaptive=False), num_workers)
    recipe, num_groups = chosen.traits.recipe, num_workers // (chosen["group_size"] or 1)
    assert recipe is not None
    factor = recipe.rate_factor(chosen, num_workers, is_adaptive=False)
    together = chosen.moving_rate * num_groups
    ahead = moved = 0.0
    for _ in range(100):
        ahead += factor
        moved, ahead = together * ahead, ahead * (1 - together - max(chosen.worker_rate, chosen.moving_rate))
    assert moved == pytest.approx(1.0)


def test_a_strategy_of_ones_own_has_none_unless_it_declares_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class ItsOwn(LocalSgd):
        """It declares nothing."""

    own = strategy("its-own")(ItsOwn)
    del KINDS["its-own"]
    monkeypatch.setitem(KINDS, "its-own", own)  # which goes when the test ends
    assert own.traits.recipe is None
    config = RunConfig("train", Path("solver"), strategy=StrategyConfig("its-own"))
    assert config.used_recipe is None
    with pytest.raises(InputError, match="--recipe auto: its-own declares no recipe"):
        replace(config, recipe="auto")


def test_a_framework_that_divides_data_itself_takes_none() -> None:
    with pytest.raises(InputError, match=r"recipe='auto': divides batches in replica\.shard"):
        SharedTraining("diloco", {"recipe": "auto"})
