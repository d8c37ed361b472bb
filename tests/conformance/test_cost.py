"""What `cost` counts equals what each plan's documentation states."""

from math import ceil, log2

import pytest

from samovar.collectives.barrier import dissemination_barrier
from samovar.collectives.cost import cost
from samovar.collectives.plan import Plan, Put, Wait
from samovar.collectives.ring import ring_all_reduce
from samovar.collectives.tree import tree_all_reduce, tree_broadcast

WORLD_SIZES = [*range(1, 18), 31, 32, 33, 64]


def plans(function, world_size: int) -> list[Plan]:
    return [function(rank, world_size) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_ring(world_size: int) -> None:
    elements = 1000 * world_size
    counted = cost(plans(ring_all_reduce, world_size), elements)
    assert counted.steps == 2 * (world_size - 1)
    assert counted.bytes_sent == (2 * (world_size - 1) * 1000 * 4,) * world_size


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_tree(world_size: int) -> None:
    counted = cost(plans(tree_all_reduce, world_size), 1001)
    levels = ceil(log2(world_size))
    assert counted.steps == 2 * levels if 2**levels == world_size else counted.steps <= 2 * levels
    assert sum(counted.bytes_sent) == 2 * (world_size - 1) * 1001 * 4


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_broadcast(world_size: int) -> None:
    counted = cost(plans(tree_broadcast, world_size), 1001)
    levels = ceil(log2(world_size))
    expected = levels + 1 if world_size > 1 else 0
    assert counted.steps == expected if 2**levels == world_size else counted.steps <= expected
    assert sum(counted.bytes_sent) == (world_size - 1) * 1001 * 4


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_barrier(world_size: int) -> None:
    counted = cost(plans(dissemination_barrier, world_size), 0)
    assert counted.steps == ceil(log2(world_size))
    assert sum(counted.bytes_sent) == 0
    assert counted.num_messages == world_size * ceil(log2(world_size))


def test_a_deadlock_is_told_with_who_waits() -> None:
    waiting = [Plan("crossed", (Wait(1 - rank, 0), Put(1 - rank, 0, None, 0)), 1, 0, 1) for rank in range(2)]
    with pytest.raises(ValueError, match="deadlock, waiting: rank 0 for slot 0, rank 1 for slot 0"):
        cost(waiting, 8)
