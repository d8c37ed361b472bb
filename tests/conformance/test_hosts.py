"""Hosts of several ranks over TCP: shared memory inside each, the bits and the costs of one memory for all."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import permutations
from threading import Barrier

import numpy as np
import pytest

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import two_level
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed
from samovar.core.group import Group, Host
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Notification, Region
from samovar.transports.hosts import HostClocks, HostsTransport
from samovar.transports.shm import ShmTransport, create_segment
from samovar.transports.tcp import TcpTransport
from tests.conformance.tcp_threads import TIMEOUT_S, Result, on_tcp
from tests.unit.strategies import center_harness, harness, test_center, test_definitions

HOSTS = ((0, 1), (2, 3))
WORLD_SIZE = 4
CONFIGS = {
    "sync": StrategyConfig("sync", "tree", 64, overlap="backward"),
    "sync with owners": test_definitions.CONFIGS["sync with owners"],
    "diloco": test_definitions.CONFIGS["diloco"],
    "diloco streaming": replace(test_definitions.CONFIGS["diloco streaming"], compress="int4"),
    "sync-easgd period": test_definitions.CONFIGS["sync-easgd period"],
}


def on_hosts(work: Callable[[HostsTransport], Result]) -> list[Result]:
    """The results of `work` on all ranks, each a thread, two on each of two "hosts"."""
    with ExitStack() as closing:
        segments = [create_segment(len(host)) for host in HOSTS]
        for segment in segments:
            closing.callback(os.close, segment)

        def begin(tcp: TcpTransport) -> Result:
            number = next(n for n, host in enumerate(HOSTS) if tcp.group.rank in host)
            place = Group(HOSTS[number].index(tcp.group.rank), len(HOSTS[number]))
            local = ShmTransport(segments[number], place, oversubscribed=True)
            return work(HostsTransport(local, tcp, HOSTS[number]))

        return on_tcp(WORLD_SIZE, begin, needs_memory=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_strategies_in_step_give_the_bits_of_shared_memory(name: str) -> None:
    job = harness.Job(CONFIGS[name], test_definitions.gradient, 7, np.ones(harness.NUM_ELEMENTS, np.float32))
    assert harness.same(on_hosts(partial(harness.train, job)), harness.on_shm(job, WORLD_SIZE))


@pytest.mark.parametrize("name", ["round-robin-easgd", "hybrid-easgd"])
def test_strategies_at_a_center_are_their_definitions(name: str) -> None:
    work = center_harness.Work(test_center.CONFIGS[name], test_definitions.gradient, test_center.NUM_STEPS)
    workers = on_hosts(lambda one: center_harness.work(work, one, lambda _seconds: None, harness.in_time))
    test_center.assert_is_reference(workers, work.config, center_harness.in_order(workers))


def test_two_levels_send_between_hosts_what_one_rank_of_each_must() -> None:
    num_elements = 10_000

    def add_up(transport: HostsTransport) -> tuple[float, int]:
        collectives = PlannedCollectives(transport, lambda _num_bytes: "two-level", host_size=len(HOSTS[0]))
        data = Region.of(transport.open_window("data", 4 * num_elements, 0), 0, num_elements, np.float32)
        data.array[:] = transport.group.rank + 1
        collectives.all_reduce("sum", data).run(harness.in_time())
        assert (data.array == data.array[0]).all()
        return float(data.array[0]), transport.bytes_between

    assert on_hosts(add_up) == [(10.0, 4 * num_elements), (10.0, 0)] * 2
    assert two_level(len(HOSTS[0]))(1, WORLD_SIZE).num_slots > 0


def test_verbs_reach_ranks_of_this_host_and_of_others() -> None:
    changes = (1, -1, 1, -1)

    def play(transport: HostsTransport) -> tuple[int, list[int]]:
        rank = transport.group.rank
        window = transport.open_window("words", 8 * WORLD_SIZE, WORLD_SIZE)
        window.put(0, 8 * rank, np.array([rank + 1], np.uint64), Notification(rank, 1))
        if rank == 0:
            for peer in range(WORLD_SIZE):
                window.wait(peer, 1, peer, harness.in_time())
            for peer in range(1, WORLD_SIZE):
                window.notify(peer, Notification(0, 2))
        else:
            assert window.wait_any(range(WORLD_SIZE), harness.in_time()) == (0, 2)
        old = window.fetch_add(0, 0, changes[rank] % 2**64)
        assert window.compare_swap(0, 24, 0, 7) == WORLD_SIZE
        found = np.zeros(WORLD_SIZE, np.uint64)
        window.get(0, 0, found)
        return old, found[1:].tolist()

    olds, found = zip(*on_hosts(play), strict=True)
    assert list(found) == [[2, 3, 4]] * WORLD_SIZE
    assert olds in {olds_of(changes, order) for order in permutations(range(WORLD_SIZE))}


def olds_of(changes: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """The value that each rank finds in a word that was 1, if they change it in that order."""
    return tuple((1 + sum(changes[other] for other in order[: order.index(rank)])) % 2**64 for rank in sorted(order))


def test_a_rank_of_another_host_that_goes_is_named_and_what_came_before_counts() -> None:
    def play(transport: HostsTransport) -> None:
        rank = transport.group.rank
        window = transport.open_window("data", 64, 2)
        if rank == 3:
            window.notify(0, Notification(0, 1))
            window.wait(1, 1, 0, harness.in_time())
            transport._tcp.close()
        elif rank == 0:
            window.wait(0, 1, 3, harness.in_time())
            window.notify(3, Notification(1, 1))
            with pytest.raises(
                RankFailed, match="rank 0: rank 3 did not notify slot 0 of window 'data': rank 3 is gone"
            ):
                window.wait(0, 2, 3, harness.in_time())
            assert window.wait(0, 1, 3, harness.in_time()) == 1
            with pytest.raises(DeadlineExceeded, match="rank 0: rank 1 did not notify slot 1 of window 'data' within"):
                window.wait(1, 1, 1, Deadline.after(0.15))

    on_hosts(play)


def test_who_hears_late_of_a_rank_that_left_gives_up_only_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which `watch` changes
    all_ranks = Barrier(WORLD_SIZE, timeout=TIMEOUT_S)

    def play(transport: HostsTransport) -> None:
        rank, local = transport.group.rank, transport._local
        local.watch(["first", "second"], {})
        window = transport.open_window("data", 64, 1)
        leaves = local.group.rank == 0
        if leaves:
            window.notify(rank + 1, Notification(0, 1))
            local.close()
        all_ranks.wait()
        if not leaves:
            assert window.wait(0, 1, rank - 1, harness.in_time()) == 1
            assert transport._tcp.lost(rank - 1) is not None
        all_ranks.wait()
        assert not leaves or local.lost(1) is None
        all_ranks.wait()
        if not leaves:
            with pytest.raises(RankFailed, match="first left before its work was done"):
                window.wait(0, 2, rank - 1, harness.in_time())
        all_ranks.wait()
        assert not leaves or "first left before its work was done" in str(local.lost(1))

    on_hosts(play)


def test_each_host_knows_the_lead_of_its_clock_over_that_of_host_0() -> None:
    """Twice, on three hosts; every lead is within half of the time that the other host was asked for it."""
    hosts = (Host("first", (0, 1)), Host("second", (2,)), Host("third", (3, 4)))
    leads_s = (0.0, 0.0, 1000.0, -5000.0, -5000.0)

    def measure(transport: TcpTransport) -> tuple[float, float]:
        rank = transport.group.rank
        clocks = HostClocks(
            transport, hosts, partial(Deadline.after, TIMEOUT_S), lambda: time.monotonic() + leads_s[rank]
        )
        return clocks.lead_s(), clocks.lead_s()

    began_s = time.monotonic()
    found = on_tcp(5, measure)
    most_s = time.monotonic() - began_s
    for lead_s, of_rank in zip(leads_s, found, strict=True):
        assert of_rank == pytest.approx((lead_s, lead_s), abs=most_s)
