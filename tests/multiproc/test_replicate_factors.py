"""Gradients that travel as factors: two ranks against one process on all the data, and what falls back."""

from functools import cache
from typing import Any

import pytest

from tests.multiproc.replicate_ranks import run_ranks, succeeded

TOLERANCE = 1e-5  # rounding, in another order
PROGRAM = "tests.multiproc.replicate_factors_rank"
SAME = (
    "plain",
    "buckets",
    "clipped",
    "odd_parameters",
    "two_optimizers",
    "zeroed_in_place",
    "accumulated_without_more",
    "convolutional",
    "channels_last",
    "recurrent",
    "shared",
)
MISTAKES = ("reversed_ranks", "stale_factors", "others_left_out")
OTHERS = (
    "autocast",
    "overflow",
    "changing",
    "resized",
    "watched_weight",
    "kept_gradients",
    "resumed",
    "twice",
    "compressed",
)
AT_THE_END = ("refused", "other_processor", "accumulated_with_more")  # errors leave half a step behind


@cache
def results() -> dict[str, list[Any]]:
    return run_ranks(PROGRAM, 2, *SAME, *OTHERS, *MISTAKES, *AT_THE_END)


def of(name: str) -> list[Any]:
    return succeeded(results(), name)


@pytest.mark.parametrize("name", SAME)
def test_a_script_trains_as_one_process_on_all_the_data(name: str) -> None:
    for result in of(name):
        assert result["distance"] < TOLERANCE


@pytest.mark.parametrize(
    "name",
    ["plain", "buckets", "convolutional", "channels_last", "recurrent", "shared", "changing", "resized", "autocast"],
)
def test_ranks_hold_the_same_bits(name: str) -> None:
    first, second = of(name)
    assert first["values"] == second["values"]


@pytest.mark.parametrize(
    ("name", "count"), [("convolutional", 6), ("channels_last", 2), ("recurrent", 3), ("shared", 2)]
)
def test_products_travel_as_factors_and_other_matrices_whole(name: str, count: int) -> None:
    """Whole: an LSTM's, one that is tied to an embedding, one whose squares are part of the loss."""
    for result in of(name):
        assert result["factored"] == count


def test_two_runs_have_the_same_bits_with_and_without_buckets() -> None:
    for result in of("twice"):
        assert result["first"] == result["second"] == of("plain")[0]["values"] == of("buckets")[0]["values"]


def test_a_gradient_that_is_no_product_in_one_step_travels_whole() -> None:
    """On one rank alone, by checkpoints, a weight in the loss, gradients that were there; then as factors no more."""
    for result in of("changing"):
        assert max(result["distances"]) < TOLERANCE
        assert result["factored"] < 2


def test_pictures_of_other_sizes_travel_whole() -> None:
    """After three steps of them all do."""
    for result in of("resized"):
        assert result["distance"] < TOLERANCE
        assert result["factored"] == [2] * 7 + [0] * 2


def test_hooks_of_the_user_see_whole_gradients() -> None:
    for result in of("watched_weight"):
        assert result == {"seen": 5, "factored": 1}
    for result in of("kept_gradients"):
        assert result == {"found": [True] * 5, "factored": 2}


def test_autocast_and_a_scaler_that_leaves_a_step_out() -> None:
    for result in of("autocast"):
        assert result["distance"] < 5e-3  # products in bfloat16, of other batches
    for result in of("overflow"):
        assert result == {"unchanged": True, "scale": 512.0}


def test_a_resumed_run_has_the_same_bits() -> None:
    for result in of("resumed"):
        assert result == {"equal": True, "factored": 2}


def test_what_is_no_matrix_is_compressed_beside_factors() -> None:
    first, second = of("compressed")
    assert first["values"] == second["values"]
    assert 0 < first["distance"] < 1e-3


def test_what_never_travels_as_factors_is_refused_where_it_was_asked_for() -> None:
    for result in results()["accumulated_with_more"]:
        assert "factors 'always': no gradient of the model is a product of two factors" in result["error"]


def test_the_reason_is_told() -> None:
    for refusal in results()["refused"]:
        assert "choose 'auto' or 'none'" in refusal
    for refusal in results()["other_processor"]:
        assert "ranks [1] make products in other ways than rank 0" in refusal


@pytest.mark.slow
def test_ranks_without_data_send_no_rows() -> None:
    ranks = run_ranks(PROGRAM, 3, "gradients")["gradients"]  # the third has no data at all
    for result in ranks:
        assert "error" not in result, result["error"]
        assert result["values"] == ranks[0]["values"]
        assert result["values"] == pytest.approx(result["wanted"], abs=1e-6)


def test_rows_in_another_order_leave_other_bits() -> None:
    first, second = of("reversed_ranks")
    assert first["values"] != second["values"]


@pytest.mark.parametrize("mistake", ["stale_factors", "others_left_out"])
def test_factors_of_another_step_or_of_few_ranks_show_in_the_weights(mistake: str) -> None:
    for result in of(mistake):
        assert result["distance"] > 100 * TOLERANCE
