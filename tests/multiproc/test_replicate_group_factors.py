"""hybrid-easgd's group makes and sends gradients of matrices as `factors` says."""

import pytest

from tests.multiproc.replicate_ranks import run_ranks, succeeded

PROGRAM = "tests.multiproc.replicate_group_factors_rank"
PERCEPTRON = ["0.weight", "2.weight"]


@pytest.mark.slow
def test_factors_of_a_group() -> None:
    results = run_ranks(PROGRAM, 2, "left_out", "none", "always")
    for name, made, factored in [("left_out", PERCEPTRON, 0), ("none", [], 0), ("always", PERCEPTRON, 2)]:
        first, second = succeeded(results, name)
        assert first["result"]["values"] == second["result"]["values"]
        for outcome in (first, second):
            assert outcome["result"]["distance"] < 1e-6  # rounding, in another order
            assert (outcome["made"], outcome["result"]["factored"]) == (made, factored), name
