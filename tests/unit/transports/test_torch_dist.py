"""gloo behind `NativeCollectives`: three hosts of one process, each a thread."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed
from samovar.core.hosts import Host
from samovar.transports.gloo_cost import all_gather_bytes, broadcast_bytes, ring_all_reduce_bytes
from samovar.transports.leaders import Leader, LeaderCollectives
from samovar.transports.meeting import listen_at
from samovar.transports.torch_dist import JobStore, open_store

TIMEOUT_S = 20.0
LEADERS = [
    Leader(Host(name, ranks), "127.0.0.1") for name, ranks in (("left", (0, 1)), ("mid", (2,)), ("right", (3, 4)))
]
HOSTS = range(len(LEADERS))


Open = Callable[[], JobStore]


@pytest.fixture(scope="module")
def _first_store() -> None:
    """A process's first store opens a pipe that libuv keeps: before the police takes stock."""
    _serve()


def _serve() -> tuple[JobStore, int]:
    listener = listen_at("127.0.0.1", 0)
    assert listener is not None
    port, descriptor = listener.getsockname()[1], listener.detach()
    return _opened(port, descriptor), port


def _opened(port: int, descriptor: int | None = None) -> JobStore:
    return open_store(
        "127.0.0.1",
        port,
        serves=descriptor is not None,
        listen_descriptor=descriptor,
        who="a test",
        deadline=Deadline.after(TIMEOUT_S),
    )


@pytest.fixture
def open_client(_first_store: None) -> Iterator[Open]:
    """Opens a connection of its own to one store."""
    server, port = _serve()
    yield lambda: _opened(port)
    del server


@pytest.fixture
def hosts(open_client: Open) -> Iterator[list[LeaderCollectives]]:
    def connect(number: int) -> LeaderCollectives:
        return lead(open_client(), number, TIMEOUT_S)

    with ThreadPoolExecutor(len(LEADERS)) as threads:
        connected = list(threads.map(connect, HOSTS))
    yield connected
    for host in connected:
        host.close()


def lead(store: JobStore, number: int, timeout_s: float) -> LeaderCollectives:
    """Host `number`'s."""
    addresses = [leader.address for leader in LEADERS]
    make = partial(store.gloo, "gloo", number, addresses, (), timeout_s)
    return LeaderCollectives.connect(make, number, LEADERS, "look again", Deadline.after(timeout_s))


def on_all(hosts: list[LeaderCollectives], work: Callable[[LeaderCollectives], object]) -> None:
    with ThreadPoolExecutor(len(hosts)) as threads:
        list(threads.map(work, hosts))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 5, 1000, 400_001])
def test_all_three_are_exact_and_counted(hosts: list[LeaderCollectives], dtype: type, count: int) -> None:
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


def test_many_under_way_at_once(hosts: list[LeaderCollectives]) -> None:
    def work(host: LeaderCollectives) -> None:
        arrays = [np.full(100, host.group.rank + k, np.float32) for k in range(20)]
        pending = [host.all_reduce(f"{k}", array) for k, array in enumerate(arrays)]
        for one in reversed(pending):
            one.wait(Deadline.after(TIMEOUT_S))
        assert all((array == 3 + 3 * k).all() for k, array in enumerate(arrays))

    on_all(hosts, work)


def test_hosts_that_do_not_come_are_named(hosts: list[LeaderCollectives]) -> None:
    """The same wait can be taken up again: nothing is lost by a deadline."""
    arrays = [np.ones(10, np.float32) for _ in HOSTS]
    pending = hosts[0].all_reduce("bucket 7", arrays[0])
    with pytest.raises(DeadlineExceeded) as raised:
        pending.wait(Deadline.after(0.05))
    assert str(raised.value).startswith(
        "rank 0 on left: all-reduce 'bucket 7' between hosts: mid (rank 2) or right (ranks 3, 4) did not answer within"
    )
    others = [hosts[k].all_reduce("bucket 7", arrays[k]) for k in (1, 2)]
    for one in (pending, *others):
        one.wait(Deadline.after(TIMEOUT_S))
    assert [array.tolist() for array in arrays] == [[3.0] * 10] * 3


def test_a_connection_that_closes_ends_the_wait(hosts: list[LeaderCollectives]) -> None:
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
