"""The window verbs under a virtual clock."""

import math
import re
from functools import partial

import numpy as np
import pytest

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError
from samovar.core.machine import Link, MachineModel
from samovar.transports.base import Notification, Transport, Window
from samovar.transports.sim.scheduler import Deadlock
from samovar.transports.sim.world import SimConfig, SimTransport, simulate

LATENCY_S = 2.0
ONE_LATENCY = SimConfig(machine=MachineModel(Link(LATENCY_S)))
EXAMPLE = np.arange(8, dtype=np.uint8)


def test_it_offers_what_a_transport_offers() -> None:
    def program(transport: SimTransport) -> None:
        offered: Transport = transport
        window: Window = offered.open_window("data", 8, 1)
        assert len(window.local) == 8

    simulate(program, 1, SimConfig())


def put_and_look(transport: SimTransport) -> list[list[int]]:
    """Rank 0 puts and overwrites its source; rank 1 looks just before and when the notification comes."""
    window = transport.open_window("data", 8, 0)
    slots = transport.open_window("slots", 0, 1)
    if transport.group.rank == 0:
        source = EXAMPLE.copy()
        window.put(1, 0, source)
        source[:] = 99
        slots.notify(1, Notification(0, 5))
        return []
    transport.sleep(LATENCY_S - 0.1)
    before = window.local.tolist()
    assert slots.wait(0, 5, 0, transport.deadline(math.inf)) == 5
    assert transport.now_s == LATENCY_S
    return [before, window.local.tolist()]


def test_a_put_reads_at_the_call_lands_on_arrival_and_before_its_notification() -> None:
    run = simulate(put_and_look, 2, ONE_LATENCY)
    assert run.results[1] == [[0] * 8, EXAMPLE.tolist()]
    assert run.bytes_sent == (8, 0)
    assert run.num_messages == 1, "the notification goes along with the put"


def count_up(num_messages: int, transport: SimTransport) -> list[int]:
    """Ranks 1 and 2 send numbers that grow; rank 0 gives the order in which it saw their senders."""
    rank = transport.group.rank
    window = transport.open_window("data", 24, 3)
    if rank > 0:
        for number in range(1, num_messages + 1):
            window.put(0, 8 * rank, np.array([number]), Notification(rank, number))
        return []
    seen, last = [], {1: 0, 2: 0}
    while last != {1: num_messages, 2: num_messages}:
        slot, value = window.wait_any(range(1, 3), transport.deadline(math.inf))
        assert value > last[slot]
        assert window.local.view(np.int64)[slot] >= value
        last[slot] = value
        seen.append(slot)
    return seen


def test_messages_of_a_pair_stay_in_order_and_those_of_different_pairs_do_not() -> None:
    orders = set()
    for seed in range(10):
        config = SimConfig(seed, max_delay_s=1.0, check=False)
        orders.add(tuple(simulate(partial(count_up, 5), 3, config).results[0]))
    assert len(orders) > 5


def test_wait_any_takes_the_first_slot_that_is_set_and_resets_it() -> None:
    def program(transport: SimTransport) -> list[tuple[int, int]]:
        window = transport.open_window("slots", 0, 4)
        for slot in (3, 1):
            window.notify(0, Notification(slot, 10 + slot))
        found = [window.wait_any(range(4), transport.deadline(1.0)) for _ in range(2)]
        with pytest.raises(DeadlineExceeded, match="nobody notified slots 0 to 3 of window 'slots'"):
            window.wait_any(range(4), transport.deadline(1.0))
        return found

    assert simulate(program, 1, SimConfig()).results == [[(1, 11), (3, 13)]]


def test_atomics_of_all_ranks_take_turns() -> None:
    def program(transport: SimTransport) -> list[int]:
        window = transport.open_window("word", 16, 0)
        olds = [window.fetch_add(0, 8, 1) for _ in range(10)]
        window.compare_swap(0, 0, 0, transport.group.rank + 1)
        return [*olds, window.compare_swap(0, 0, 99, 0)]

    for seed in range(5):
        results = simulate(program, 4, SimConfig(seed, max_delay_s=1.0)).results
        assert sorted(old for olds in results for old in olds[:10]) == list(range(40))
        assert len({olds[10] for olds in results}) == 1
        assert results[0][10] in range(1, 5)


def test_atomics_wrap_around_and_need_an_aligned_offset() -> None:
    def program(transport: SimTransport) -> None:
        window = transport.open_window("word", 16, 0)
        assert window.fetch_add(0, 8, -1) == 0
        assert window.fetch_add(0, 8, 2) == 2**64 - 1
        assert window.fetch_add(0, 8, 0) == 1
        with pytest.raises(ValueError, match="divisible by 8"):
            window.fetch_add(0, 4, 1)

    simulate(program, 1, SimConfig())


