"""The output of several ranks as one: each line with its rank, and a line of several ranks only once.

Bytes come in any pieces, and become the lines that a terminal would show in the end. Stdout goes to stdout and stderr
to stderr, with unchanged bytes.
"""

import errno
import hashlib
import os
import re
import select
import signal
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from samovar.report.wording import ranges

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
    """Makes lines of pieces, without text that a carriage return lets a terminal overwrite.

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
        """The unfinished line as it is now."""
        return _visible(self._rest)

    def close(self) -> list[bytes]:
        """The last line, if its end is missing."""
        rest, self._rest = _visible(self._rest), b""
        return [rest] if rest else []


def _visible(line: bytes) -> bytes:
    """The last version of a line, after carriage returns."""
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
    """The last error in a rank's stderr: from its traceback on (including chained ones), else the last lines.

    `began_s` is when the traceback came, None without one.
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
        """Whether the line before last, without empty ones, says that the next traceback belongs to this one."""
        return next((line for line in reversed(self._lines) if line.strip()), b"") in _CHAINED


class StoreRefusals:
    """Makes one line of all that a rank's store says of refused connections: any program can make it say much."""

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._inside: set[int] = set()

    def shown(self, rank: int, line: bytes) -> bytes | None:
        """The text to show for a rank's next line of stderr; None for nothing."""
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


STDOUT, STDERR = 1, 2
_MAX_BACKLOG_BYTES = 1 << 20
_MAX_KNOWN_LINES = 10_000
_MAX_REMEMBERED_LINES = 400
_REDRAW_S = 0.1
_DEFAULT_COLUMNS = 80
_ERASE = b"\r\x1b[2K"
# A rank whose traceback came before that of the rank that ended first gets this long to end as well.
_SLOWER_TO_END_S, _RECENT_S = 3.0, 30.0


class Doubles:
    """Finds new lines: a rank's k-th copy of a line is new, unless another rank has printed k already.

    Remembers the last `max_lines` lines, with 16 bytes and a count per rank each.
    """

    def __init__(self, max_lines: int = _MAX_KNOWN_LINES) -> None:
        self._max_lines = max_lines
        self._counts: OrderedDict[bytes, dict[int, int]] = OrderedDict()

    def is_new(self, rank: int, line: bytes) -> bool:
        """Count this copy; return whether to show it."""
        key = hashlib.blake2b(line, digest_size=16).digest()
        counts = self._counts.setdefault(key, {})
        self._counts.move_to_end(key)
        shown = max(counts.values(), default=0)
        counts[rank] = counts.get(rank, 0) + 1
        if len(self._counts) > self._max_lines:
            self._counts.popitem(last=False)
        return counts[rank] > shown


class LineOutput:
    """A descriptor for lines, which waits for a slow reader only if asked to.

    It `is_behind` if it has not taken everything. If it is gone, or its disk is full, lines are dropped.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._pending = bytearray()
        self._gone = False
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    @property
    def is_behind(self) -> bool:
        return bool(self._pending)

    @property
    def is_blocked(self) -> bool:
        return len(self._pending) > _MAX_BACKLOG_BYTES

    def write(self, data: bytes) -> None:
        """Write as much as the reader takes now; keep the rest."""
        if not self._gone:
            self._pending += data
            self.pump()

    def pump(self, wait: bool = False) -> None:
        """Write as much as possible; all of it with `wait`."""
        while self._pending and self._poll.poll(None if wait else 0):
            try:
                # Up to PIPE_BUF bytes a writable pipe takes without blocking.
                written = os.write(self.descriptor, self._pending[: select.PIPE_BUF])
            except BlockingIOError:
                if not wait:
                    return
                continue
            except OSError as error:
                self._gone = error.errno != errno.ENOSPC  # a disk may have room again
                self._pending.clear()
                return
            del self._pending[:written]


class ScriptOutput:
    """Shows the output of ranks, and keeps the lines that say which rank failed first, and why."""

    def __init__(
        self,
        stdout: int = STDOUT,
        stderr: int = STDERR,
        *,
        with_doubles: bool = False,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ports = {STDOUT: LineOutput(stdout), STDERR: LineOutput(stderr)}
        self._doubles = {STDOUT: Doubles(), STDERR: Doubles()}
        self._with_doubles = with_doubles
        self._monotonic_s = monotonic_s
        self._splitters: dict[tuple[int, int], LineSplitter] = {}
        self._errors: dict[int, ErrorTail] = {}
        self._last_on_stderr: deque[bytes] = deque(maxlen=_MAX_REMEMBERED_LINES)
        self._live = LiveLine(monotonic_s)
        self._refusals = StoreRefusals()

    def take(self, rank: int, stream: int, data: bytes) -> None:
        """Show the complete lines of `rank`'s stdout (1) or stderr (2)."""
        splitter = self._splitters.setdefault((rank, stream), LineSplitter())
        self._show(rank, stream, splitter.feed(data))
        if splitter.unfinished and rank == min(number for number, _ in self._splitters):
            self._live.draw(self._ports[stream], _prefixed(rank, splitter.unfinished))

    def flush_lines(self) -> None:
        """Show last lines without an end."""
        for (rank, stream), splitter in sorted(self._splitters.items()):
            self._show(rank, stream, splitter.close())

    def forget_errors(self) -> None:
        """The ranks are about to be started again."""
        self._errors.clear()

    def close(self) -> None:
        """Wait until the readers have taken everything."""
        self._live.erase()
        for port in self._ports.values():
            port.pump(wait=True)

    def blocked(self) -> Sequence[int]:
        """Descriptors whose readers are so slow that ranks must wait for them."""
        return [port.descriptor for port in self._ports.values() if port.is_blocked]

    def pump(self) -> None:
        """Write as much as readers take by now."""
        for port in self._ports.values():
            port.pump()

    def say(self, sentence: str) -> None:
        """A line of the launcher's own, on stderr."""
        self._write(STDERR, sentence.encode(errors="backslashreplace"))

    def await_others_s(self, rank: int, ended_s: float) -> float:
        """How long to wait, when `rank` failed first, for another that met its error earlier and ends more slowly."""
        began_s = self.error_began_s(rank, ended_s)
        others = [self.error_began_s(other, ended_s) for other in self._errors if other != rank]
        return _SLOWER_TO_END_S if any(ended_s - _RECENT_S < other_s < began_s for other_s in others) else 0.0

    def error_began_s(self, rank: int, ended_s: float) -> float:
        """When a rank's last traceback came, or else its end."""
        tail = self._errors.get(rank)
        return ended_s if tail is None or tail.began_s is None else tail.began_s

    def show_error(self, rank: int) -> None:
        """Show the last error of `rank` in full, unless it is the last output already."""
        lines = [_prefixed(rank, line) for line in self._errors[rank].lines()] if rank in self._errors else []
        if lines and list(self._last_on_stderr)[-len(lines) :] != lines:
            self._write(STDERR, f"samovar: error of rank {rank}:".encode())
            for line in lines:
                self._write(STDERR, line)

    def _show(self, rank: int, stream: int, lines: list[bytes]) -> None:
        for line in self._sifted(rank, lines) if stream == STDERR else lines:
            if self._doubles[stream].is_new(rank, line) or self._with_doubles:
                self._write(stream, _prefixed(rank, line))

    def _sifted(self, rank: int, lines: list[bytes]) -> list[bytes]:
        """The lines of a rank's stderr to show; they are kept for its error too."""
        sifted = [line for line in (self._refusals.shown(rank, line) for line in lines) if line is not None]
        for line in sifted:
            self._errors.setdefault(rank, ErrorTail(self._monotonic_s)).feed(line)
        return sifted

    def _write(self, stream: int, line: bytes) -> None:
        self._live.erase()
        self._ports[stream].write(line + b"\n")
        if stream == STDERR:
            self._last_on_stderr.append(line)


