"""The center of a box over real sockets: the same numbers as in memory, once each, however often the link breaks."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from samovar.box import protocol
from samovar.box.base import Versions
from samovar.box.line import BoxAddress
from samovar.box.protocol import Kind
from samovar.box.remote import RemoteCenter
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed
from tests.unit.box.conftest import TIMEOUT_S, ServedBox
from tests.unit.box.numpy_host import NumpyCenter, NumpySeat
from tests.unit.transports.proxy import Proxy

Attach = Callable[..., RemoteCenter]
SHAPES = [(1, 1), (1000, 1000), (1001, 250), (700_001, 65_536), (2_000_000, 600_000)]


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


def values(seed: int, num_elements: int) -> np.ndarray:
    """Whole numbers, whose sums float32 keeps exactly."""
    return np.random.default_rng(seed).integers(-1000, 1000, num_elements).astype(np.float32)


@pytest.mark.parametrize(("num_elements", "chunk_elements"), SHAPES)
def test_every_operation_does_what_it_says(
    box: ServedBox, attach: Attach, num_elements: int, chunk_elements: int
) -> None:
    held = box.create("c", num_elements, chunk_elements)
    center = attach()
    assert (center.num_elements, center.chunk_elements) == (num_elements, chunk_elements)
    c, d, x = (values(seed, num_elements) for seed in range(3))
    center.write(c, in_time())
    got = np.zeros(num_elements, np.float32)
    assert (center.read(got, in_time()) == 0).all()
    assert (got == c).all()
    assert (center.accumulate(1, d, in_time()) == 1).all()
    assert (center.accumulate(2, d, in_time(), momentum=0.5) == 2).all()
    c += 2 * d
    push = center.accumulate_in_background(3, d)
    push.wait(in_time())
    assert (push.versions == 3).all()
    c += d
    weights = x.copy()
    assert (center.exchange(4, weights, 0.5, in_time()) == 4).all()
    difference = np.float32(0.5) * (x - c)
    assert (weights == x - difference).all()
    assert (held.values == c + difference).all()
    assert (center.read(got, in_time()) == 4).all()
    assert (got == held.values).all()
    difference = np.float32(0.5) * (weights - got)
    pulled = weights - difference
    exchange = center.exchange_in_background(5, weights, 0.5)
    exchange.wait(in_time())
    assert (exchange.versions == 5).all()
    assert (weights == pulled).all()
    assert (held.values == got + difference).all()


def test_pushes_are_applied_in_their_order_and_before_what_comes_later(box: ServedBox, attach: Attach) -> None:
    held, center = box.create("c", 100_000, 10_000), attach()
    ones = np.ones(100_000, np.float32)
    pushes = [center.accumulate_in_background(sequence, ones) for sequence in range(1, 9)]
    center.exchange(9, weights := np.zeros_like(ones), 1.0, in_time())
    assert (weights == 8).all()
    assert not held.values.any()
    for number, push in enumerate(pushes, 1):
        push.wait(in_time())
        assert (push.versions == number).all()
    assert [sequence for _, sequence, chunk, _ in held.log if chunk == 0] == list(range(1, 10))


def test_a_read_does_not_wait_for_a_push(box: ServedBox, attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    box.create("c", 1000, 250)
    center, ones = attach(), np.ones(1000, np.float32)
    may_end, accumulate = threading.Event(), NumpySeat.accumulate_chunks

    def accumulate_late(*arguments: Any) -> Versions:
        assert may_end.wait(TIMEOUT_S)
        return accumulate(*arguments)

    monkeypatch.setattr(NumpySeat, "accumulate_chunks", accumulate_late)
    push = center.accumulate_in_background(1, ones)
    got = np.full(1000, 5, np.float32)
    assert (center.read(got, in_time()) == 0).all()
    assert not got.any()
    may_end.set()
    push.wait(in_time())
    assert (center.read(got, in_time()) == 1).all()
    assert (got == 1).all()


def test_members_together_add_up_to_what_they_did(box: ServedBox, attach: Attach) -> None:
    num_elements, num_rounds = 300_001, 8
    held = box.create("c", num_elements, 16_384)
    centers = [attach() for _ in range(4)]
    weights = [values(rank, num_elements) for rank in range(4)]
    total = sum(weights)

    def play(rank: int) -> None:
        for sequence in range(1, num_rounds + 1):
            if rank % 2:
                centers[rank].exchange(sequence, weights[rank], 1.0, in_time())  # swaps them: exact
            else:
                moved = np.full(num_elements, rank + sequence, np.float32)
                weights[rank] -= moved
                centers[rank].accumulate(sequence, moved, in_time())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(play, range(4)))
    assert (sum(weights) + held.values == total).all()
    assert held.versions.tolist() == [4 * num_rounds] * held.shape.num_chunks


@pytest.mark.parametrize("seed", range(6))
def test_an_operation_goes_on_where_the_connection_broke(
    box: ServedBox, attach: Attach, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts in the middle of requests and of answers, again and again."""
    monkeypatch.setattr(protocol, "PART_BYTES", 1 << 20)
    num_elements = 700_001
    held = box.create("c", num_elements, 65_536)
    generator = np.random.default_rng(seed)
    most = 9_000_000
    cuts = [(int(generator.integers(0, most)), int(generator.integers(0, most))) for _ in range(12)]
    proxy = Proxy(box.address.address, cuts)
    try:
        center = attach(address=BoxAddress(proxy.address, box.key))
        x, start = values(seed, num_elements), values(seed + 100, num_elements)
        center.write(start, in_time())
        weights = x.copy()
        for sequence in range(1, 7):
            if sequence % 2:
                center.exchange(sequence, weights, 1.0, in_time())
            else:
                weights -= 1
                center.accumulate(sequence, np.ones_like(weights), in_time())
        got = np.zeros_like(weights)
        center.read(got, in_time())
    finally:
        proxy.close()
    assert (got == held.values).all()
    assert (weights + got == x + start).all()
    assert held.versions.tolist() == [6] * held.shape.num_chunks
    assert center._line.num_reconnects >= 1


