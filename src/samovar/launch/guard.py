"""A small process that outlives its launcher by a moment, to kill the processes that a killed launcher left.

The kernel kills ranks with their launcher (see launch/script_rank.py), but not the processes of ranks, such as the
workers of a data loader. The launcher tells the guard each rank's process group over a pipe. When the pipe ends and
groups are left, only the guard can end them. Run as a program: `python -I -S guard.py`.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress


class Guard:
    """The launcher's end. Use as a context manager, inside which all groups end; ranks must not inherit the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Kill this process group if the launcher ends without a word."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group has ended; another process may get its number soon."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # a guard that was killed guards no more; the run need not end for that
            os.write(self._process.stdin.fileno(), line.encode())

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *_exception: object) -> None:
        assert self._process.stdin is not None
        self._process.kill()  # before its pipe ends, which would be the end of the launcher
        self._process.wait()
        self._process.stdin.close()


def main() -> None:
    """Keep the list until the pipe ends, then kill all on it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
