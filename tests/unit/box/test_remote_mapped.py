"""Remote members of the native center, beside a local one: the same bits as in memory, each update once."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from samovar.box import protocol
from samovar.box.board import Board, Member, Origin, create_board
from samovar.box.buffers import RemoteMemory
from samovar.box.line import BoxAddress
from samovar.box.mapped import MappedCenter, create_center
from samovar.box.protocol import Attachment
from samovar.box.remote import RemoteCenter
from samovar.box.seats import Seat
from samovar.core.clock import Deadline
from tests.unit.box.conftest import TIMEOUT_S, ServedBox
from tests.unit.transports.proxy import Proxy

Attach = Callable[..., RemoteCenter]
NUM_ELEMENTS, CHUNK_ELEMENTS = 1_000_001, 16_384


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


class NativeHost:
    """One center, whatever its name."""

    def __init__(self) -> None:
        self.center = create_center(NUM_ELEMENTS, with_velocity=True, chunk_elements=CHUNK_ELEMENTS)
        self.board_descriptor = create_board()
        self.board = Board(self.board_descriptor)
        self.memory: dict[int, RemoteMemory] = {}

    def attach(self, _attachment: Attachment, member: Member, _origin: Origin) -> Seat:
        if member.incarnation == 0:
            member = self.board.join()
        else:
            self.board.adopt(member)
        fresh = RemoteMemory(np.zeros(NUM_ELEMENTS, np.float32), np.zeros(3, np.uint64))
        memory = self.memory.setdefault(member.index, fresh)
        return Seat(self.board, MappedCenter(self.center, member), member, memory)

    def close(self) -> None:
        os.close(self.center)
        os.close(self.board_descriptor)


@pytest.fixture
def host(box: ServedBox) -> Iterator[NativeHost]:
    native = NativeHost()
    box.service.host = native  # type: ignore[assignment]
    yield native
    native.close()


def test_a_remote_member_gets_the_bits_of_a_local_one(host: NativeHost, attach: Attach) -> None:
    generator = np.random.default_rng(1)
    c, d, x = (generator.standard_normal(NUM_ELEMENTS).astype(np.float32) for _ in range(3))
    found = []
    remote, twin = attach(), NativeHost()
    with MappedCenter(twin.center, twin.board.join()) as local:
        for center in (remote, local):
            center.write(c, in_time())
            weights, got = x.copy(), np.zeros_like(x)
            center.exchange(1, weights, 0.3, in_time())
            center.accumulate(2, d, in_time(), momentum=0.9)
            center.accumulate(3, d, in_time(), momentum=0.9)
            versions = center.read(got, in_time())
            found.append((weights.tobytes(), got.tobytes(), versions.tolist()))
    twin.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(3))
def test_local_and_remote_members_add_up_though_the_link_breaks(
    box: ServedBox, host: NativeHost, attach: Attach, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole numbers: the sum is exact."""
    monkeypatch.setattr(protocol, "PART_BYTES", 1 << 20)
    generator = np.random.default_rng(seed)
    cuts = [(int(generator.integers(0, 9_000_000)), int(generator.integers(0, 9_000_000))) for _ in range(6)]
    proxy = Proxy(box.address.address, cuts)
    try:
        remotes = [attach(address=BoxAddress(proxy.address, box.key)), attach()]
        with MappedCenter(host.center, host.board.join()) as local:
            centers: list[Any] = [*remotes, local]
            weights = [generator.integers(-99, 99, NUM_ELEMENTS).astype(np.float32) for _ in centers]
            total = sum(weights)

            def play(place: int) -> None:
                for sequence in range(1, 6):
                    if (sequence + place) % 2:
                        centers[place].exchange(sequence, weights[place], 1.0, in_time())
                    else:
                        weights[place] -= 3
                        centers[place].accumulate(sequence, np.full(NUM_ELEMENTS, 3, np.float32), in_time())

            with ThreadPoolExecutor(len(centers)) as pool:
                list(pool.map(play, range(len(centers))))
            got = np.zeros(NUM_ELEMENTS, np.float32)
            versions = local.read(got, in_time())
    finally:
        proxy.close()
    assert (sum(weights) + got == total).all()
    assert (versions == 5 * len(centers)).all()


def test_chunks_one_by_one_give_the_bits_of_the_whole(attach: Attach, host: NativeHost) -> None:
    """In any order, as a replay has its turns."""
    rng, center = np.random.default_rng(0), attach()
    start, difference, weights = (rng.standard_normal(NUM_ELEMENTS, np.float32) for _ in range(3))
    center.write(start, in_time())
    whole, added, found = start + difference, weights.copy(), np.empty_like(start)
    order = rng.permutation(center.num_chunks).tolist()
    parts = [(chunk, slice(chunk * CHUNK_ELEMENTS, (chunk + 1) * CHUNK_ELEMENTS)) for chunk in order]
    for chunk, part in parts:
        assert center.accumulate_chunks(chunk, 1, difference[part], in_time()) == [1]
    for chunk, part in parts:
        assert center.exchange_chunks(chunk, 2, added[part], 0.5, in_time()) == [2]
    for chunk, part in parts:
        assert center.read_chunks(chunk, found[part], in_time()) == [2]
    half = np.float32(0.5) * (weights - whole)
    assert (added == weights - half).all()
    assert (found == whole + half).all()
