"""The child of a fork has its parent's objects, but not their threads, nor their place in the center."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from samovar import _native
from samovar.box.mapped import create_center
from samovar.transports.shm import create_segment

SIZE, END_S = 1000, 60


def attached() -> _native.Center:
    descriptor = create_center(SIZE, 2)
    center = _native.Center(descriptor)
    os.close(descriptor)
    center.attach(0, 1)
    return center


def value_of(center: _native.Center) -> tuple[float, int]:
    found, versions = np.empty(SIZE, np.float32), np.zeros(1, np.int64)
    assert center.read(0, found, False, versions, 1.0)
    return float(found[0]), int(versions[0])


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a forked process that does this; one that hangs is ended by its alarm."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(END_S)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def center_with_a_thread() -> _native.Center:
    center = attached()
    assert center.wait(center.submit(1, np.ones(SIZE, np.float32), 0.0), np.zeros(1, np.int64), 30.0)
    return center


@pytest.mark.parametrize("make", [center_with_a_thread, lambda: _native.IdleThreads(2)])
def test_a_child_lets_go_of_a_thread_that_it_does_not_have(make: Callable[[], Any]) -> None:
    made = [make()]
    assert in_child(made.clear) == 0
    made.clear()


def test_progress_in_a_child() -> None:
    descriptor = create_segment(1)
    made = [_native.ProgressThread(_native.Segment(descriptor, 1), 0, 0)]
    assert in_child(made.clear) == 0
    made.clear()
    os.close(descriptor)


def test_a_child_does_not_change_the_center_as_its_parent() -> None:
    center, ones, versions = attached(), np.ones(SIZE, np.float32), np.zeros(1, np.int64)
    assert center.accumulate(0, 1, ones, 0.0, versions, 1.0)

    def changes() -> None:
        for change in (
            lambda: center.accumulate(0, 2, ones, 0.0, versions, 1.0),
            lambda: center.submit(2, ones, 0.0),
            lambda: center.wait(1, versions, 1.0),
        ):
            with pytest.raises(_native.Fenced):
                change()
        center.close()

    assert in_child(changes) == 0
    assert center.accumulate(0, 2, ones, 0.0, versions, 1.0)
    assert value_of(center) == (2.0, 2)
    center.close()


NO_THREAD = """
import resource
from pathlib import Path
import numpy as np
from samovar import _native
from samovar.box.mapped import create_center
center, ones, versions = _native.Center(create_center(1000, 2)), np.ones(1000, np.float32), np.zeros(1, np.int64)
center.attach(0, 1)
limits = resource.getrlimit(resource.RLIMIT_AS)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), limits[1]))
try:
    center.submit(1, 7 * ones, 0.0)
except OSError as error:
    print(error.errno)
resource.setrlimit(resource.RLIMIT_AS, limits)
print(center.wait(center.submit(2, ones, 0.0), versions, 30.0), center.read(0, ones, False, versions, 1.0), ones[0])
"""


def test_an_update_for_which_there_is_no_thread_is_not_made_later() -> None:
    """A process of its own: others keep the stacks of threads that have ended."""
    ended = subprocess.run([sys.executable, "-c", NO_THREAD], capture_output=True, text=True, timeout=200, check=True)
    assert ended.stdout.split() == [str(errno.EAGAIN), "True", "True", "1.0"]
