"""Segments that end with their test, keys, and stores."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samovar.core.group import Group
from samovar.transports.keys import Key, make_key, read_key
from samovar.transports.shm import ShmTransport, create_segment
from tests.unit.transports.three_hosts import serve

MakeSegment = Callable[[int], int]
MakeTransports = Callable[[int], list[ShmTransport]]


@pytest.fixture
def key(tmp_path: Path) -> Key:
    make_key(tmp_path / "key.pem")
    return read_key(tmp_path / "key.pem")


@pytest.fixture
def make_segment() -> Iterator[MakeSegment]:
    """make(world_size) gives a descriptor."""
    descriptors = []

    def make(world_size: int) -> int:
        descriptors.append(create_segment(world_size))
        return descriptors[-1]

    yield make
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def make_transports(make_segment: MakeSegment) -> MakeTransports:
    """make(world_size) gives every rank's transport, each with mappings of its own."""

    def make(world_size: int) -> list[ShmTransport]:
        descriptor = make_segment(world_size)
        return [ShmTransport(descriptor, Group(r, world_size), oversubscribed=True) for r in range(world_size)]

    return make


@pytest.fixture(scope="module")
def first_store() -> None:
    """A process's first store opens a pipe that libuv keeps: before the leak check takes stock."""
    serve()