class LiveLine:
    """The unfinished line of the first rank, such as a progress bar, below all others on a terminal."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._port: LineOutput | None = None
        self._drawn_s = float("-inf")

    def draw(self, port: LineOutput, line: bytes) -> None:
        """Show the line as it is now, at most ten times a second."""
        now_s = self._monotonic_s()
        if not os.isatty(port.descriptor) or now_s - self._drawn_s < _REDRAW_S:
            return
        self.erase()
        self._drawn_s = now_s
        columns = os.get_terminal_size(port.descriptor).columns or _DEFAULT_COLUMNS
        self._port = port
        port.write(line.decode(errors="replace")[: columns - 1].encode())

    def erase(self) -> None:
        """Make room for a whole line."""
        port, self._port = self._port, None
        if port is not None:
            port.write(_ERASE)


def _prefixed(rank: int, line: bytes) -> bytes:
    return b"[%d] %b" % (rank, line)


class End(Protocol):
    """How a rank ended: its exit code, minus a signal's number, or None if the launcher ended it."""

    @property
    def rank(self) -> int: ...

    @property
    def process_id(self) -> int: ...

    @property
    def return_code(self) -> int | None: ...

    @property
    def seconds(self) -> float: ...


def end_sentence(first: End, ends: Sequence[End], host: str, passed_on: Sequence[int]) -> str:
    """The first failure: rank, host, way and time of the end, earlier signals, and the ends of the others."""
    if passed_on and {end.return_code for end in ends} <= {-number for number in passed_on}:
        return f"all ranks were stopped by {signal_names(passed_on)}"
    asked = f", {signal_names(passed_on)} having been passed on" if passed_on else ""
    sentence = f"rank {first.rank} (on {host}, process {first.process_id}) {how(first.return_code)}"
    return f"{sentence} after {first.seconds:.1f} s{asked}{_others(first, ends)}"


def how(return_code: int | None) -> str:
    """The way a process ended, as text. No signal kills it as SIGSTOP: that is one which was stopped for too long."""
    if return_code is None:
        return "was ended"
    if return_code == -signal.SIGSTOP:
        return "was stopped by a signal for too long, and was ended"
    if return_code >= 0:
        return f"ended with exit code {return_code}"
    hint = ", perhaps by the system for lack of memory," if -return_code == signal.SIGKILL else ""
    return f"was killed by signal {-return_code} ({signal_names([-return_code])}){hint}"


def signal_names(numbers: Sequence[int]) -> str:
    """SIGINT, SIGTERM; a number if there is no name."""
    names = {known.value: known.name for known in signal.Signals}
    return ", ".join(dict.fromkeys(names.get(number, str(number)) for number in numbers))


def _others(first: End, ends: Sequence[End]) -> str:
    others = [end for end in ends if end.rank != first.rank]
    parts = {
        "failed too": [end.rank for end in others if end.return_code],
        "had ended well": [end.rank for end in others if end.return_code == 0],
        "{was} ended with it": [end.rank for end in others if end.return_code is None],
    }
    return "".join(f"; {_ranks(ranks, what)}" for what, ranks in parts.items() if ranks)


def _ranks(ranks: Sequence[int], what: str) -> str:
    """rank 3 was ended with it; ranks 0 to 2 and 5 were ended with it."""
    what = what.replace("{was}", "was" if len(ranks) == 1 else "were")
    return f"rank{'' if len(ranks) == 1 else 's'} {ranges(ranks)} {what}"
