"""Collectives that copy to a device and back, between three hosts of one process: on a stand-in for NCCL."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from samovar.api.connect_hosts import lacks_nccl
from samovar.api.rendezvous import RankHello
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed, SamovarError
from samovar.core.group import Host
from samovar.launch.identity import Identity
from samovar.launch.script import raised_nccl_errors
from samovar.transports import torch_dist
from samovar.transports.leaders import LeaderCollectives, Library
from samovar.transports.torch_dist import nccl_card
from tests.nccl_stand_in import StandIn, stand_in_nccl
from tests.unit.transports.three_hosts import (
    ADDRESSES,
    HOSTS,
    LEADERS,
    TIMEOUT_S,
    Hosts,
    assert_named_and_nothing_lost,
    in_time,
    on_all,
    opened,
    serve,
)

Connect = Callable[[str, Callable[[torch_dist.Gloo], Library]], Hosts]


@pytest.fixture
def connect(first_store: None) -> Iterator[Connect]:
    """connect(name, make) gives the collectives of three hosts; `make` makes of gloo's what is to be tested."""
    server, port = serve()
    open_hosts: Hosts = []

    def lead(name: str, make: Callable[[torch_dist.Gloo], Library], number: int) -> LeaderCollectives:
        store = opened(port)
        library = partial(store.gloo, name, number, ADDRESSES, (), TIMEOUT_S)
        deadline = Deadline.after(TIMEOUT_S)
        return LeaderCollectives.connect(lambda: make(library()), number, LEADERS, "look again", deadline)

    def connected(name: str, make: Callable[[torch_dist.Gloo], Library]) -> Hosts:
        with ThreadPoolExecutor(len(LEADERS)) as threads:
            hosts = list(threads.map(partial(lead, name, make), HOSTS))
        open_hosts.extend(hosts)
        return hosts

    yield connected
    for host in open_hosts:
        host.close()
    del server


@pytest.fixture
def staged(connect: Connect) -> Hosts:
    return connect("staged", partial(stand_in_nccl, quiet_s=TIMEOUT_S))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 100_001])
def test_the_bits_and_the_counted_bytes_are_those_without_copies(
    connect: Connect, staged: Hosts, dtype: type, count: int
) -> None:
    plain = connect("plain", lambda library: library)
    results: dict[LeaderCollectives, list[np.ndarray]] = {}

    def work(host: LeaderCollectives) -> None:
        own = np.random.default_rng(host.group.rank).normal(size=count).astype(dtype)
        gathered = np.empty((len(LEADERS), count), dtype)
        host.all_gather("all", own, gathered).wait(in_time())
        host.all_reduce("sum", own).wait(in_time())
        first = own + host.group.rank
        host.broadcast("first", first).wait(in_time())
        results[host] = [own, gathered, first]

    on_all(plain, work)
    on_all(staged, work)
    for one, other in zip(plain, staged, strict=True):
        assert [array.tobytes() for array in results[other]] == [array.tobytes() for array in results[one]]
        assert results[other][0].tobytes() == results[staged[0]][0].tobytes()
        assert other.bytes_sent == one.bytes_sent > 0


def test_an_array_changes_in_the_wait_for_it_and_the_operations_may_be_waited_for_in_any_order(staged: Hosts) -> None:
    def work(host: LeaderCollectives) -> None:
        arrays = [np.full(100, host.group.rank + k, np.float32) for k in range(20)]
        pending = [host.all_reduce(f"{k}", array) for k, array in enumerate(arrays)]
        pending[-1].wait(in_time())
        assert all(one.is_over() for one in pending)
        assert all((array == host.group.rank + k).all() for k, array in enumerate(arrays[:-1]))
        for one in reversed(pending):
            one.wait(in_time())
            one.wait(in_time())
        assert all((array == 3 + 3 * k).all() for k, array in enumerate(arrays))

    on_all(staged, work)


def test_hosts_that_do_not_come_are_named_and_nothing_is_lost_by_a_deadline(staged: Hosts) -> None:
    assert_named_and_nothing_lost(staged)


def test_an_operation_that_stands_still_fails_though_its_deadline_is_far(connect: Connect) -> None:
    hosts = connect("quiet", partial(stand_in_nccl, quiet_s=0.5))
    far = Deadline.after(3600.0)
    with pytest.raises(DeadlineExceeded, match=r"'bucket 7' between hosts: mid .* did not answer"):
        hosts[0].all_reduce("bucket 7", np.ones(10, np.float32)).wait(far)
    assert not far.passed()
    on_all(hosts[1:], lambda host: host.all_reduce("bucket 7", np.ones(10, np.float32)).wait(in_time()))


