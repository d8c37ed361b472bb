"""The thread that runs programs in the background: all at once, each in order, gone when its owner is."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from samovar import _native
from samovar.core.clock import Deadline

NUM_SLOTS = 8
NUM_BYTES = 4096
TIMEOUT_S = 60.0


class Pair:
    """Two ranks in one process: windows of one segment, and a progress thread for each."""

    def __init__(self, descriptor: int) -> None:
        segments = [_native.Segment(descriptor, 2) for _ in range(2)]
        head = _native.Segment.head_bytes(2)
        self.windows = [_native.Window(segments[r], r, head, NUM_SLOTS, NUM_BYTES, 0) for r in range(2)]
        self.earlier_tasks = set(Path("/proc/self/task").iterdir())
        self.threads = [_native.ProgressThread(segments[r], r, 0) for r in range(2)]

    def floats(self, rank: int, start: int, count: int) -> np.ndarray:
        return self.windows[rank].memory(rank)[4 * start : 4 * (start + count)].view(np.float32)

    def programs(self, slot: int, start: int) -> list[_native.Program]:
        """Each rank puts 8 numbers beside the other's, and adds what it got to its own."""
        made = []
        for rank, window in enumerate(self.windows):
            program = _native.Program(window)
            own, place = self.floats(rank, start, 8), window.memory(1 - rank)[4 * start + 32 : 4 * start + 64]
            program.add_put(1 - rank, slot, place.view(np.float32), own)
            program.add_wait(slot)
            program.add_combine([own], [own, self.floats(rank, start + 8, 8)])
            made.append(program)
        return made


@pytest.fixture
def pair() -> Iterator[Pair]:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    yield Pair(descriptor)
    os.close(descriptor)


def test_programs_run_at_once_whatever_order_they_come_in(pair: Pair) -> None:
    programs = [pair.programs(slot, 16 * slot) for slot in range(4)]
    for run in range(1, 4):
        for slot in range(4):
            for rank in range(2):
                pair.floats(rank, 16 * slot, 8)[:] = 10 * run + slot + rank
        for slot in range(4):
            pair.threads[0].submit(programs[slot][0])
            pair.threads[1].submit(programs[3 - slot][1])
        for slot, rank in [(slot, rank) for slot in range(4) for rank in range(2)]:
            assert pair.threads[rank].wait(programs[slot][rank], TIMEOUT_S)
            assert (pair.floats(rank, 16 * slot, 8) == 2 * (10 * run + slot) + 1).all()
            assert programs[slot][rank].steps == 1


def test_a_run_that_lacks_its_peer_ends_by_its_deadline_and_can_still_complete(pair: Pair) -> None:
    ours, theirs = pair.programs(0, 0)
    pair.threads[0].submit(ours)
    deadline = Deadline.after(TIMEOUT_S)
    while ours.position < 1:
        assert not deadline.passed()
    assert not pair.threads[0].wait(ours, 0.05)
    assert ours.position == 1, "it waits for the peer's notification"
    pair.threads[1].submit(theirs)
    assert pair.threads[0].wait(ours, TIMEOUT_S)
    assert pair.threads[1].wait(theirs, TIMEOUT_S)


def test_a_running_program_cannot_be_submitted_again(pair: Pair) -> None:
    ours, _ = pair.programs(0, 0)
    pair.threads[0].submit(ours)
    with pytest.raises(RuntimeError, match="last run is not complete"):
        pair.threads[0].submit(ours)


def test_the_thread_ends_with_its_owner_also_in_the_middle_of_a_run(pair: Pair) -> None:
    ours, _ = pair.programs(0, 0)
    pair.threads[0].submit(ours)
    started = set(Path("/proc/self/task").iterdir()) - pair.earlier_tasks
    assert len(started) == 2
    pair.threads.clear()
    gc.collect()
    deadline = Deadline.after(TIMEOUT_S)
    while any(task.exists() for task in started):  # a joined thread may be listed for a moment yet
        assert not deadline.passed()
