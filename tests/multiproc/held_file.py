"""A file that waits for a test's word before others can open it."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class HeldFile:
    """A write lease on a file: who opens it waits until it is let go, or 45 s, as Linux is set."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits to open it."""
        return fcntl.fcntl(self._descriptor, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def let_go(self) -> None:
        fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)


@contextmanager
def held(path: Path) -> Iterator[HeldFile]:
    """`path` as a held file; let go at the end. For the main thread: the kernel tells by a signal that it is wanted."""
    descriptor, handler = os.open(path, os.O_RDWR), signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        file = HeldFile(descriptor)
        yield file
        with suppress(OSError):
            file.let_go()
    finally:
        os.close(descriptor)  # and with it the lease
        signal.signal(signal.SIGIO, handler)
