"""The executor beyond what tests/conformance covers: parts of buffers, several channels, deadlines."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from samovar.collectives.execute import Channel
from samovar.collectives.plan import PlanFunction
from samovar.collectives.ring import ring_all_reduce
from samovar.collectives.tree import tree_all_reduce, tree_broadcast
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport

MakeTransports = Callable[[int], list[ShmTransport]]
TIMEOUT_S = 30.0
NUM_ELEMENTS = 1000
PARTS = ((0, 16), (16, 321), (321, 321), (640, 1000))


def reduce_parts(transport: ShmTransport, function: PlanFunction) -> np.ndarray:
    """All-reduce some parts of a buffer of integers, twice, by one channel a part."""
    group = transport.group
    region = Region.of(transport.open_window("data", NUM_ELEMENTS * 4, 0), 0, NUM_ELEMENTS, np.float32)
    plan = function(group.rank, group.world_size)
    channels = [Channel(f"part {start}", plan, transport, region.part(start, stop)) for start, stop in PARTS]
    region.array[:] = np.arange(NUM_ELEMENTS) + group.rank
    for _ in range(2):
        for channel in channels:
            channel.run(Deadline.after(TIMEOUT_S))
    return region.array


@pytest.mark.parametrize("function", [ring_all_reduce, tree_all_reduce])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_channels_reduce_their_part_and_touch_nothing_else(
    make_transports: MakeTransports, function: PlanFunction, world_size: int
) -> None:
    with ThreadPoolExecutor(world_size) as pool:
        results = list(pool.map(lambda t: reduce_parts(t, function), make_transports(world_size)))
    once = world_size * np.arange(NUM_ELEMENTS) + sum(range(world_size))
    for rank, result in enumerate(results):
        expected = np.arange(NUM_ELEMENTS) + rank
        for start, stop in PARTS:
            expected[start:stop] = world_size * once[start:stop]
        assert (result == expected).all()


def test_a_rank_that_does_not_take_part_is_named(make_transports: MakeTransports) -> None:
    transports = make_transports(2)
    region = [Region.of(t.open_window("data", 64, 0), 0, 16, np.float32) for t in transports]
    channel = Channel("bucket 0", tree_broadcast(0, 2), transports[0], region[0])
    with pytest.raises(DeadlineExceeded, match="rank 0: rank 1 did not notify slot 0 of window 'bucket 0'"):
        channel.run(Deadline.after(0.01))
