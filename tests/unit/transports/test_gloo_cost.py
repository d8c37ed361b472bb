"""The bytes that gloo's algorithms send, against the expected ones."""

import pytest

from samovar.transports.leaders import all_gather_bytes, broadcast_bytes, ring_all_reduce_bytes


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("num_elements", [0, 1, 7, 1000, 262_144, 1_000_003])
@pytest.mark.parametrize("element_bytes", [4, 8])
def test_a_ring_sends_every_chunk_to_all_but_one_twice(world_size: int, num_elements: int, element_bytes: int) -> None:
    num_bytes = num_elements * element_bytes
    sent = [ring_all_reduce_bytes(rank, world_size, num_bytes, element_bytes) for rank in range(world_size)]
    assert sum(sent) == 2 * (world_size - 1) * num_bytes
    assert all(0 <= one <= 2 * num_bytes and one % element_bytes == 0 for one in sent)


def test_a_ring_of_equal_chunks() -> None:
    num_bytes = 64 << 20
    assert {ring_all_reduce_bytes(rank, 4, num_bytes, 4) for rank in range(4)} == {2 * 3 * num_bytes // 4}


@pytest.mark.parametrize("world_size", range(1, 18))
def test_a_broadcast_reaches_every_other_rank_once(world_size: int) -> None:
    sent = [broadcast_bytes(rank, world_size, 10) for rank in range(world_size)]
    assert sum(sent) == 10 * (world_size - 1)
    assert sent[0] == 10 * (world_size - 1).bit_length()


def test_an_all_gather() -> None:
    assert all_gather_bytes(5, 10) == 40
    assert all_gather_bytes(1, 10) == 0