def test_a_member_outlives_the_server(box: ServedBox, attach: Attach) -> None:
    held, center = box.create("c", 100_000, 10_000), attach()
    ones = np.ones(100_000, np.float32)
    center.accumulate(1, ones, in_time())
    member = center.member
    box.stop()
    push = center.accumulate_in_background(2, ones)
    box.start()
    push.wait(in_time())
    assert (center.accumulate(2, ones, in_time()) == 2).all(), "an update that is there already is not made again"
    assert (held.values == 2).all()
    box.stop()
    exchange = center.exchange_in_background(3, weights := ones.copy(), 0.5)
    box.start()
    exchange.wait(in_time())
    assert (weights == 1.5).all()
    assert (held.values == 1.5).all()
    assert center.member == member
    assert center._line.num_reconnects == 2


def test_a_member_whose_place_is_gone_is_told_to_join_again(box: ServedBox, attach: Attach) -> None:
    box.create("c", 10, 10)
    center = attach()
    box.stop()
    box.host.members.clear()
    box.start()
    with pytest.raises(RankFailed, match=r"worker 0: the box at .*: member 0 of incarnation 1 is gone; join again"):
        center.read(np.zeros(10, np.float32), in_time())


def test_a_box_that_does_not_come_back_costs_no_more_than_the_deadline(box: ServedBox, attach: Attach) -> None:
    box.create("c", 10, 10)
    center = attach()
    box.stop()
    with pytest.raises(DeadlineExceeded, match=r"worker 0: .*the box at"):
        center.read(np.zeros(10, np.float32), Deadline.after(0.3))
    box.start()
    center.read(np.zeros(10, np.float32), in_time())


def test_a_new_connection_of_a_member_ends_its_old_one(box: ServedBox, attach: Attach) -> None:
    held, first = box.create("c", 1000, 100), attach()
    ones = np.ones(1000, np.float32)
    first.accumulate(1, ones, in_time())
    second = attach()
    second._line.disconnect()
    second.member = second._line.member = first.member
    second._line._attachment = first._line._attachment
    second.accumulate(2, ones, in_time())
    assert (first.accumulate(2, ones, in_time()) == 2).all(), "it comes back in turn"
    assert (held.values == 2).all()


def test_a_member_of_another_version_is_told_so(
    box: ServedBox, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = protocol.Request.pack
    box.create("c", 10, 10)
    monkeypatch.setattr(
        protocol.Request, "pack", lambda self: (packed := pack(self))[:1] + bytes([protocol.VERSION + 1]) + packed[2:]
    )
    with pytest.raises(InputError, match=r"speaks version \d+ of the box's language, .*; use one version of Samovar"):
        attach()


def test_a_center_that_is_not_there_is_named(box: ServedBox, attach: Attach) -> None:
    box.create("alexnet", 10, 10)
    with pytest.raises(InputError, match="no center 'lenet'; there are: alexnet"):
        attach("lenet")
    with pytest.raises(InputError, match="1 to 128 bytes"):
        attach("x" * 129)


def test_a_refused_update_leaves_the_member_usable(
    box: ServedBox, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise InputError("momentum 0.9: this center keeps no velocity; make it with one")

    held, center = box.create("c", 10, 10), attach()
    with monkeypatch.context() as patch:
        patch.setattr(NumpyCenter, "apply", refuse)
        with pytest.raises(InputError, match=r"worker 0: the box at .*: momentum 0.9: this center keeps no velocity"):
            center.accumulate(1, np.ones(10, np.float32), in_time(), momentum=0.9)
    center.accumulate(1, np.ones(10, np.float32), in_time())
    assert (held.values == 1).all()


def test_a_box_lists_and_drops(box: ServedBox) -> None:
    box.create("a", 10, 10)
    box.create("b", 10, 10)
    assert box.address.ask(Kind.NAMES, b"", "me", in_time()).decode().split() == ["a", "b"]
    box.address.ask(Kind.DROP, b"a", "me", in_time())
    with pytest.raises(InputError, match=r"me: the box at .*: no center 'a'"):
        box.address.ask(Kind.DROP, b"a", "me", in_time())
    assert list(box.host.centers) == ["b"]


def test_a_member_that_leaves_gives_its_place_back(box: ServedBox, attach: Attach) -> None:
    box.create("c", 10, 10)
    center = attach()
    assert len(box.service._places) == 1
    center.close()
    assert not box.service._places


def test_places_of_members_that_stay_away_are_given_up(box: ServedBox, attach: Attach) -> None:
    box.create("c", 10, 10)
    closed = threading.Event()
    center = attach()
    (place,) = box.service._places
    place.seat.close = closed.set  # type: ignore[method-assign]
    box.service.expire()
    assert not closed.is_set()
    center._line.disconnect()
    while place.channels:
        assert not closed.wait(0.01)
    with box.service._lock:  # when it left is noted with it
        left_s = place.left_s
    box.service.expire(left_s + 1.0)
    assert not closed.is_set(), "it has a while to come back"
    box.service.expire(left_s + 1000.0)
    assert closed.is_set()
    center.read(np.zeros(10, np.float32), in_time())
