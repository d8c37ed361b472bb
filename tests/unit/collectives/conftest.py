"""Every rank's transport on one segment."""

import os
from collections.abc import Callable, Iterator

import pytest

from samovar.core.group import Group
from samovar.transports.shm import ShmTransport, create_segment

MakeTransports = Callable[[int], list[ShmTransport]]


@pytest.fixture
def make_transports() -> Iterator[MakeTransports]:
    """make(world_size) gives every rank's transport, each with mappings of its own."""
    descriptors = []

    def make(world_size: int) -> list[ShmTransport]:
        descriptors.append(create_segment(world_size))
        groups = [Group(rank, world_size) for rank in range(world_size)]
        return [ShmTransport(descriptors[-1], group, oversubscribed=True) for group in groups]

    yield make
    for descriptor in descriptors:
        os.close(descriptor)
