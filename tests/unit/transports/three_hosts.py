"""Three hosts of one process, each a thread, which meet in one store; rules that hold for each transport."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.core.group import Host
from samovar.transports.leaders import Leader, LeaderCollectives
from samovar.transports.rendezvous import listen_at
from samovar.transports.torch_dist import JobStore, open_store

TIMEOUT_S = 60.0
LEADERS = [
    Leader(Host(name, ranks), "127.0.0.1") for name, ranks in (("left", (0, 1)), ("mid", (2,)), ("right", (3, 4)))
]
HOSTS = range(len(LEADERS))
ADDRESSES = [leader.address for leader in LEADERS]
Hosts = list[LeaderCollectives]


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


def opened(port: int, descriptor: int | None = None) -> JobStore:
    serves = descriptor is not None
    return open_store("127.0.0.1", port, serves=serves, listen_descriptor=descriptor, who="a test", deadline=in_time())


def serve() -> tuple[JobStore, int]:
    listener = listen_at("127.0.0.1", 0)
    assert listener is not None
    port = int(listener.getsockname()[1])
    return opened(port, listener.detach()), port


def on_all(hosts: Hosts, work: Callable[[LeaderCollectives], object]) -> None:
    with ThreadPoolExecutor(len(hosts)) as threads:
        list(threads.map(work, hosts))


def assert_named_and_nothing_lost(hosts: Hosts) -> None:
    """A rank that does not come is named, and the same wait can continue."""
    arrays = [np.ones(10, np.float32) for _ in HOSTS]
    pending = hosts[0].all_reduce("bucket 7", arrays[0])
    with pytest.raises(DeadlineExceeded) as raised:
        pending.wait(Deadline.after(0.05))
    assert str(raised.value).startswith(
        "rank 0 on left: all-reduce 'bucket 7' between hosts: mid (rank 2) or right (ranks 3, 4) did not answer within"
    )
    others = [hosts[k].all_reduce("bucket 7", arrays[k]) for k in (1, 2)]
    for one in (pending, *others):
        one.wait(in_time())
    assert [array.tolist() for array in arrays] == [[3.0] * 10] * 3
