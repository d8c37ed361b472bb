"""`samovar.replicate` in training scripts as people write them: two ranks against one process on all the data."""

from functools import cache
from typing import Any

import pytest

from tests.multiproc.replicate_ranks import run_ranks, succeeded

TOLERANCE = 1e-6  # rounding, in another order
FEATURES = "tests.multiproc.replicate_features_rank"


@cache
def results() -> dict[str, list[Any]]:
    return run_ranks(FEATURES, 2, *(name for name in _names() if name != "compiled"))


def _names() -> tuple[str, ...]:
    return (*SAME, "several_types", "float16", "chosen_types", "autocast", "overflow", "checkpointed_too_late")


SAME = (
    "transposed",
    "transposed_later",
    "compiled_step",
    "moved",
    "plain",
    "buckets",
    "zeroed_in_place",
    "accumulated_with_more",
    "accumulated_without_more",
    "clipped",
    "odd_parameters",
    "two_optimizers",
    "checkpointed_reentrant",
    "checkpointed_anew",
)


def of(name: str) -> list[Any]:
    return succeeded(results(), name)


@pytest.mark.parametrize("name", SAME)
def test_a_script_trains_as_one_process_on_all_the_data(name: str) -> None:
    for result in of(name):
        assert result["distance"] < TOLERANCE


def test_ranks_hold_the_same_bits_and_count_the_steps() -> None:
    for name in ("plain", "buckets"):
        first, second = of(name)
        assert first["values"] == second["values"]
        assert first["steps"] == second["steps"] == 5


def test_the_size_of_buckets_changes_no_bit() -> None:
    assert of("plain")[0]["values"] == of("buckets")[0]["values"]


def test_a_parameter_that_no_rank_used_has_no_gradient_and_no_momentum() -> None:
    for result in of("odd_parameters"):
        assert result["unused"] == [True, False]
        assert result["sometimes"]  # only rank 0 used it


@pytest.mark.parametrize(
    ("scenario", "other", "distance"),
    [
        ("several_types", "torch.bfloat16", 1e-3),
        ("float16", "torch.float16", 1e-3 / 8),  # 11 bits, not 8
        ("chosen_types", "torch.bfloat16", 2e-3),
    ],
)
def test_parameters_of_other_types_are_rounded_alike_on_all_ranks(scenario: str, other: str, distance: float) -> None:
    first, second = of(scenario)
    assert first["values"] == second["values"]
    assert first["distance"] < distance
    assert first["types"] == [other, "torch.float32"]
    assert first["count"] == second["count"] == 3  # rank 0's buffer


def test_autocast_with_a_scaler() -> None:
    first, second = of("autocast")
    assert first["values"] == second["values"]
    assert first["distance"] < 5e-3  # products in bfloat16, of other batches


def test_an_infinite_gradient_on_one_rank_stops_the_step_on_all() -> None:
    for result in of("overflow"):
        assert result == {"unchanged": True, "scale": 512.0}


def test_a_gradient_in_two_parts_cannot_be_exchanged_in_buckets() -> None:
    for message in of("checkpointed_too_late"):
        assert "use_reentrant=False" in message


@pytest.mark.slow
def test_a_compiled_model() -> None:
    for result in run_ranks(FEATURES, 2, "compiled")["compiled"]:
        assert result["distance"] < TOLERANCE, result
