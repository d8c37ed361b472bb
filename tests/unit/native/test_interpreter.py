"""Threads that are in native code when the interpreter ends."""

import subprocess
import sys

PROGRAM = """
import threading
from contextlib import suppress

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.core.group import Group
from samovar.transports.shm import ShmTransport, create_segment

window = ShmTransport(create_segment(2), Group(0, 2), oversubscribed=True).open_window("letters", 64, 1)


def wait() -> None:
    while True:
        with suppress(DeadlineExceeded):
            window.wait(0, 1, 1, Deadline.after(0.0005))


for _ in range(8):
    threading.Thread(target=wait, daemon=True).start()
raise SystemExit(3)
"""


def test_a_thread_that_comes_back_from_native_code_when_the_interpreter_ends_does_not_abort_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=False)
    assert (ended.returncode, ended.stderr) == (3, "")
