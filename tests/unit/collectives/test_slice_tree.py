"""One tree over slices: the same bits whoever computed them, on shared memory and simulated."""

import itertools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.tree import Node, children, own_nodes, slice_tree_all_reduce
from samovar.strategies.exact import SliceSums
from samovar.transports.base import Region
from samovar.transports.sim.world import SimConfig, SimTransport, simulate

SIZE = 48
NUM_RUNS = 3


def ranges_of(num_slices: int, world_size: int) -> list[Node]:
    edges = [rank * num_slices // world_size for rank in range(world_size + 1)]
    return list(itertools.pairwise(edges))


def gradient(run: int, number: int) -> np.ndarray:
    return np.random.default_rng([run, number]).standard_normal(SIZE).astype(np.float32)


def tree_sum(run: int, node: Node) -> np.ndarray:
    """As the tree is defined."""
    if node[1] - node[0] == 1:
        return gradient(run, node[0])
    left, right = children(node)
    return tree_sum(run, left) + tree_sum(run, right)


def add_up(ranges: Sequence[Node], transport: SimTransport) -> list[bytes]:
    """A rank's part in NUM_RUNS sums; the sum after each."""
    rank, num_slices = transport.group.rank, ranges[-1][1]
    plan = slice_tree_all_reduce(ranges, rank)
    window = transport.open_window("sums", plan.num_chunks * SIZE * 4, 0)
    region = Region.of(window, 0, plan.num_chunks * SIZE, np.float32)
    channel = PlannedCollectives(transport, lambda _num_bytes: "tree").planned("slices", plan, region)
    own = np.zeros(SIZE, np.float32)
    sums = SliceSums(own, region.array.reshape(-1, SIZE), ranges[rank], num_slices)
    found = []
    for run in range(NUM_RUNS):
        transport.note(region.array, writes=True, verb="backward")
        for number in range(*ranges[rank]):
            own[:] = gradient(run, number)
            sums.add()
        channel.run(transport.deadline(math.inf))
        transport.note(region.array[:SIZE], writes=False, verb="update")
        found.append(region.array[:SIZE].tobytes())
    return found


@pytest.mark.parametrize("num_slices", [1, 2, 3, 5, 7, 8, 12, 16])
def test_any_number_of_workers_gives_the_bits_of_the_tree(num_slices: int) -> None:
    wanted = [tree_sum(run, (0, num_slices)).tobytes() for run in range(NUM_RUNS)]
    for world_size in range(1, num_slices + 1):
        ranges = ranges_of(num_slices, world_size)
        config = SimConfig(world_size, max_delay_s=1e-3)
        for result in simulate(partial(add_up, ranges), world_size, config).results:
            assert result == wanted, (num_slices, world_size)


@given(st.integers(1, 300), st.data())
def test_own_nodes_cover_a_ranks_slices_and_are_few(num_slices: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, num_slices - 1))
    stop = data.draw(st.integers(first + 1, num_slices))
    nodes = own_nodes((first, stop), num_slices)
    assert [number for node in nodes for number in range(*node)] == list(range(first, stop))
    assert len(nodes) <= max(1, 2 * math.ceil(math.log2(stop - first + 1)))


def test_between_powers_of_two_it_costs_what_a_tree_costs() -> None:
    for world_size in (2, 4, 8):
        plans = [slice_tree_all_reduce(ranges_of(8, world_size), rank) for rank in range(world_size)]
        assert {plan.num_chunks for plan in plans} == {1}
        assert sum(type(one).__name__ == "Put" for plan in plans for one in plan.operations) == 2 * (world_size - 1)
