"""Means, sums, objects of all ranks, and a place to meet."""

from functools import cache
from typing import Any

import pytest

from tests.multiproc.replicate_ranks import run_ranks, succeeded
from tests.multiproc.replicate_reductions_rank import OBJECT

PROGRAM = "tests.multiproc.replicate_reductions_rank"


@cache
def results(world_size: int) -> dict[str, list[Any]]:
    return run_ranks(PROGRAM, world_size)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("scenario", ["numbers", "at_own_speed"])
def test_every_rank_has_the_same_results(scenario: str, world_size: int) -> None:
    ranks = range(world_size)
    for rank, result in enumerate(succeeded(results(world_size), scenario)):
        assert result["mean"] == sum(ranks) / world_size
        assert result["sum"] == sum(rank + 1 for rank in ranks)
        assert result["max"] == 0.0
        assert result["int"] == [[sum(ranks), world_size]]
        assert (result["bools"], result["bytes"]) == ([world_size, 0], [200 * world_size])
        assert result["type"] == "torch.float16"
        assert result["large"] == 1000 * result["sum"]
        assert result["gathered"] == [{**OBJECT, "rank": rank, "long": "x" * (5000 * rank)} for rank in ranks]
        assert result["broadcast"] == ["from", 1]
        assert result["local"] == [rank, "cpu"]


def test_a_rank_without_data_is_left_out() -> None:
    first, second = succeeded(results(2), "uneven")
    assert first["means"] == [0.5, 0.5, 0.0]
    assert second["means"] == [0.5, 0.5]
    assert first["gathered"] == [[0, 1], [0, 1], [0, None]]
    assert first["values"] == second["values"]


def test_a_codebook_that_forward_trains_is_that_of_all_workers() -> None:
    first, second = succeeded(results(2), "codebook")
    assert first["codes"] == second["codes"]
    assert first["codes"] == [pytest.approx(row, rel=1e-5, abs=1e-6) for row in first["alone"]]


def test_values_that_do_not_fit_are_refused_on_every_rank() -> None:
    for result in succeeded(results(2), "other_shapes"):
        assert "give all ranks the same shape" in result
    for result in succeeded(results(2), "not_plain"):
        assert "give numbers, strings, None, and lists and dicts of these" in result
