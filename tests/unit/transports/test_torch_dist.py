"""gloo behind `NativeCollectives`: three hosts of one process, each a thread."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed
from samovar.transports.leaders import LeaderCollectives, all_gather_bytes, broadcast_bytes, ring_all_reduce_bytes
from samovar.transports.torch_dist import JobStore
from tests.unit.transports.three_hosts import (
    ADDRESSES,
    HOSTS,
    LEADERS,
    TIMEOUT_S,
    Hosts,
    assert_named_and_nothing_lost,
    on_all,
    opened,
    serve,
)

Open = Callable[[], JobStore]


@pytest.fixture
def open_client(first_store: None) -> Iterator[Open]:
    """Opens a connection of its own to one store."""
    server, port = serve()
    yield lambda: opened(port)
    del server


@pytest.fixture
def hosts(open_client: Open) -> Iterator[Hosts]:
    def connect(number: int) -> LeaderCollectives:
        return lead(open_client(), number, TIMEOUT_S)

    with ThreadPoolExecutor(len(LEADERS)) as threads:
        connected = list(threads.map(connect, HOSTS))
    yield connected
    for host in connected:
        host.close()


def lead(store: JobStore, number: int, timeout_s: float) -> LeaderCollectives:
    """Host `number`'s."""
    make = partial(store.gloo, "gloo", number, ADDRESSES, (), timeout_s)
    return LeaderCollectives.connect(make, number, LEADERS, "look again", Deadline.after(timeout_s))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 5, 1000, 400_001])
def test_all_three_are_exact_and_counted(hosts: Hosts, dtype: type, count: int) -> None:
    arrays = [np.arange(count, dtype=dtype) + host for host in HOSTS]
    gathered = [np.empty((len(LEADERS), count), dtype) for _ in HOSTS]
    num_bytes = arrays[0].nbytes

    def work(host: LeaderCollectives) -> None:
        own, number, world_size = arrays[host.group.rank], host.group.rank, host.group.world_size
        host.all_reduce("sum", own).wait(Deadline.after(TIMEOUT_S))
        assert np.array_equal(own, 3 * np.arange(count) + 3)
        own += number
        pending = host.all_gather("all", own, gathered[number])
        pending.wait(Deadline.after(TIMEOUT_S))
        assert pending.is_over()
        host.broadcast("first", own).wait(Deadline.after(TIMEOUT_S))
        assert np.array_equal(own, 3 * np.arange(count) + 3)
        assert host.bytes_sent == (
            ring_all_reduce_bytes(number, world_size, num_bytes, own.itemsize)
            + all_gather_bytes(world_size, num_bytes)
            + broadcast_bytes(number, world_size, num_bytes)
        )

    on_all(hosts, work)
    for everything in gathered:
        assert np.array_equal(everything, [3 * np.arange(count) + 3 + host for host in HOSTS])


def test_many_under_way_at_once(hosts: Hosts) -> None:
    def work(host: LeaderCollectives) -> None:
        arrays = [np.full(100, host.group.rank + k, np.float32) for k in range(20)]
        pending = [host.all_reduce(f"{k}", array) for k, array in enumerate(arrays)]
        for one in reversed(pending):
            one.wait(Deadline.after(TIMEOUT_S))
        assert all((array == 3 + 3 * k).all() for k, array in enumerate(arrays))

    on_all(hosts, work)


def test_hosts_that_do_not_come_are_named_and_nothing_is_lost_by_a_deadline(hosts: Hosts) -> None:
    assert_named_and_nothing_lost(hosts)


def test_a_connection_that_closes_ends_the_wait(hosts: Hosts) -> None:
    pending = hosts[0].all_reduce("bucket 7", np.ones(10, np.float32))
    for gone in hosts[1:]:
        gone.close()
    del gone, hosts[1:]
    with pytest.raises(
        RankFailed, match=r"rank 0 on left: all-reduce 'bucket 7' between hosts: .*right \(ranks 3, 4\)"
    ):
        pending.wait(Deadline.after(TIMEOUT_S))


def test_nobody_to_connect_to(open_client: Open) -> None:
    with pytest.raises((DeadlineExceeded, RankFailed), match=r"left .*connecting to mid \(rank 2\) at 127\.0\.0\.1"):
        lead(open_client(), 0, 1.0)
