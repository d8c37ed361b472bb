"""The TCP transport: what a notification promises, what is refused, what happens to those whose peer goes."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event, Thread
from typing import Any, cast

import numpy as np
import pytest

from samovar.collectives.engine import PlannedCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.core.group import Group
from samovar.transports.base import Notification, Region
from samovar.transports.keys import Key
from samovar.transports.rendezvous import Rendezvous
from samovar.transports.secure import ConnectionLost, connect
from samovar.transports.tcp import TcpTransport, meet
from samovar.transports.tcp_listen import address_of, listen
from samovar.transports.tcp_service import PART_BYTES, PeerHello, PeerService, TcpConfig
from tests.unit.transports.looked_at import LookedAt

TIMEOUT_S = 30.0
MakeTransports = Callable[..., list[TcpTransport]]


@pytest.fixture
def make_transports(key: Key) -> Iterator[MakeTransports]:
    """make(world_size) gives every rank's transport."""
    made: list[TcpTransport] = []

    def make(world_size: int, timeout_s: float = TIMEOUT_S, jobs: tuple[str, ...] = ()) -> list[TcpTransport]:
        listeners = [listen() for _ in range(world_size)]
        addresses = [address_of(listener) for listener in listeners]
        for rank, listener in enumerate(listeners):
            config = TcpConfig(jobs[rank] if jobs else "test", timeout_s)
            made.append(TcpTransport(Group(rank, world_size), config, key, listener, addresses))
        return made[-world_size:]

    yield make
    for transport in made:
        transport.close()


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


def test_data_is_there_when_its_notification_is(make_transports: MakeTransports) -> None:
    num_words = 200_000

    def play(transport: TcpTransport) -> None:
        peer = 1 - transport.group.rank
        window = transport.open_window("blocks", num_words * 8, 2)
        received = Region.of(window, 0, num_words, np.uint64).array
        for number in range(1, 21):
            block = np.arange(num_words, dtype=np.uint64) * np.uint64(number)
            window.put(peer, 0, block, Notification(0, number))
            assert window.wait(0, number, peer, in_time()) == number
            assert (received == block).all(), number
            window.notify(peer, Notification(1, number))  # the peer may overwrite it
            window.wait(1, number, peer, in_time())

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(play, transports := make_transports(2)))
    assert [transport.bytes_sent for transport in transports] == [20 * num_words * 8] * 2


def test_ranks_that_all_put_much_at_once_do_not_hold_each_other_up(make_transports: MakeTransports) -> None:
    num_bytes, world_size = 24_000_000, 3

    def play(transport: TcpTransport) -> None:
        rank = transport.group.rank
        window = transport.open_window("much", world_size * num_bytes, world_size)
        source = np.full(num_bytes, rank + 1, np.uint8)
        others = [peer for peer in range(world_size) if peer != rank]
        for peer in others:
            window.put(peer, rank * num_bytes, source, Notification(rank, 1))
        for peer in others:
            window.wait(peer, 1, peer, in_time())
            assert (window.local[peer * num_bytes : (peer + 1) * num_bytes] == peer + 1).all()

    with ThreadPoolExecutor(world_size) as pool:
        list(pool.map(play, make_transports(world_size)))


