"""Strategies at a center in `samovar.replicate`, on two ranks and on four."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.multiproc.replicate_center_rank import ASYNC, MOVING_RATE, STEPS, optimizer_of
from tests.multiproc.replicate_nets import batches, perceptron, whole_batches
from tests.multiproc.replicate_ranks import run_ranks, succeeded

Weights = npt.NDArray[np.float64]


@cache
def results(world_size: int) -> dict[str, list[Any]]:
    return run_ranks("tests.multiproc.replicate_center_rank", world_size)


def of(name: str, world_size: int = 2) -> list[Any]:
    return succeeded(results(world_size), name)


READING = ("async-sgd", "async-msgd", "hogwild-sgd")  # their weights are the center's, at whatever moment they read it
WORLD_SIZES = [2, pytest.param(4, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("strategy", ASYNC)
def test_ranks_step_at_their_own_speed_and_end_with_the_same_weights(strategy: str, world_size: int) -> None:
    ranks = [result[strategy] for result in of("every_strategy", world_size)]
    assert [rank["steps"] for rank in ranks] == [STEPS + 4 * number for number in range(world_size)]
    assert all(rank["final"] == ranks[0]["final"] for rank in ranks)
    assert ranks[0]["center"] != start()
    if strategy not in READING:
        assert ranks[0]["own"] != ranks[1]["own"]


def start() -> list[float]:
    return nn.utils.parameters_to_vector(perceptron().parameters()).double().tolist()


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_sum_of_workers_and_center_changes_by_steps_alone(world_size: int) -> None:
    """Exactly: all numbers are small multiples of a power of two."""
    made = sum(10 * (1 + 4 * rank) for rank in range(world_size))
    before = np.arange(8.0)
    ranks = of("whole_numbers", world_size)
    for strategy in ("async-easgd", "async-easgd behind", "shm-easgd", "hybrid-easgd"):
        total = np.array(ranks[0][strategy]["center"]) + sum(np.array(rank[strategy]["own"]) for rank in ranks)
        assert (total == (world_size + 1) * before + made).all(), strategy
    assert (np.array(ranks[0]["async-sgd"]["center"]) == before + made).all()
    assert all(rank["async-sgd"]["center"] == ranks[0]["async-sgd"]["center"] for rank in ranks)


def flat(net: nn.Module) -> Weights:
    return nn.utils.parameters_to_vector(net.parameters()).detach().numpy().copy()


def put(weights: Weights, net: nn.Module) -> None:
    nn.utils.vector_to_parameters(torch.from_numpy(weights), net.parameters())


def stepped(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(net(x.double()), y).backward()
    optimizer.step()


def round_robin_in_float64(world_size: int) -> tuple[list[Weights], Weights]:
    """All workers and the center after the run, by the rule as it stands in docs/explanation/strategies/."""
    nets = [perceptron().double() for _ in range(world_size)]
    optimizers, center = [optimizer_of(net) for net in nets], flat(nets[0])
    data: list[Iterator[Any]] = [batches(rank, STEPS) for rank in range(world_size)]
    for step in range(STEPS):
        for net, optimizer, own in zip(nets, optimizers, data, strict=True):
            stepped(net, optimizer, *next(own))
            if step % 2:  # in the order of ranks
                d = MOVING_RATE * (flat(net) - center)
                put(flat(net) - d, net)
                center += d
    return [flat(net) for net in nets], center


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_round_robin_is_its_definition_and_the_same_bits_after_a_pause(world_size: int) -> None:
    workers, center = round_robin_in_float64(world_size)
    for result, worker in zip(of("round_robin", world_size), workers, strict=True):
        np.testing.assert_allclose(result["worker"], worker, atol=1e-6)
        np.testing.assert_allclose(result["center"], center, atol=1e-6)
        assert result["resumed"] == result["worker"]
        assert result["resumed_center"] == result["center"]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_one_group_is_synchronous_training_that_a_center_pulls_at(world_size: int) -> None:
    net = perceptron().double()
    optimizer, center = optimizer_of(net, 0.9), flat(net)
    for step, (x, y) in enumerate(whole_batches(world_size, STEPS)):
        stepped(net, optimizer, x, y)
        if step % 2:
            d = MOVING_RATE * (flat(net) - center)
            put(flat(net) - d, net)
            center += d
    ranks = of("groups", world_size)
    for result in ranks:
        np.testing.assert_allclose(result["group"], flat(net), atol=1e-6)
        assert result["group"] == ranks[0]["group"]
    # Others show the center of the moment, which the push of the first may not have reached.
    np.testing.assert_allclose(ranks[0]["center"], center, atol=1e-6)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_group_goes_on_together_when_some_of_it_have_no_data_left(world_size: int) -> None:
    ranks = of("groups", world_size)
    assert len({result["seen"] for result in ranks}) == 2
    assert sum(result["seen"] for result in ranks) == 7
    for result in ranks:
        assert result["uneven"] == ranks[0]["uneven"] != result["group"]
        assert result["final"] == ranks[0]["final"]
        assert result["steps"] == STEPS + max(rank["seen"] for rank in ranks)


def test_a_rank_trains_and_evaluates_before_another_begins() -> None:
    first, second = of("uneven")
    assert (first["steps"], second["steps"]) == (4, 3)
    assert second["mean"] == second["own"]  # nobody else had shown statistics
    np.testing.assert_allclose(first["mean"], np.mean([first["own"], second["own"]], axis=0), rtol=1e-6)
    assert first["final"] == second["final"] == first["mean"]
    assert first["mask"] == second["mask"] == [0.0, -np.inf]


def test_bfloat16_weights_are_rounded_alike_or_refused() -> None:
    first, second = of("half_precision")
    assert first == second
    assert "async-sgd: parameter '0.weight' is torch.bfloat16" in first["message"]


def test_a_state_of_another_strategy_gives_its_center_and_what_is_over_stays_over() -> None:
    first, second = of("of_other_ranks")
    assert first["loaded"] == second["loaded"] == first["center"]
    assert first["final"] == second["final"] != first["loaded"]
    assert first["after"] == second["after"] != first["final"]
    assert "waits for 1 rank(s), and that of an earlier replica for 2; close() that replica first" in first["mixed"]
    assert "finish() has ended training" in first["late"]


def test_a_sampler_that_repeats_no_order_is_refused_where_ranks_do_not_compare_it() -> None:
    ranks = of("divided")
    assert all("_Restless gives an epoch another order each time" in rank["message"] for rank in ranks)
    assert sorted(ranks[0]["samples"] + ranks[1]["samples"]) == list(range(20))
