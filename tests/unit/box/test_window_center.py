"""The center through a window's verbs: the bits of the native one, whole chunks, turns in order, and no spinning."""

import math
import os
from collections.abc import Iterator
from random import Random
from threading import Event
from typing import Any

import numpy as np
import pytest

from samovar.box.base import Center
from samovar.box.board import Member
from samovar.box.mapped import MappedCenter, create_center
from samovar.box.window_center import WindowCenter
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed
from samovar.core.group import Group
from samovar.transports.shm import ShmTransport, create_segment
from samovar.transports.sim.world import SimConfig, SimTransport, simulate
from samovar.transports.tcp import TcpTransport
from tests.conformance.tcp_threads import on_tcp
from tests.threads import on_threads

SIZE, CHUNK = 1000, 64
NUM_CHUNKS = -(-SIZE // CHUNK)
NUM_MEMBERS = 3


@pytest.fixture(params=[True, False], ids=["locks", "no locks"])
def twins(request: pytest.FixtureRequest) -> Iterator[tuple[list[Any], list[Any]]]:
    """The same members at a center of each kind."""
    settings = {"with_velocity": True, "with_locks": request.param, "chunk_elements": CHUNK}
    segment, box = create_segment(NUM_MEMBERS), create_center(SIZE, NUM_MEMBERS, **settings)
    transports = [ShmTransport(segment, Group(rank, NUM_MEMBERS), oversubscribed=True) for rank in range(NUM_MEMBERS)]
    windows = [WindowCenter(transport, SIZE, **settings) for transport in transports]
    mapped = [MappedCenter(box, Member(index, 1)) for index in range(NUM_MEMBERS)]
    yield windows, mapped
    centers: list[Any] = [*windows, *mapped]
    for center in centers:
        center.close()
    for transport in transports:
        transport.close()
    os.close(segment)
    os.close(box)


def soon() -> Deadline:
    return Deadline.after(30.0)


@pytest.mark.parametrize("seed", range(8))
def test_the_same_calls_give_the_bits_and_versions_of_the_native_center(
    twins: tuple[list[Any], list[Any]], seed: int
) -> None:
    first, second = ([repr(item) for item in calls(centers, seed)] for centers in twins)
    assert first == second


def calls(centers: list[Any], seed: int) -> Iterator[object]:
    """The operations of members, one after the other, with their results; some are repeated."""
    random, values = Random(seed), np.random.default_rng(seed)
    weights = [values.standard_normal(SIZE).astype(np.float32) for _ in centers]
    centers[0].write(weights[0], soon())
    sequences = [0] * len(centers)
    for _ in range(40):
        index = random.randrange(len(centers))
        sequences[index] += random.random() < 0.8 or sequences[index] == 0
        difference = values.standard_normal(SIZE).astype(np.float32)
        yield call(centers[index], random.randrange(6), sequences[index], weights[index], difference)
        yield weights[index].tobytes()
    found = np.zeros(SIZE, np.float32)
    yield centers[1].read(found, soon()).tolist(), found.tobytes()
    centers[2].read_velocity(found, soon())
    yield found.tobytes()


def call(center: Center, kind: int, sequence: int, weights: np.ndarray, difference: np.ndarray) -> list[int]:
    match kind:
        case 0:
            return center.read(difference, soon()).tolist()
        case 1:
            return center.accumulate(sequence, difference, soon()).tolist()
        case 2:
            return center.accumulate(sequence, difference, soon(), momentum=0.9).tolist()
        case 3:
            push = center.accumulate_in_background(sequence, difference)
            push.wait(soon())
            return push.versions.tolist()
        case 4:
            push = center.exchange_in_background(sequence, weights, 0.3)
            push.wait(soon())
            return push.versions.tolist()
    return center.exchange(sequence, weights, 0.3, soon()).tolist()


def test_threads_add_whole_chunks_and_lose_nothing() -> None:
    """Every reader finds each chunk as some number of whole updates."""
    num_updates = 25

    def work(transport: ShmTransport) -> int:
        center, found = WindowCenter(transport, SIZE, chunk_elements=CHUNK), np.zeros(SIZE, np.float32)
        for sequence in range(1, num_updates + 1):
            push = center.accumulate_in_background(sequence, np.ones(SIZE, np.float32))
            versions = center.read(found, soon())
            assert found.tolist() == np.repeat(versions, CHUNK)[:SIZE].tolist()
            push.wait(soon())
        center.close()
        return int(center.read(found, soon()).max())

    assert max(on_threads(NUM_MEMBERS, work)) == NUM_MEMBERS * num_updates


class Slow(WindowCenter):
    """Rank 0 stays long in a chunk."""

    def exchange(self, sequence, weights, moving_rate, deadline):
        if self._rank == 0:
            with self._locked(0, 0, deadline):
                self._transport.sleep(1000.0)  # type: ignore[attr-defined]
        return super().exchange(sequence, weights, moving_rate, deadline)


def test_who_waits_sends_nothing_and_comes_in_the_order_of_arrival() -> None:
    """While rank 0 stays in the chunk for 1,000 virtual seconds, the others come one after the other, and sleep."""
    entered = []

    def program(transport: SimTransport) -> None:
        rank = transport.group.rank
        center = Slow(transport, CHUNK, chunk_elements=CHUNK)
        transport.sleep(float((rank * 3) % 5))
        center.exchange(1, np.ones(CHUNK, np.float32), 0.5, transport.deadline(math.inf))
        entered.append(rank)

    run = simulate(program, 5, SimConfig(max_delay_s=1e-6))
    assert entered == [2, 4, 1, 3, 0]  # arrived after 0, 1, 2, 3, 4 s; rank 0 again after its long stay
    assert run.num_messages < 5 * 20


def test_a_member_that_stays_is_waited_for_until_the_deadline() -> None:
    def program(transport: SimTransport) -> None:
        center = Slow(transport, CHUNK, chunk_elements=CHUNK)
        transport.sleep(float(transport.group.rank))
        center.exchange(
            1, np.ones(CHUNK, np.float32), 0.5, transport.deadline(10.0 + 1e6 * (transport.group.rank == 0))
        )

    sentence = "rank 1: waits for chunk 0 of the center, which rank 0 has before it: rank 0 did not notify slot 1"
    with pytest.raises(DeadlineExceeded, match=sentence):
        simulate(program, 2, SimConfig())


def test_a_member_that_ends_with_a_chunk_is_named_at_once() -> None:
    """Rank 0 has the center. Rank 1 has its chunk when others see it end, and rank 2 waits for that."""
    locked, tried = Event(), Event()

    def program(transport: TcpTransport) -> str:
        rank = transport.group.rank
        center = WindowCenter(transport, CHUNK, chunk_elements=CHUNK)
        if rank == 1:
            center._lock(0, 0, soon())
            locked.set()
        if rank == 2:
            transport.lost_elsewhere = lambda peer: "it was killed" if peer == 1 else None
            assert locked.wait(30.0)
            with pytest.raises(RankFailed) as failed:
                center.read(np.empty(CHUNK, np.float32), Deadline.after(1e6))
            tried.set()
            return str(failed.value)
        assert tried.wait(30.0)
        return ""

    assert on_tcp(3, program)[2].startswith(
        "rank 2: waits for chunk 0 of the center, which rank 1 has before it: rank 1 "
    )


def test_momentum_needs_a_velocity() -> None:
    def program(transport: SimTransport) -> None:
        center = WindowCenter(transport, CHUNK)
        center.accumulate(1, np.ones(CHUNK, np.float32), transport.deadline(1.0), momentum=0.9)

    with pytest.raises(InputError, match=r"momentum 0\.9: this center keeps no velocity"):
        simulate(program, 1, SimConfig())


def test_both_refuse_what_is_not_finite(twins: tuple[list[Any], list[Any]]) -> None:
    sick, start = np.zeros((2, SIZE), np.float32)
    sick[-1] = np.nan
    for first, *_others in twins:
        with pytest.raises(NotFinite):
            first.write(sick, soon())
        for attempt in (
            lambda center: center.accumulate(1, sick, soon()),
            lambda center: center.accumulate(2, sick, soon(), 0.5),
            lambda center: center.exchange(3, sick.copy(), 0.5, soon()),
            lambda center: center.accumulate_in_background(4, sick).wait(soon()),
        ):
            with pytest.raises(NotFinite):
                attempt(first)
        found = np.empty_like(start)
        first.read(found, soon())
        np.testing.assert_array_equal(found, start)
