"""The progress thread beside Python: what it leaves behind, and how it ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from samovar import _native
from samovar.core.clock import Deadline
from samovar.transports.shm import create_segment

TIMEOUT_S = 30.0
RUN = 1 << 24


class Lonely:
    """A segment of one rank, a window with four slots, and a progress thread."""

    def __init__(self) -> None:
        self.descriptor = create_segment(1)
        segment = _native.Segment(self.descriptor, 1)
        self.window = _native.Window(segment, 0, segment.head_bytes(1), 4, 64, 0)
        self.earlier_tasks = set(Path("/proc/self/task").iterdir())
        self.progress = _native.ProgressThread(segment, 0, 0)

    def program(self, *operations: tuple[str, int]) -> _native.Program:
        """Of ("wait", slot) and ("notify", slot)."""
        program = _native.Program(self.window)
        for kind, slot in operations:
            if kind == "wait":
                program.add_wait(slot)
            else:
                program.add_notify(0, slot)
        return program


@pytest.fixture
def rank() -> Iterator[Lonely]:
    lonely = Lonely()
    yield lonely
    os.close(lonely.descriptor)


def test_programs_run_at_once_and_wait_for_each_other(rank: Lonely) -> None:
    """The first cannot end before the second, nor the second without the first's notification."""
    first = rank.program(("notify", 0), ("wait", 1))
    second = rank.program(("wait", 0), ("notify", 1))
    for run in range(1, 101):
        rank.progress.submit(first)
        rank.progress.submit(second)
        assert rank.progress.wait(first, TIMEOUT_S)
        assert rank.progress.wait(second, TIMEOUT_S)
        assert (first.steps, second.steps) == (2, 2)
        assert rank.window.wait(1, 1, 0.0) == run * RUN + 2


def test_what_it_computed_is_there_when_the_wait_is_over(rank: Lonely) -> None:
    destination, source = np.zeros(50_000), np.zeros(50_000)
    program = rank.program(("wait", 0))
    program.add_combine([destination], [source, source])
    for run in range(1, 21):
        rank.progress.submit(program)
        source[:] = run
        rank.window.notify(0, 0, run * RUN)
        assert rank.progress.wait(program, TIMEOUT_S)
        assert (destination == 2 * run).all()


def test_its_end_leaves_no_thread_and_the_rest_of_a_run_undone(rank: Lonely) -> None:
    program = rank.program(("wait", 0), ("notify", 1))
    rank.progress.submit(program)
    started = set(Path("/proc/self/task").iterdir()) - rank.earlier_tasks
    assert len(started) == 1
    del rank.progress
    deadline = Deadline.after(TIMEOUT_S)
    while any(task.exists() for task in started):  # a joined thread may be listed for a moment yet
        assert not deadline.passed()
    rank.window.notify(0, 0, RUN)
    assert rank.window.wait(1, 1, 0.01) is None


MANY_ENDS = """
import numpy as np
from samovar import _native
from samovar.transports.shm import create_segment

segment = _native.Segment(create_segment(1), 1)
window = _native.Window(segment, 0, segment.head_bytes(1), 2, 0, 0)
for turn in range(300):
    progress = _native.ProgressThread(segment, 0, 0)
    programs = []
    for _ in range(3):
        program = _native.Program(window)
        program.add_combine([np.zeros(50_000)], [np.zeros(50_000)])
        programs.append(program)
        progress.submit(program)
    if turn % 3 > 0:
        assert progress.wait(programs[0], 200.0)
    if turn % 3 > 1:
        del program, programs
    del progress
progress = _native.ProgressThread(segment, 0, 0)
for slot in range(2):
    program = _native.Program(window)
    if slot:
        program.add_wait(slot)
    progress.submit(program)
print("ends with a thread at work")
"""


def test_it_ends_in_the_middle_of_everything_and_with_the_interpreter() -> None:
    """The thread must not need Python's lock while somebody who holds it waits for the thread's end."""
    ended = subprocess.run([sys.executable, "-c", MANY_ENDS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends with a thread at work\n", "")


def test_a_program_that_ends_withdraws_and_the_others_go_on(rank: Lonely) -> None:
    ended, stays = rank.program(("wait", 0)), rank.program(("wait", 1), ("notify", 2))
    rank.progress.submit(ended)
    rank.progress.submit(stays)
    del ended
    rank.window.notify(0, 1, RUN)
    assert rank.progress.wait(stays, TIMEOUT_S)
    assert rank.window.wait(2, 1, TIMEOUT_S) is not None
