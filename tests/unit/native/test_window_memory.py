"""When the memory of a window goes back to the system."""

import os

from samovar import _native
from samovar.transports.shm import create_segment


def open_window(descriptor: int, rank: int, world_size: int, num_bytes: int) -> _native.Window:
    head_bytes = _native.Segment.head_bytes(world_size)
    return _native.Window(_native.Segment(descriptor, world_size), rank, head_bytes, 2, num_bytes, 0)


def taken_bytes(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def test_memory_goes_back_when_the_last_rank_lets_go_of_a_window() -> None:
    descriptor = create_segment(2)
    before = taken_bytes(descriptor)
    first, second = (open_window(descriptor, rank, 2, 1 << 20) for rank in range(2))
    memory = first.memory(1)
    memory[:] = 7
    del second
    assert taken_bytes(descriptor) > before + (2 << 20) - 1
    assert (memory == 7).all()  # which the last rank may still read
    del first, memory
    assert taken_bytes(descriptor) == before
    os.close(descriptor)


def test_a_rank_that_opens_a_window_again_counts_once() -> None:
    descriptor = create_segment(2)
    window = open_window(descriptor, 0, 2, 4096)
    window.memory(0)[:] = 7
    for _ in range(3):
        open_window(descriptor, 1, 2, 4096)  # and lets go of it at once
    assert (window.memory(0) == 7).all()
    os.close(descriptor)


def test_a_child_process_lets_go_of_nothing() -> None:
    descriptor = create_segment(1)
    window = open_window(descriptor, 0, 1, 4096)
    window.memory(0)[:] = 7
    child = os.fork()
    if not child:
        del window
        os._exit(0)
    os.waitpid(child, 0)
    assert (window.memory(0) == 7).all()
    os.close(descriptor)
