"""Every plan gives its documented sum, bit for bit, whatever the order in which ranks run and messages arrive."""

from collections.abc import Sequence
from functools import partial
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samovar.collectives import plans as registry
from samovar.collectives.plan import Notify, Plan, PlanFunction, Put, Reduce, Wait
from samovar.collectives.plans import halving_doubling_all_reduce, ring_all_reduce, two_level
from samovar.collectives.tree import kary_tree_all_reduce, tree_all_reduce
from tests.conformance import cases, orders
from tests.conformance.orders import Array, Order
from tests.unit.collectives.interpreter import Interpreter

NUM_RUNS = 3


def contributions(world_size: int, size: int) -> list[list[Array]]:
    return [[cases.contribution(rank, run, size, "float32") for rank in range(world_size)] for run in range(NUM_RUNS)]


def interpreted(plans: Sequence[Plan], inputs: list[list[Array]], seed: int) -> list[dict[int, Array]]:
    interpreter = Interpreter(plans, inputs, seed)
    interpreter.run()
    return interpreter.results


def assert_exact(function: PlanFunction, order: Order, world_size: int, size: int, seed: int) -> None:
    inputs = contributions(world_size, size)
    plans = [function(rank, world_size) for rank in range(world_size)]
    for shares, results in zip(inputs, interpreted(plans, inputs, seed), strict=True):
        expected = order(shares)
        for rank, result in results.items():
            assert np.array_equal(result, expected), f"rank {rank} of {world_size}, {size} elements, seed {seed}"


@pytest.mark.parametrize("collective", [name for name in cases.COLLECTIVES if name != "barrier"])
def test_every_plan_is_exact_in_any_order_of_events(collective: str) -> None:
    function = cases.COLLECTIVES[collective].function
    for world_size in range(1, 18):
        for seed, size in ((world_size, 37), (crc32(collective.encode()) + world_size, 2)):
            inputs = contributions(world_size, size)
            plans = [function(rank, world_size) for rank in range(world_size)]
            for shares, results in zip(inputs, interpreted(plans, inputs, seed), strict=True):
                expected = cases.COLLECTIVES[collective].order(shares)
                for rank, result in results.items():
                    part = slice(*cases.result_part(collective, rank, world_size, size))
                    assert np.array_equal(result[part], expected[part]), (world_size, size, seed, rank)


two_level_settings = st.tuples(
    st.integers(1, 9),
    st.sampled_from(
        [
            (ring_all_reduce, orders.ring),
            (tree_all_reduce, orders.binomial_tree),
            (halving_doubling_all_reduce, orders.halving_doubling),
        ]
    ),
)
world_sizes, sizes, seeds = st.integers(1, 13), st.integers(0, 50), st.integers(0, 2**32)


@settings(max_examples=60)
@given(two_level_settings, world_sizes, sizes, seeds)
def test_two_levels_of_any_host_size(
    choice: tuple[int, tuple[PlanFunction, Order]], world_size: int, size: int, seed: int
) -> None:
    host_size, (between, between_order) = choice
    order = partial(orders.two_level, host_size=host_size, between=between_order)
    assert_exact(two_level(host_size, between), order, world_size, size, seed)


@settings(max_examples=60)
@given(st.integers(1, 14), world_sizes, sizes, seeds)
def test_trees_of_any_arity(arity: int, world_size: int, size: int, seed: int) -> None:
    function = partial(kary_tree_all_reduce, arity=arity)
    assert_exact(function, partial(orders.kary_tree, arity=arity), world_size, size, seed)


@pytest.mark.parametrize("name", registry.ALL_REDUCE_NAMES)
def test_every_all_reduce_has_a_name(name: str) -> None:
    whole = two_level(4) if name == "two-level" else cases.COLLECTIVES[name.replace("kary-tree", "kary tree")].function
    assert registry.all_reduce(name, host_size=4)(1, 6) == whole(1, 6)


def hasty_put() -> list[Plan]:
    """Rank 0 does not ask whether the staging area was read."""
    return [
        Plan("hasty", (Put(1, 0, 0, 0),), 1, 1, 1),
        Plan("hasty", (Wait(0, 0), Reduce(0, (0,))), 1, 1, 1),
    ]


def early_notification() -> list[Plan]:
    """Rank 1 waits for a notification that does not come with the data."""
    return [
        Plan("early", (Put(1, 0, 0, 0), Notify(1, 1), Wait(1, 0)), 1, 1, 2),
        Plan("early", (Wait(0, 1), Reduce(0, (0,)), Wait(0, 0), Notify(0, 0)), 1, 1, 2),
    ]


def crossed_waits() -> list[Plan]:
    return [Plan("crossed", (Wait(1 - rank, 0), Put(1 - rank, 0, None, 0)), 1, 0, 1) for rank in range(2)]


@pytest.mark.parametrize(
    ("plans", "mistake"),
    [
        (hasty_put(), "rank 1 had not added what is overwritten"),
        (early_notification(), "rank 1 adds what has not arrived"),
        (crossed_waits(), "deadlock"),
    ],
)
def test_mistakes_are_found(plans: list[Plan], mistake: str) -> None:
    def run_seeds() -> None:
        for seed in range(20):
            interpreted(plans, contributions(2, 4), seed)

    with pytest.raises(AssertionError, match=mistake):
        run_seeds()
