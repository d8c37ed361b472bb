"""Windows on one segment, every rank with mappings of its own, as processes have them."""

import os
from collections.abc import Callable, Iterator

import pytest

from samovar import _native
from samovar.transports.shm import create_segment

MakeWindows = Callable[..., list[_native.Window]]


@pytest.fixture
def make_windows() -> Iterator[MakeWindows]:
    """make(world_size, num_slots, bytes_per_rank) gives one window a rank."""
    descriptors = []

    def make(world_size: int, num_slots: int, bytes_per_rank: int, spin_ns: int = 0) -> list[_native.Window]:
        descriptor = create_segment(world_size)
        descriptors.append(descriptor)
        head_bytes = _native.Segment.head_bytes(world_size)
        return [
            _native.Window(
                _native.Segment(descriptor, world_size), rank, head_bytes, num_slots, bytes_per_rank, spin_ns
            )
            for rank in range(world_size)
        ]

    yield make
    for descriptor in descriptors:
        os.close(descriptor)
