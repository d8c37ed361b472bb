"""Ranks that are saved in the middle of an epoch go on with the next sample, and end with the same bits."""

from functools import cache
from typing import Any

import pytest

from tests.multiproc.replicate_ranks import run_ranks, succeeded
from tests.multiproc.replicate_resume_rank import EPOCHS, NUM_SAMPLES, SETTINGS


@cache
def results() -> dict[str, list[Any]]:
    return run_ranks("tests.multiproc.replicate_resume_rank", 2)


@pytest.mark.parametrize("strategy", SETTINGS)
def test_after_any_step_the_rest_is_the_same(strategy: str) -> None:
    ranks = succeeded(results(), strategy)
    seen = sorted(sample for runs in ranks for batch in runs[0]["samples"] for sample in batch)
    assert seen == sorted(EPOCHS * list(range(NUM_SAMPLES)))
    for whole, *resumed in ranks:
        assert len(resumed) == len(whole["samples"])
        for step, run in enumerate(resumed, 1):
            assert run["samples"] == whole["samples"][step:], step
            assert run["weights"] == whole["weights"], step


def test_a_replica_may_go_back_to_an_earlier_state_of_its_own() -> None:
    for rank in succeeded(results(), "goes back"):
        assert rank["again"] == rank["first"]
