"""The executors beyond what tests/conformance covers: parts of buffers, several channels, equal bits, deadlines."""

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samovar.collectives.execute import Channel, NativeChannel, _shows, open_channel
from samovar.collectives.hierarchical import HierarchicalCollectives, _Exchange
from samovar.collectives.plan import PlanFunction
from samovar.collectives.plans import direct_all_reduce, dissemination_barrier, ring_all_reduce
from samovar.collectives.tree import tree_all_reduce, tree_broadcast
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.core.group import Group, Host
from samovar.transports.base import MappedWindow, Region
from samovar.transports.shm import ShmTransport
from samovar.transports.sim.window import SimWindow

MakeTransports = Callable[[int], list[ShmTransport]]
Executor = type[Channel] | type[NativeChannel]
TIMEOUT_S = 30.0
NUM_ELEMENTS = 1000
PARTS = ((0, 16), (16, 321), (321, 321), (640, 1000))
BOTH = [
    (function, executor)
    for function in (ring_all_reduce, tree_all_reduce, direct_all_reduce)
    for executor in (Channel, NativeChannel)
]


def reduce_parts(transport: ShmTransport, function: PlanFunction, executor: Executor) -> np.ndarray:
    """All-reduce some parts of a buffer of integers, twice, by one channel a part."""
    group = transport.group
    region = Region.of(transport.open_window("data", NUM_ELEMENTS * 4, 0), 0, NUM_ELEMENTS, np.float32)
    plan = function(group.rank, group.world_size)
    channels = [executor(f"part {start}", plan, transport, region.part(start, stop)) for start, stop in PARTS]
    region.array[:] = np.arange(NUM_ELEMENTS) + group.rank
    for _ in range(2):
        for channel in channels:
            channel.run(Deadline.after(TIMEOUT_S))
    return region.array


@pytest.mark.parametrize(("function", "executor"), BOTH)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_channels_reduce_their_part_and_touch_nothing_else(
    make_transports: MakeTransports, function: PlanFunction, executor: Executor, world_size: int
) -> None:
    with ThreadPoolExecutor(world_size) as pool:
        results = list(pool.map(lambda t: reduce_parts(t, function, executor), make_transports(world_size)))
    once = world_size * np.arange(NUM_ELEMENTS) + sum(range(world_size))
    for rank, result in enumerate(results):
        expected = np.arange(NUM_ELEMENTS) + rank
        for start, stop in PARTS:
            expected[start:stop] = world_size * once[start:stop]
        assert (result == expected).all()


def run_and_count(transport: ShmTransport, function: PlanFunction, executor: Executor) -> list[tuple[bytes, int, int]]:
    """Bits, steps and bytes sent of three runs on values that are rounded when added."""
    group = transport.group
    region = Region.of(transport.open_window("data", 5003 * 8, 0), 0, 5003, np.float64)
    channel = executor("sum", function(group.rank, group.world_size), transport, region)
    generator = np.random.default_rng(group.rank)
    seen = []
    for _ in range(3):
        region.array[:] = generator.standard_normal(5003) * 10.0 ** generator.integers(-9, 9, 5003)
        channel.run(Deadline.after(TIMEOUT_S))
        seen.append((region.array.tobytes(), channel.last_steps, transport.bytes_sent))
    return seen


@pytest.mark.parametrize(
    "function", [ring_all_reduce, tree_all_reduce, direct_all_reduce, tree_broadcast, dissemination_barrier]
)
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_both_executors_give_the_same_bits_steps_and_bytes(
    make_transports: MakeTransports, function: PlanFunction, world_size: int
) -> None:
    def run(executor: Executor) -> list[list[tuple[bytes, int, int]]]:
        with ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(lambda t: run_and_count(t, function, executor), make_transports(world_size)))

    assert run(Channel) == run(NativeChannel)


