"""Gradients that are made in the shared buffer: two ranks against one process on all the data, and what falls back."""

from functools import cache
from typing import Any

import pytest

from tests.multiproc.replicate_ranks import run_ranks, succeeded

TOLERANCE = 1e-6  # rounding, in another order
WITH_A_PENALTY = 5e-6  # which is large there: 2.2e-6 with gradients of autograd too
PROGRAM = "tests.multiproc.replicate_products_rank"
PERCEPTRON = ["0.weight", "2.weight"]
# The matrices whose gradients are made in the buffer; of others autograd makes them.
MADE = {
    "plain": PERCEPTRON,
    "buckets": PERCEPTRON,
    "clipped": PERCEPTRON,
    "two_optimizers": ["weight"],
    "zeroed_in_place": PERCEPTRON,  # in the first step
    "accumulated_with_more": [],
    "accumulated_without_more": PERCEPTRON,
    "checkpointed_reentrant": [],
    "checkpointed_anew": [],
    "odd_parameters": ["sometimes.weight"],  # of its two uses one has no bias, and an input that wants no gradient
    "convolutional": ["6.weight", "8.weight", "9.weight"],
    "recurrent": ["free", "out.weight"],  # not an LSTM's, and not that of a first layer without a bias
    "shared": ["bare.weight", "twice.weight"],  # not with a penalty, or tied to an embedding
    "own_backward": ["weight"],
    "three_uses": ["weight"],
    "large_rows": ["2.weight"],
}
OTHERS = ("autocast", "overflow", "several_types", "changing", "watched_weight", "kept_gradients")
OWN = ("nothing_comes", "frozen_late", "without", "twice", "last_use_alone")


@cache
def results() -> dict[str, list[Any]]:
    return run_ranks(PROGRAM, 2, *MADE, *OTHERS, *OWN)


def of(name: str) -> list[Any]:
    return [outcome["result"] for outcome in succeeded(results(), name)]


@pytest.mark.parametrize("name", MADE)
def test_a_script_trains_as_one_process_on_all_the_data(name: str) -> None:
    for result in of(name):
        assert result["distance"] < (WITH_A_PENALTY if name == "shared" else TOLERANCE)


@pytest.mark.parametrize("name", MADE)
def test_gradients_that_are_products_are_made_in_the_buffer_and_others_by_autograd(name: str) -> None:
    first, second = results()[name]
    assert first["made"] == MADE[name]
    if name != "odd_parameters":  # there one rank alone uses the layer
        assert second["made"] == MADE[name]


@pytest.mark.parametrize("name", ["plain", "buckets", "convolutional", "recurrent", "shared", "three_uses", "autocast"])
def test_ranks_hold_the_same_bits(name: str) -> None:
    first, second = of(name)
    assert first["values"] == second["values"]


def test_two_runs_have_the_same_bits_with_and_without_buckets() -> None:
    for result in of("twice"):
        assert result["first"] == result["second"] == of("plain")[0]["values"] == of("buckets")[0]["values"]


def test_factors_none_leaves_all_gradients_to_autograd() -> None:
    """The same numbers, up to where a library scales a product: before or after it is added up."""
    for outcome in results()["without"]:
        assert outcome["made"] == []
        assert outcome["result"]["values"] == pytest.approx(of("plain")[0]["values"], rel=TOLERANCE, abs=TOLERANCE)


def test_one_rank_alone_may_fall_back() -> None:
    """By checkpoints, a weight in the loss, gradients that were there."""
    for result in of("changing"):
        assert max(result["distances"]) < TOLERANCE


def test_hooks_of_the_user_see_whole_gradients() -> None:
    for outcome in results()["watched_weight"]:
        assert outcome == {"result": {"seen": 5, "factored": 0}, "made": ["2.weight"]}
    for outcome in results()["kept_gradients"]:
        assert outcome == {"result": {"found": [True] * 5, "factored": 0}, "made": PERCEPTRON}


def test_products_of_bfloat16_are_made_by_autograd() -> None:
    for outcome in results()["autocast"]:
        assert outcome["made"] == []
        assert outcome["result"]["distance"] < 5e-3  # of other batches
    for outcome in results()["several_types"]:
        assert outcome["made"] == ["0.weight"]
        assert outcome["result"]["distance"] < 1e-3  # bfloat16 has 8 bits


def test_an_infinite_gradient_on_one_rank_stops_the_step_on_all() -> None:
    for result in of("overflow"):
        assert result == {"unchanged": True, "scale": 512.0}


def test_a_matrix_that_no_gradient_reaches_has_none() -> None:
    assert of("nothing_comes") == [[True, False]] * 2
    assert of("frozen_late") == [[False, True, True, True]] * 2


def test_a_second_product_in_place_of_the_first_shows_in_the_weights() -> None:
    for result in of("last_use_alone"):
        assert result["distance"] > 100 * TOLERANCE


@pytest.mark.slow
def test_ranks_without_data_add_nothing() -> None:
    ranks = [outcome["result"] for outcome in run_ranks(PROGRAM, 3, "gradients")["gradients"]]
    for result in ranks:  # the third has no data at all
        assert result["values"] == ranks[0]["values"]
        assert result["values"] == pytest.approx(result["wanted"], abs=1e-6)


@pytest.mark.slow
def test_a_compiled_model() -> None:
    for outcome in run_ranks(PROGRAM, 2, "compiled")["compiled"]:
        assert outcome["result"]["distance"] < TOLERANCE
        assert outcome["made"] == []