def test_get_takes_a_question_and_an_answer() -> None:
    def program(transport: SimTransport) -> list[int]:
        window = transport.open_window("data", 8, 0)
        if transport.group.rank == 1:
            window.local[:] = EXAMPLE
            return []
        found = np.zeros(4, np.uint8)
        window.get(1, 2, found)
        assert transport.now_s == 2 * LATENCY_S
        return found.tolist()

    assert simulate(program, 2, ONE_LATENCY).results[0] == [2, 3, 4, 5]


def test_a_rank_that_opens_its_window_late_finds_what_was_put() -> None:
    def program(transport: SimTransport) -> list[int]:
        if transport.group.rank == 1:
            transport.sleep(10 * LATENCY_S)
        window = transport.open_window("data", 8, 1)
        if transport.group.rank == 0:
            window.put(1, 0, EXAMPLE, Notification(0, 1))
            return []
        window.wait(0, 1, 0, transport.deadline(0.0))
        return window.local.tolist()

    assert simulate(program, 2, ONE_LATENCY).results[1] == EXAMPLE.tolist()


def test_other_sizes_on_another_rank_are_refused() -> None:
    def program(transport: SimTransport) -> None:
        transport.open_window("data", 8 + transport.group.rank, 0)

    with pytest.raises(SamovarError, match=r"window 'data' of [89] bytes .* is window 'data' of [89] bytes") as caught:
        simulate(program, 2, ONE_LATENCY)
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"raised by rank [01] at 0.000000000 s of virtual time", note)


def test_what_is_outside_of_a_window_is_refused() -> None:
    def program(transport: SimTransport) -> None:
        window = transport.open_window("data", 8, 1)
        for peer, offset in ((0, 1), (0, -1), (1, 0)):
            with pytest.raises(IndexError):
                window.put(peer, offset, EXAMPLE)
        for slot in (-1, 1):
            with pytest.raises(IndexError):
                window.notify(0, Notification(slot, 1))
        with pytest.raises(IndexError):
            window.notify(-1, Notification(0, 1))

    simulate(program, 1, SimConfig())


def test_deadlines_are_of_the_virtual_clock() -> None:
    def program(transport: SimTransport) -> list[float]:
        window = transport.open_window("slots", 0, 1)
        ended = []
        for waiting_s in (5.0, 1.0, 0.0, 3.0):
            deadline = transport.deadline(waiting_s)
            with pytest.raises(DeadlineExceeded, match=r"rank 0: rank 1 did not notify slot 0 of window 'slots'"):
                window.wait(0, 1, 1, deadline)
            assert deadline.passed()
            assert deadline.remaining_s() == 0.0
            ended.append(transport.now_s)
        return ended

    assert simulate(program, 1, SimConfig()).results == [[5.0, 6.0, 6.0, 9.0]]


def test_a_deadline_of_the_real_clock_leaves_it_to_the_deadlock_report() -> None:
    def program(transport: SimTransport) -> None:
        transport.open_window("slots", 0, 1).wait(0, 1, 0, Deadline.after(0.0))

    with pytest.raises(Deadlock):
        simulate(program, 1, SimConfig())


def test_a_deadlock_says_who_waits_for_what_and_unwinds_all_ranks() -> None:
    unwound = []

    def program(transport: SimTransport) -> None:
        window = transport.open_window("slots", 0, 2)
        try:
            if transport.group.rank == 0:
                window.notify(1, Notification(1, 4))
                window.wait(0, 7, 2, transport.deadline(math.inf))
            elif transport.group.rank == 1:
                window.wait_any(range(1), transport.deadline(math.inf))
        finally:
            unwound.append(transport.group.rank)

    with pytest.raises(Deadlock) as caught:
        simulate(program, 3, ONE_LATENCY)
    assert "rank 0 waits for rank 2: slot 0 of window 'slots' >= 7 (it holds 0)" in str(caught.value)
    assert "rank 1 waits for any of slots 0 to 0 of window 'slots'" in str(caught.value)
    assert sorted(unwound) == [0, 1, 2]


def test_counted_windows_hold_nothing_and_count_everything() -> None:
    def program(transport: SimTransport) -> int:
        window = transport.open_window("data", 2**30, 1)
        peer = 1 - transport.group.rank
        window.put(peer, 0, window.local[2**29 :], Notification(0, 1))
        window.wait(0, 1, peer, transport.deadline(math.inf))
        transport.reduce(window.local[:64].view(np.float32), [window.local[:64].view(np.float32)] * 2)
        return int(window.local[:64].sum())

    run = simulate(program, 2, SimConfig(counted_above_bytes=1024))
    assert run.results == [0, 0]
    assert run.bytes_sent == (2**29, 2**29)