@pytest.mark.parametrize("executor", [Channel, NativeChannel])
def test_the_direct_sum_is_in_the_order_of_the_ranks(make_transports: MakeTransports, executor: Executor) -> None:
    with ThreadPoolExecutor(3) as pool:
        transports = make_transports(3)
        results = list(pool.map(lambda t: run_and_count(t, direct_all_reduce, executor), transports))
    generators = [np.random.default_rng(rank) for rank in range(3)]
    for run in range(3):
        x = [generator.standard_normal(5003) * 10.0 ** generator.integers(-9, 9, 5003) for generator in generators]
        assert {result[run][0] for result in results} == {((x[0] + x[1]) + x[2]).tobytes()}
    chunks = [5003 * (rank + 1) // 3 - 5003 * rank // 3 for rank in range(3)]
    assert [transport.bytes_sent for transport in transports] == [3 * 2 * 8 * chunk for chunk in chunks]


def test_the_native_executor_runs_where_memory_is_mapped(make_transports: MakeTransports) -> None:
    (transport,) = make_transports(1)
    region = Region.of(transport.open_window("data", 64, 0), 0, 16, np.float32)
    assert isinstance(open_channel("sum", ring_all_reduce(0, 1), transport, region), NativeChannel)


def sum_in_background(transport: ShmTransport, executor: Executor) -> np.ndarray:
    """Where there is a thread for it, every second rank starts its channels from the last one on; three runs."""
    group = transport.group
    region = Region.of(transport.open_window("data", NUM_ELEMENTS * 4, 0), 0, NUM_ELEMENTS, np.float32)
    plan = tree_all_reduce(group.rank, group.world_size)
    channels = [executor(f"part {start}", plan, transport, region.part(start, stop)) for start, stop in PARTS]
    region.array[:] = np.arange(NUM_ELEMENTS) + group.rank
    backwards = executor is NativeChannel and group.rank % 2 == 1
    for _ in range(3):
        for channel in reversed(channels) if backwards else channels:
            channel.start()
        for channel in channels:
            channel.finish(Deadline.after(TIMEOUT_S))
    transport.close()
    return region.array


@pytest.mark.parametrize("executor", [Channel, NativeChannel])
def test_runs_in_the_background_give_the_same_sums(make_transports: MakeTransports, executor: Executor) -> None:
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda t: sum_in_background(t, executor), make_transports(3)))
    for rank, result in enumerate(results):
        expected = np.arange(NUM_ELEMENTS) + rank
        for start, stop in PARTS:
            expected[start:stop] = 9 * (3 * np.arange(start, stop) + 3)
        assert (result == expected).all()


def test_closing_the_transport_ends_its_thread(make_transports: MakeTransports) -> None:
    (transport,) = make_transports(1)
    region = Region.of(transport.open_window("data", 64, 0), 0, 16, np.float32)
    channel = NativeChannel("sum", ring_all_reduce(0, 1), transport, region)
    threads = set(Path("/proc/self/task").iterdir())
    channel.start()
    channel.finish(Deadline.after(TIMEOUT_S))
    started = set(Path("/proc/self/task").iterdir()) - threads
    assert len(started) == 1
    transport.close()
    deadline = Deadline.after(TIMEOUT_S)
    while any(task.exists() for task in started):  # a joined thread may be listed for a moment yet
        assert not deadline.passed()


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("executor", [Channel, NativeChannel])
def test_a_rank_that_does_not_take_part_is_named(
    make_transports: MakeTransports, executor: Executor, in_background: bool
) -> None:
    transports = make_transports(2)
    region = [Region.of(t.open_window("data", 64, 0), 0, 16, np.float32) for t in transports]
    channel = executor("bucket 0", tree_broadcast(0, 2), transports[0], region[0])
    if in_background:
        channel.start()
    run = channel.finish if in_background else channel.run
    with pytest.raises(DeadlineExceeded, match="rank 0: rank 1 did not notify slot 0 of window 'bucket 0'"):
        run(Deadline.after(0.01))


class Adding:
    """A part of an exchange that is adding up while the first two slices of time end."""

    last_steps = num_slices = 0

    def start(self) -> None: ...

    def run(self, _deadline: Deadline) -> None: ...

    def wait(self, _deadline: Deadline) -> None: ...

    def finish(self, _deadline: Deadline) -> None:
        self.num_slices += 1
        if self.num_slices < 3:
            raise DeadlineExceeded("plan 'kary-tree-up' was still moving data after 0.1 s")


def test_a_leader_waits_for_an_addition_that_outlasts_a_slice(make_transports: MakeTransports) -> None:
    up, other = Adding(), Adding()
    other.num_slices = 3
    hosts, transport = [Host("a", (0, 1)), Host("b", (2,))], make_transports(2)[0]
    library: Any = object()
    all_ranks = HierarchicalCollectives(transport, Group(0, 3), hosts, library, lambda: Deadline.after(TIMEOUT_S))
    _Exchange("all-reduce", all_ranks, up, lambda: other, other).run(Deadline.after(TIMEOUT_S))
    all_ranks.close()
    assert up.num_slices == 3


def test_a_type_that_a_simulation_made_is_forgotten_with_it() -> None:
    """Else 100,000 runs, each with a type of its own, fill the memory."""

    def asked() -> weakref.ref[type]:
        made: type[SimWindow] = type("Made", (SimWindow,), {})
        assert not _shows(SimWindow.__new__(made), MappedWindow)
        return weakref.ref(made)

    left = asked()
    gc.collect()
    assert left() is None