def test_after_one_failed_all_fail_and_none_gives_what_broken_connections_leave(staged: Hosts) -> None:
    arrays = [np.ones(10, np.float32) for _ in range(2)]
    pending = [staged[0].all_reduce(f"bucket {k}", array) for k, array in enumerate(arrays)]
    for gone in staged[1:]:
        gone._library._group.group = None  # type: ignore[attr-defined]  # as if its process ended
    who = r"rank 0 on left: all-reduce 'bucket {}' between hosts: .*right \(ranks 3, 4\)"
    for number, one in enumerate(pending):
        with pytest.raises(RankFailed, match=who.format(number)):
            one.wait(in_time())
    assert [array.tolist() for array in arrays] == [[1.0] * 10] * 2
    with pytest.raises(RankFailed, match=r"on left: all-reduce 'more' between hosts: it cannot begin \(NCCL comm"):
        staged[0].all_reduce("more", arrays[0])


def test_closing_ends_the_wait_and_calls_off_what_hangs(staged: Hosts) -> None:
    array = np.ones(10, np.float32)
    pending = staged[0].all_reduce("bucket 7", array)
    stand_in = staged[0]._library._group  # type: ignore[attr-defined]
    raised: list[SamovarError] = []

    def wait() -> None:
        with pytest.raises(SamovarError, match="'bucket 7'") as error:
            pending.wait(Deadline.after(3600.0))
        raised.append(error.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    staged[0].close()
    waiting.join(TIMEOUT_S)
    assert len(raised) == 1
    assert stand_in.ended_by == "abort"
    assert array.tolist() == [1.0] * 10
    on_all(staged[1:], lambda host: host.all_reduce("bucket 7", np.ones(10, np.float32)).wait(in_time()))


def test_closing_in_peace_lets_others_have_what_was_sent(connect: Connect) -> None:
    hosts = connect("peace", partial(stand_in_nccl, quiet_s=TIMEOUT_S))
    stand_ins = [host._library._group for host in hosts]  # type: ignore[attr-defined]
    on_all(hosts, lambda host: host.all_reduce("sum", np.ones(10, np.float32)).wait(in_time()))
    for host in hosts:
        host.close()
    assert [stand_in.ended_by for stand_in in stand_ins] == ["shutdown"] * 3


def test_a_shutdown_that_never_returns_holds_up_nobody(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(torch_dist, "_CLOSING_S", 0.1)
    monkeypatch.setattr(StandIn, "shutdown", lambda _self: released.wait())
    hosts = connect("stuck", partial(stand_in_nccl, quiet_s=TIMEOUT_S))
    stand_ins = [host._library._group for host in hosts]  # type: ignore[attr-defined]
    for host in hosts:
        host.close()
    assert not released.is_set()
    released.set()
    for thread in threading.enumerate():
        if thread.name == "samovar-store":
            thread.join(TIMEOUT_S)
    for stand_in in stand_ins:  # which stay with the process
        stand_in.group = None


def _as_torch_reads(name: str) -> bytes | None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value: bytes | None = getenv(name.encode())
    return value


@pytest.mark.parametrize("given", [None, "0"])
def test_only_groups_made_inside_raise_their_errors(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    name = "TORCH_NCCL_BLOCKING_WAIT"
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    seen: list[bytes | None] = []

    def fail() -> None:
        with raised_nccl_errors():
            seen.append(_as_torch_reads(name))
            raise RuntimeError("as NCCL does")

    with pytest.raises(RuntimeError, match="as NCCL does"):
        fail()
    assert (seen, _as_torch_reads(name)) == ([b"1"], None if given is None else given.encode())


def hello(host: str, card: str, no_card: str = "") -> RankHello:
    return RankHello(3, "auto", "auto", host, host, (0,), card, no_card)


@pytest.mark.parametrize(
    ("cards", "lacking"),
    [
        (("2.27.3/a", "", "2.27.3/b"), ""),
        (("2.27.3/a", "2.27.3/c", ""), "right (rank 2): its model is on cpu"),
        (("2.27.3/a", "", "2.26.2/b"), "hosts have different versions of it, 2.26.2 and 2.27.3"),
        (
            ("2.27.3/a", "", "2.27.3/a"),
            "left (ranks 0, 1) computes on the same GPU as right (rank 2), and NCCL takes one rank on each",
        ),
    ],
)
def test_what_the_first_ranks_of_hosts_say_decides_alike_everywhere(cards: tuple[str, ...], lacking: str) -> None:
    hosts = (Host("left", (0, 1)), Host("right", (2,)))
    hellos = [hello(name, card, "its model is on cpu") for name, card in zip("aab", cards, strict=True)]
    assert lacks_nccl(hosts, hellos) == lacking


def test_a_rank_says_why_it_has_no_gpu_for_nccl() -> None:
    assert nccl_card(None) == ("", "its model is on the CPU")
    assert nccl_card(torch.device("cpu")) == ("", "its model is on cpu")
    told = RankHello.own(Identity(), "auto", "auto", None)
    assert RankHello.from_json(told.to_json(), "a test") == told
    assert (told.card, told.no_card) == nccl_card(None)


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this PyTorch has NCCL")
def test_a_pytorch_without_nccl_says_so() -> None:
    card, why = nccl_card(torch.device("cuda:0"))
    assert not card
    assert "is built without NCCL" in why
