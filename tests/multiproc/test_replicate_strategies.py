"""Strategies, evaluation, saved state and refusals of `samovar.replicate`, on two ranks."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.multiproc.replicate_ranks import run_ranks, succeeded


@cache
def results() -> dict[str, list[Any]]:
    return run_ranks("tests.multiproc.replicate_strategies_rank", 2)


def of(name: str) -> list[Any]:
    return succeeded(results(), name)


@pytest.mark.slow
def test_elastic_averaging_is_its_definition_for_every_spread() -> None:
    for result in of("elastic"):
        for overlap in ("none", "step", "period"):
            assert result[overlap] == result["none"]
            for part in ("worker", "center"):
                np.testing.assert_allclose(result[overlap][part], result["wanted"][part], atol=1e-6)
    first, second = of("elastic")
    assert first["none"]["center"] == second["none"]["center"]
    assert first["none"]["worker"] != second["none"]["worker"]


def test_averaged_weights_of_one_step_are_a_step_with_the_averaged_gradient() -> None:
    for result in of("averaged"):
        assert result["local-sgd"] < 1e-6
        assert result["diloco"] < 1e-6  # with outer rate 1 and no outer momentum


def test_weights_that_are_loaded_after_an_evaluation_are_evaluated_next_and_stay() -> None:
    for result in of("loaded_after_evaluation"):
        assert result["best"] == result["shown"] == result["finished"] != result["last"]


def test_bfloat16_weights_are_averaged_and_rounded_alike() -> None:
    first, second = of("with_half_precision")
    assert first == second


def test_evaluating_has_the_mean_of_batch_statistics_and_gives_the_own_ones_back() -> None:
    first, second = of("statistics")
    assert first["own"] != second["own"]
    assert first["kept"]
    assert second["kept"]
    assert first["mean"] == second["mean"]
    assert (first["cache"], second["cache"]) == ([0.0] * 3, [1.0] * 4)
    assert first["time"] == second["time"] == 1.7e9 + 0.123
    assert first["count"] == second["count"] == 1e9 + 50
    assert first["mask"] == second["mask"] == [0.0, float(np.finfo(np.float32).min)]
    np.testing.assert_allclose(first["mean"], np.mean([first["own"], second["own"]], axis=0), rtol=1e-6)


def test_caches_of_any_size_are_left_alone_when_a_model_is_replicated_again_and_loads_the_state_of_rank_0() -> None:
    first, second = of("cached")
    assert first["sent"] == second["sent"] == [4.0]
    assert first["loaded"] == second["loaded"] == first["saved"] != second["saved"]
    assert (first["cache"], second["cache"]) == ([4.0] * 4, [7.0] * 7)


@pytest.mark.parametrize(
    "strategy",
    [
        *("sync", "sync as bf16", "sync as 1-bit, tried", "local-sgd"),
        *("diloco", "diloco streaming", "sync-easgd", "sync-easgd as int8"),
    ],
)
def test_a_resumed_run_has_the_same_bits(strategy: str) -> None:
    for result in of("resumed"):
        assert result[strategy] == {"equal": True, "steps": 6}


def test_compressed_gradients_leave_equal_weights_and_what_no_rank_has_stays_none() -> None:
    first, second = of("compressed")
    assert first == second
    assert [found["has_gradient"] for found in first.values()] == 5 * [[True, True, False]]
    assert len({tuple(found["values"]) for found in first.values()}) == 5


def test_the_state_of_another_strategy_gives_its_center() -> None:
    first, second = of("changed_strategy")
    assert first["values"] == first["center"] == second["values"]


def test_every_rank_loads_its_own_state() -> None:
    assert "this is the state of rank 1, and here is rank 0" in of("another_ranks_state")[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("inside_evaluating", "inside evaluating()"),
        ("unfrozen", "finish() and close()"),
        ("unfrozen_elsewhere", "was added, removed or unfrozen"),
        ("moved", "'0.weight' was given other memory"),
        ("replaced", "'0.weight' of the model was replaced after replicate()"),
        ("other_model", "ranks [1] differ from rank 0 in their model"),
        ("other_settings", "ranks [1] differ from rank 0 in their settings"),
        ("other_place", "rank 0 is at evaluating() or finish() of replica 0, step 0; rank 1 is at backward()"),
    ],
)
def test_what_cannot_work_is_refused_on_all_ranks_with_the_reason(name: str, words: str) -> None:
    for message in of(name):
        assert words in message


def test_a_strategy_of_the_user_s_weighs_gradients_as_it_says() -> None:
    for found in of("half_sync"):
        assert found["half-sync"] == [value / 2 for value in found["sync"]]
