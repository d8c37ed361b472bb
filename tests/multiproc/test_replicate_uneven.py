"""Data divided among ranks, and ranks whose data ends before that of others: all end, at the same step."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.multiproc.command import succeed
from tests.multiproc.replicate_ranks import run_ranks, succeeded

LENGTHS = (2, 5, 0)  # of the rank program, batches per epoch
TWO_PROGRAM = Path(__file__).with_name("replicate_two_program.py")


@cache
def results(world_size: int) -> dict[str, list[Any]]:
    return run_ranks("tests.multiproc.replicate_uneven_rank", world_size)


def of(name: str, world_size: int = 2) -> list[Any]:
    return succeeded(results(world_size), name)


WORLD_SIZES = [2, pytest.param(3, marks=pytest.mark.slow)]  # the third rank has no data at all
STRATEGIES = ["local_sgd", "diloco", "streaming", "elastic_step", "elastic_step_encoded", "elastic_period"]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_step_is_taken_with_the_mean_of_those_who_have_data(world_size: int) -> None:
    for rank, result in enumerate(of("gradients", world_size)):
        np.testing.assert_allclose(result["values"], result["wanted"], atol=1e-6)
        assert result["values"] == of("gradients", world_size)[0]["values"]
        assert result["own"] == 2 * LENGTHS[rank]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", ["gradients", "gradients_in_buckets_with_adam", "compared", "damped", *STRATEGIES])
def test_all_ranks_come_to_the_same_step_and_evaluate_the_same_weights(name: str, world_size: int) -> None:
    ranks = of(name, world_size)
    for result in ranks:
        assert result["steps"] == 10
        assert result["evaluated"] == ranks[0]["evaluated"]


def test_data_may_end_in_the_middle_of_a_step() -> None:
    first, second = of("accumulated")
    assert first == second


def test_those_with_data_may_meet_between_backward_and_step() -> None:
    first, second = of("looked_at_before_the_step")
    assert first == second
    assert first["steps"] == 5


@pytest.mark.parametrize("name", ["one_pass_for_two", "one_pass_for_two_in_buckets"])
def test_one_pass_gives_two_replicas_their_gradients_while_a_rank_has_no_data(name: str) -> None:
    first, second = of(name)
    assert first == second


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_scale_that_is_brought_to_all_after_each_epoch_changes_no_weight(world_size: int) -> None:
    for result in of("scaled", world_size):
        np.testing.assert_allclose(result["scaled"], result["plain"], rtol=1e-6)


def test_no_gradient_of_a_rank_without_data_is_left_for_the_next_epoch() -> None:
    assert [result["left"] for result in of("in_bfloat16")] == [[], []]


@pytest.mark.slow
def test_the_spread_of_an_exchange_changes_no_bit_with_uneven_data() -> None:
    assert of("elastic_step") == of("elastic_period")


def test_a_rank_answers_for_all_its_replicas() -> None:
    first, second = of("two_replicas")
    assert first == second


def test_an_inner_loop_ends_without_those_whose_outer_loop_has_ended() -> None:
    ranks = of("inner_loop")
    assert [len(result["seen"]) for result in ranks] == [2, 5]
    assert sorted(ranks[0]["seen"][0] + ranks[1]["seen"][0]) == list(range(10))
    assert ranks[0]["values"] == ranks[1]["values"]


def test_the_epochs_of_an_inner_loop_are_no_steps() -> None:
    assert [result["steps"] for result in of("inner_loops")] == [5, 5]
    assert [result["epochs"] for result in of("inner_loops")] == [6, 15]


def test_parts_are_disjoint_and_complete_and_every_epoch_has_another_order() -> None:
    epochs = list(zip(*of("divided"), strict=True))
    orders = [[sample for part in parts for batch in part for sample in batch] for parts in epochs]
    for parts, order in zip(epochs, orders, strict=True):
        assert sorted(order) == list(range(23))
        assert len({len(part) for part in parts}) == 1
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("scenario", ["disagreeing_samplers", "disagreeing_splits"])
def test_ranks_whose_samples_disagree_are_told_so(scenario: str) -> None:
    for message in of(scenario):
        assert "the samples, their order, or the batch size, on ranks [1] differs" in message


def test_a_rank_that_leaves_the_loop_by_itself_is_noticed_at_once() -> None:
    for message in of("left_early"):
        assert "rank 0 is at evaluating()" in message
        assert "rank 1 is at backward()" in message


def test_a_loop_is_not_left_while_a_rank_without_data_waits_in_it() -> None:
    for message in of("left_when_one_had_ended"):
        assert "ranks [0] have no more data" in message


def test_those_without_data_take_part_in_a_state_that_others_take() -> None:
    assert [result["steps"] for result in of("saved_in_every_step")] == [5, 5]


@pytest.mark.parametrize("transport", ["gloo", pytest.param("tcp", marks=pytest.mark.slow)])
def test_one_pass_for_two_replicas_ends_where_exchanges_go_one_after_the_other(tmp_path: Path, transport: str) -> None:
    """As between hosts, where exchanges take place in the order in which a rank begins them."""
    ended = succeed("run", "-n", 2, "--transport", transport, TWO_PROGRAM, folder=tmp_path, forks_scripts=True)
    first, second = (line.partition(": ")[2] for line in ended.output.splitlines())
    assert first == second
    assert first.startswith("3 3 ")
