"""`cost` counts the steps and bytes that each plan's documentation states."""

from functools import partial
from math import ceil, log2

import pytest

from samovar.collectives.cost import Cost, cost
from samovar.collectives.plan import Plan, PlanFunction, Put, Wait
from samovar.collectives.plans import (
    direct_all_reduce,
    direct_reduce_scatter,
    dissemination_barrier,
    gather_parts,
    halving_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    two_level,
)
from samovar.collectives.tree import (
    chosen_arity,
    kary_tree_all_reduce,
    num_levels,
    server_all_reduce,
    tree_all_reduce,
    tree_broadcast,
)
from tests.conformance import orders

WORLD_SIZES = [*range(1, 18), 31, 32, 33, 64]
ALL_REDUCES = [
    ring_all_reduce,
    tree_all_reduce,
    kary_tree_all_reduce,
    halving_doubling_all_reduce,
    server_all_reduce,
    direct_all_reduce,
    two_level(4),
    two_level(8, tree_all_reduce),
]
each_world_size = pytest.mark.parametrize("world_size", WORLD_SIZES)


def plans(function: PlanFunction, world_size: int) -> list[Plan]:
    return [function(rank, world_size) for rank in range(world_size)]


def counted(function: PlanFunction, world_size: int, elements: int) -> Cost:
    """Of elements of one byte, so that bytes are elements."""
    return cost(plans(function, world_size), elements, element_bytes=1)


@each_world_size
def test_ring(world_size: int) -> None:
    ring = counted(ring_all_reduce, world_size, 1000 * world_size)
    assert ring.steps == 2 * (world_size - 1)
    assert ring.bytes_sent == (2 * (world_size - 1) * 1000,) * world_size


@each_world_size
@pytest.mark.parametrize("function", [ring_reduce_scatter, ring_all_gather])
def test_half_a_ring(function: PlanFunction, world_size: int) -> None:
    half = counted(function, world_size, 1000 * world_size)
    assert half.steps == (world_size if world_size > 1 else 0)
    assert half.bytes_sent == ((world_size - 1) * 1000,) * world_size


@each_world_size
def test_tree(world_size: int) -> None:
    tree = counted(tree_all_reduce, world_size, 1001)
    levels = ceil(log2(world_size))
    assert tree.steps == 2 * levels if 2**levels == world_size else tree.steps <= 2 * levels
    assert sum(tree.bytes_sent) == 2 * (world_size - 1) * 1001


@each_world_size
def test_broadcast(world_size: int) -> None:
    broadcast = counted(tree_broadcast, world_size, 1001)
    levels = ceil(log2(world_size))
    expected = levels + 1 if world_size > 1 else 0
    assert broadcast.steps == expected if 2**levels == world_size else broadcast.steps <= expected
    assert sum(broadcast.bytes_sent) == (world_size - 1) * 1001


@each_world_size
def test_barrier(world_size: int) -> None:
    barrier = counted(dissemination_barrier, world_size, 0)
    assert barrier.steps == ceil(log2(world_size))
    assert sum(barrier.bytes_sent) == 0
    assert barrier.num_messages == world_size * ceil(log2(world_size))


@each_world_size
def test_direct(world_size: int) -> None:
    direct = counted(direct_all_reduce, world_size, 1000 * world_size)
    assert direct.steps == 2 * (world_size - 1)
    assert direct.num_messages == 2 * (world_size - 1) * world_size
    assert direct.bytes_sent == ((world_size - 1) * 1000,) * world_size


@each_world_size
def test_direct_in_two_halves(world_size: int) -> None:
    sums = counted(direct_reduce_scatter, world_size, 1000 * world_size)
    assert (sums.steps, sums.num_messages) == (world_size - 1, (world_size - 1) * world_size)
    assert sums.bytes_sent == (0,) * world_size
    gathered = counted(gather_parts, world_size, 1000 * world_size)
    assert (gathered.steps, gathered.num_messages) == (world_size - 1, (world_size - 1) * world_size)
    assert gathered.bytes_sent == ((world_size - 1) * 1000,) * world_size


@pytest.mark.parametrize("arity", [None, 1, 2, 3, 4, 7])
def test_kary_tree(arity: int | None) -> None:
    for world_size in WORLD_SIZES:
        tree = counted(partial(kary_tree_all_reduce, arity=arity), world_size, 1001)
        k = orders.best_arity(world_size) if arity is None else arity
        num_children = [len(range(k * r + 1, min(k * r + k + 1, world_size))) for r in range(world_size)]
        assert tree.bytes_sent == tuple((children + (r > 0)) * 1001 for r, children in enumerate(num_children))
        levels = num_levels(world_size, k)
        full = world_size == sum(k**level for level in range(levels + 1))
        assert tree.steps == (k + 1) * levels if full else tree.steps <= (k + 1) * levels


@pytest.mark.parametrize(("world_size", "arity"), [(1, 0), (2, 1), (3, 2), (4, 3), (8, 2), (32, 3), (64, 2), (128, 2)])
def test_the_chosen_arity_is_that_of_caffegpi_where_it_has_so_many_ranks(world_size: int, arity: int) -> None:
    assert kary_tree_all_reduce(0, world_size).num_stagings == arity


@each_world_size
def test_halving_doubling(world_size: int) -> None:
    core = 2 ** int(log2(world_size))
    halving = counted(halving_doubling_all_reduce, world_size, 1000 * core)
    assert halving.steps == 2 * int(log2(core)) + (2 if core < world_size else 0)
    served = [2 * (core - 1) * 1000 + (1000 * core if core + r < world_size else 0) for r in range(core)]
    assert halving.bytes_sent == (*served, *[1000 * core] * (world_size - core))


@each_world_size
def test_server(world_size: int) -> None:
    server = counted(server_all_reduce, world_size, 1001)
    assert server.steps == (world_size if world_size > 1 else 0)
    assert server.bytes_sent == ((world_size - 1) * 1001, *[1001] * (world_size - 1))


@pytest.mark.parametrize("host_size", [1, 2, 3, 4, 8, 100])
@pytest.mark.parametrize("between", [ring_all_reduce, halving_doubling_all_reduce])
def test_two_level(between: PlanFunction, host_size: int) -> None:
    for world_size in WORLD_SIZES:
        num_hosts = ceil(world_size / host_size)
        elements = 60 * num_hosts
        both = counted(two_level(host_size, between), world_size, elements)
        network = counted(between, num_hosts, elements)
        inside = 2 * (world_size - num_hosts) * elements
        assert sum(both.bytes_sent) == sum(network.bytes_sent) + inside
        levels = num_levels(min(host_size, world_size), arity := chosen_arity(min(host_size, world_size)))
        full = world_size % host_size == 0 and host_size == sum(arity**level for level in range(levels + 1))
        most = (arity + 1) * levels + network.steps
        assert both.steps == most if full else network.steps <= both.steps <= most


def test_a_deadlock_is_told_with_who_waits() -> None:
    waiting = [Plan("crossed", (Wait(1 - rank, 0), Put(1 - rank, 0, None, 0)), 1, 0, 1) for rank in range(2)]
    with pytest.raises(ValueError, match="deadlock, waiting: rank 0 for slot 0, rank 1 for slot 0"):
        cost(waiting, 8)