def test_a_small_message_of_another_thread_does_not_wait_for_a_large_one(
    make_transports: MakeTransports, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_bytes = 64 * PART_BYTES  # more than the sockets hold
    near, far = make_transports(2)
    windows = [transport.open_window("both", num_bytes, 2) for transport in (near, far)]
    memory, has_begun, may_continue, heard = windows[1].memory, Event(), Event(), list[int]()
    region, set_slot = memory.region, memory.set_slot

    def slow_region(offset: int, size: int) -> np.ndarray[Any, Any]:
        has_begun.set()
        assert may_continue.wait(TIMEOUT_S)
        return region(offset, size)

    def heard_slot(slot: int, value: int) -> None:
        heard.append(slot)
        set_slot(slot, value)

    monkeypatch.setattr(memory, "region", slow_region)
    monkeypatch.setattr(memory, "set_slot", heard_slot)
    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(windows[0].put, 1, 0, np.ones(num_bytes, np.uint8), Notification(0, 1))
        assert has_begun.wait(TIMEOUT_S)
        small = pool.submit(windows[0].notify, 1, Notification(1, 1))
        while not (small.done() or near._links[1].next.locked()):
            assert not large.done()
        may_continue.set()
        for future in (large, small):
            future.result(TIMEOUT_S)
        windows[1].wait(0, 1, 0, in_time())
    assert heard == [1, 0]
    assert windows[1].local.all()


def test_words_are_changed_by_one_at_a_time(make_transports: MakeTransports) -> None:
    num_rounds, world_size = 200, 3

    windows = [transport.open_window("words", 24, 0) for transport in make_transports(world_size)]

    def play(rank: int) -> None:
        window = windows[rank]
        for _ in range(num_rounds):
            window.fetch_add(0, 8, 2**64 - 1)  # that is -1
            while (old := window.compare_swap(0, 16, seen := window.fetch_add(0, 16, 0), seen + 3)) != seen:
                assert old > seen

    with ThreadPoolExecutor(world_size) as pool:
        list(pool.map(play, range(world_size)))
    assert windows[0].local.view(np.int64).tolist() == [0, -num_rounds * world_size, 3 * num_rounds * world_size]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_all_accumulate_is_all_there(make_transports: MakeTransports, dtype: type[np.floating]) -> None:
    num_elements, world_size, num_rounds = 100_001, 3, 5
    windows = [transport.open_window("sum", 8 * num_elements, world_size) for transport in make_transports(world_size)]

    def play(rank: int) -> None:
        for number in range(1, num_rounds + 1):
            windows[rank].accumulate(0, 0, np.full(num_elements, 10.0**rank, dtype), Notification(rank, number))

    with ThreadPoolExecutor(world_size) as pool:
        list(pool.map(play, range(world_size)))
    for rank in range(world_size):
        windows[0].wait(rank, num_rounds, rank, in_time())
    total = windows[0].local[: num_elements * np.dtype(dtype).itemsize].view(dtype)
    assert (total == 111.0 * num_rounds).all()


def test_get_reads_the_peer_and_oneself(make_transports: MakeTransports) -> None:
    windows = [transport.open_window("data", 1_000_000, 1) for transport in make_transports(2)]
    for rank, window in enumerate(windows):
        window.local[:] = np.random.default_rng(rank).integers(0, 256, len(window.local), np.uint8)
    for peer in range(2):
        got = np.zeros((10, 30_000), np.uint8)
        windows[0].get(peer, 77, got)
        assert (got.reshape(-1) == windows[peer].local[77 : 77 + got.nbytes]).all()
    windows[0].put(1, 0, np.arange(32, dtype=np.uint8)[::2], Notification(0, 1))
    windows[1].wait(0, 1, 0, in_time())
    assert windows[1].local[:16].tolist() == list(range(0, 32, 2))
    with pytest.raises(TypeError):
        windows[0].get(1, 0, np.zeros(16, np.uint8)[::2])


@pytest.mark.parametrize(
    ("peer", "offset", "size"), [(0, 57, 8), (1, 65, 0), (1, 0, 65), (2, 0, 1), (-1, 0, 1), (1, -1, 1)]
)
def test_bytes_outside_the_window_are_refused(
    make_transports: MakeTransports, peer: int, offset: int, size: int
) -> None:
    windows = [transport.open_window("data", 64, 1) for transport in make_transports(2)]
    with pytest.raises(IndexError, match="outside the window 'data'"):
        windows[0].put(peer, offset, np.ones(size, np.uint8))
    with pytest.raises(IndexError, match="outside the window 'data'"):
        windows[0].get(peer, offset, np.ones(size, np.uint8))
    with pytest.raises(IndexError, match="slot 1 of 1"):
        windows[0].notify(1, Notification(1, 1))
    assert not windows[0].local.any()
    assert not windows[1].local.any()


def test_a_wait_that_ends_by_its_deadline_names_rank_slot_and_window(make_transports: MakeTransports) -> None:
    window = [transport.open_window("bucket 3", 0, 4) for transport in make_transports(2)][1]
    with pytest.raises(DeadlineExceeded) as caught:
        window.wait(2, 1, 0, Deadline.after(0.11))
    for part in ("rank 1:", "rank 0 did not notify slot 2", "window 'bucket 3'", "within 0.", "--timeout"):
        assert part in str(caught.value)
    with pytest.raises(DeadlineExceeded, match=r"rank 1: nobody notified slots 1 to 3 of window 'bucket 3'"):
        window.wait_any(range(1, 4), Deadline.after(0.0))
    window.notify(1, Notification(3, 8))
    assert window.wait_any(range(1, 4), in_time()) == (3, 8)


def test_a_wait_for_anybody_ends_if_nobody_is_left(make_transports: MakeTransports) -> None:
    transports = make_transports(2)
    windows = [transport.open_window("data", 8, 2) for transport in transports]
    windows[0].notify(1, Notification(1, 7))
    transports[0].close()
    assert windows[1].wait_any(range(2), in_time()) == (1, 7)
    with pytest.raises(RankFailed, match="rank 1: nobody can notify slots 0 to 1 of window 'data' any more"):
        windows[1].wait_any(range(2), in_time())


def test_who_waits_for_a_peer_that_goes_hears_of_it_and_what_came_before_counts(
    make_transports: MakeTransports,
) -> None:
    transports = make_transports(2)
    windows = [transport.open_window("data", 8, 2) for transport in transports]
    windows[0].put(1, 0, np.ones(8, np.uint8), Notification(0, 1))
    windows[1].wait(0, 1, 0, in_time())
    transports[0].close()
    with pytest.raises(RankFailed, match=r"rank 1: rank 0 did not notify slot 1 of window 'data': rank 0 is gone"):
        windows[1].wait(1, 1, 0, in_time())
    assert windows[1].wait(0, 1, 0, in_time()) == 1


def test_a_request_to_a_peer_that_went_fails(make_transports: MakeTransports) -> None:
    transports = make_transports(2)
    windows = [transport.open_window("data", 8, 2) for transport in transports]
    windows[1].fetch_add(0, 0, 1)
    transports[0].close()
    with pytest.raises(RankFailed, match="rank 1: rank 0 is gone"):
        windows[1].fetch_add(0, 0, 1)


def test_a_peer_that_never_listens_costs_no_more_than_the_deadline(make_transports: MakeTransports) -> None:
    transports = make_transports(2, timeout_s=0.3)
    transports[0].close()
    with pytest.raises(DeadlineExceeded, match=r"^rank 1: rank 0 at 127\.0\.0\.1:\d+ cannot be reached"):
        transports[1].open_window("data", 8, 2).fetch_add(0, 0, 1)


def test_a_rank_of_another_job_is_not_heard(make_transports: MakeTransports) -> None:
    windows = [transport.open_window("data", 8, 1) for transport in make_transports(2, jobs=("this", "that"))]
    with pytest.raises(RankFailed, match="rank 0 is gone"):
        windows[1].fetch_add(0, 0, 1)
    assert not windows[0].local.any()


@pytest.mark.parametrize(("rank", "peer", "world_size"), [(1, 0, 2), (0, 0, 2), (2, 0, 2), (1, 1, 2), (1, 0, 3)])
def test_who_says_a_rank_that_cannot_be_is_not_heard(
    make_transports: MakeTransports, key: Key, rank: int, peer: int, world_size: int
) -> None:
    """Rank 1 is there already; the others are no peers of rank 0 of 2."""
    transports = make_transports(2)
    windows = [transport.open_window("data", 8, 1) for transport in transports]
    windows[1].fetch_add(0, 0, 1)
    channel = connect(transports[0]._addresses[0], key, "me", "you", in_time())
    try:
        channel.send(PeerHello("test", rank, peer, world_size).pack(), None, in_time())
        with pytest.raises(ConnectionLost):
            channel.receive(in_time())
    finally:
        channel.close()
    assert windows[1].fetch_add(0, 0, 1) == 1, "the right one is still heard"


def test_other_sizes_than_a_peers_are_refused(make_transports: MakeTransports) -> None:
    first, second = make_transports(2)
    order = [transport.open_window("order", 8, 1) for transport in (first, second)]
    first.open_window("bucket 0", 64, 2).notify(1, Notification(0, 1))
    order[0].notify(1, Notification(0, 1))
    order[1].wait(0, 1, 0, in_time())
    with pytest.raises(SamovarError, match=r"rank 1: window 'bucket 0': .*128 bytes.*64 bytes.*one net\?"):
        second.open_window("bucket 0", 128, 2)


def test_a_peer_with_other_sizes_is_cut_off_by_who_opened_first(make_transports: MakeTransports) -> None:
    first, second = make_transports(2)
    first.open_window("bucket 0", 64, 2)
    second.open_window("bucket 0", 128, 2).notify(0, Notification(0, 1))
    window = first.open_window("bucket 1", 64, 2)
    with pytest.raises(RankFailed, match=r"rank 1 did not notify slot 0 .*: it asked wrongly: .*128 bytes .*64 bytes"):
        window.wait(0, 1, 1, in_time())


def test_what_start_begins_goes_on_beside_the_rank_and_a_wait_names_whom_it_waits_for(
    make_transports: MakeTransports,
) -> None:
    transports = make_transports(2)
    data = [Region.of(one.open_window("data", 4000, 0), 0, 1000, np.float32) for one in transports]
    runners: list[Any] = []
    for rank, transport in enumerate(transports):
        data[rank].array[:] = rank + 1
        runners.append(PlannedCollectives(transport, lambda _num_bytes: "ring").all_reduce("sum", data[rank]))
    runners[0].start()
    while runners[0]._pending.phase != "waits for rank 1":
        """Until it has come to its first wait."""
    with pytest.raises(DeadlineExceeded, match=r"rank 0: plan 'ring': not done within .*: it waits for rank 1"):
        runners[0]._pending.wait(Deadline.after(0.0))
    runners[1].start()
    for runner, region in zip(runners, data, strict=True):
        runner._pending.wait(in_time())  # which does nothing itself
        assert (region.array == 3).all()
        runner.finish(in_time())


def test_what_goes_on_in_the_background_ends_when_the_transport_is_closed(make_transports: MakeTransports) -> None:
    transports = make_transports(2)
    windows = [transport.open_window("data", 8, 1) for transport in transports]
    pending = transports[0].spawn("a wait", lambda deadline: windows[0].wait(0, 1, 1, deadline))  # type: ignore[arg-type]
    transports[0].close()
    with pytest.raises(SamovarError, match="closed"):
        pending.wait(in_time())
    with pytest.raises(SamovarError, match="closed before"):
        transports[0].spawn("another", lambda _deadline: None)
    with pytest.raises(SamovarError, match="closed before"):
        windows[0].fetch_add(1, 0, 1)


def test_ranks_meet_at_a_store() -> None:
    shelf: dict[str, bytes] = {}

    class Shelf:
        def set(self, key: str, value: str) -> None:
            shelf[key] = value.encode()

        def get(self, key: str) -> bytes:
            return shelf[key]

        def check(self, keys: list[str]) -> bool:
            return all(key in shelf for key in keys)

        def add(self, key: str, amount: int) -> int:
            raise NotImplementedError

    own = [("127.0.0.1", 1000), ("fe80::1%eth0", 1001)]
    both = [Rendezvous(Shelf(), "here", f"rank {rank}") for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda rank: meet(both[rank], Group(rank, 2), own[rank], in_time()), range(2)))
    assert found == [own, own]
    with pytest.raises(DeadlineExceeded, match="rank 0: no word of rank 2 within"):
        meet(both[0], Group(0, 3), own[0], LookedAt(3))


@pytest.mark.parametrize("address", ["0.0.0.0", "::", ""])
def test_every_interface_at_once_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="name"):
        listen(address)


def test_who_ends_while_a_peer_comes_waits_for_no_thread_that_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    channel: Any = object()
    service = PeerService(Group(0, 2), ["a", "b"], TcpConfig("test"), cast(Any, None))
    monkeypatch.setattr(service, "_serve", lambda _channel: None)
    begin, threads = Thread.start, ThreadPoolExecutor()
    ended: list[Future[None]] = []

    def begin_late(thread: Thread) -> None:
        if thread.name == "samovar-peer":
            ended.append(threads.submit(service.linger, in_time()))
            wait(ended, 0.2)  # where it does not wait for the thread to begin, it ends within
        begin(thread)

    monkeypatch.setattr(Thread, "start", begin_late)
    with threads:
        service.accept(channel)
        ended[0].result()
