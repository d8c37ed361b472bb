"""Ranks of one process: a thread each, on one segment of shared memory."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from samovar.core.group import Group
from samovar.transports.shm import ShmTransport, create_segment

Result = TypeVar("Result")


def on_threads(world_size: int, work: Callable[[ShmTransport], Result]) -> list[Result]:
    """The results of `work` on all ranks, in their order."""
    descriptor = create_segment(world_size)
    transports = [ShmTransport(descriptor, Group(rank, world_size), oversubscribed=True) for rank in range(world_size)]
    try:
        with ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(work, transports))
    finally:
        for transport in transports:
            transport.close()
        os.close(descriptor)
