"""Bytes that a program writes, in any pieces, as the lines that a terminal would end up showing."""

import re
import time
from collections import deque
from collections.abc import Callable

MAX_LINE_BYTES = 1 << 16
_TRACEBACK_STARTS = (b"Traceback (most recent call last):", b"Fatal Python error:", b"  + Exception Group Traceback")
_CHAINED = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)
_MAX_ERROR_LINES = 400
_MAX_ERROR_BYTES = 1 << 18
_NUM_LAST_LINES = 20
# How torch's store begins to tell of a client that it hangs up on; a stack of its own code comes after it.
_REFUSAL = re.compile(rb"\[[WE]\d+ \S+ TCPStore\w*Backend\.cpp:\d+\] \[c10d\] (.*)")
_STACK_STARTS = (b"Exception raised from ", b"frame #")
# What comes this much later does not belong to an error any more: that error was dealt with.
_SAME_ERROR_S = 5.0


class LineSplitter:
    """Makes lines of pieces; what a carriage return lets a terminal overwrite is left out.

    A line longer than MAX_LINE_BYTES comes in several; memory is bounded by that.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends."""
        *ended, rest = (self._rest + data).split(b"\n")
        lines = [piece for line in ended for piece in _pieces(_visible(line))]
        # A last \r may be half of \r\n: nothing is overwritten until more comes.
        *full, self._rest = _pieces(_visible(rest) + (b"\r" if rest.endswith(b"\r") else b""))
        return lines + full

    @property
    def unfinished(self) -> bytes:
        """What the line that is being written shows now."""
        return _visible(self._rest)

    def close(self) -> list[bytes]:
        """The last line, where its end is missing."""
        rest, self._rest = _visible(self._rest), b""
        return [rest] if rest else []


def _visible(line: bytes) -> bytes:
    """What is left of a line when carriage returns have let its versions overwrite each other: the last one."""
    return next((version for version in reversed(line.split(b"\r")) if version), b"")


def _pieces(line: bytes) -> list[bytes]:
    """The line in pieces of at most MAX_LINE_BYTES; no UTF-8 character is divided."""
    pieces = []
    while len(line) > MAX_LINE_BYTES:
        end = MAX_LINE_BYTES
        while end > MAX_LINE_BYTES - 4 and line[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


class ErrorTail:
    """The last error in what a rank writes to stderr: from its traceback on (chained ones included).

    Where there is none, the last lines. `began_s` is when the traceback came, None without one.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lines: deque[bytes] = deque()
        self._num_bytes = 0
        self._last_s = float("-inf")
        self.began_s: float | None = None

    def feed(self, line: bytes) -> None:
        """Take the next line of stderr."""
        now_s = self._monotonic_s()
        if now_s - self._last_s > _SAME_ERROR_S:
            self.began_s = None
        self._last_s = now_s
        if line.startswith(_TRACEBACK_STARTS) and not (self.began_s is not None and self._is_chained()):
            self._lines.clear()
            self._num_bytes = 0
            self.began_s = now_s
        self._lines.append(line)
        self._num_bytes += len(line)
        limit = _NUM_LAST_LINES if self.began_s is None else _MAX_ERROR_LINES
        while len(self._lines) > limit or self._num_bytes > _MAX_ERROR_BYTES:
            self._num_bytes -= len(self._lines.popleft())

    def lines(self) -> list[bytes]:
        """The error, oldest line first; at most 400 lines and 256 KiB."""
        return list(self._lines)

    def _is_chained(self) -> bool:
        """Whether the line before last, empty ones left out, says that the next traceback belongs to this one."""
        return next((line for line in reversed(self._lines) if line.strip()), b"") in _CHAINED


class StoreRefusals:
    """Makes one line of all that a rank's store says of connections it refuses: anybody can make it say much."""

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._inside: set[int] = set()

    def shown(self, rank: int, line: bytes) -> bytes | None:
        """What to show for a rank's next line of stderr; None for nothing."""
        if refusal := _REFUSAL.match(line):
            self._inside.add(rank)
            if rank in self._told:
                return None
            self._told.add(rank)
            return (
                b"samovar: warning: the store refuses what a connection sends (%b); do strangers connect to it? "
                b"Said once" % refusal[1]
            )
        if rank in self._inside and (not line or line.startswith(_STACK_STARTS)):
            return None
        self._inside.discard(rank)
        return line
