"""The display of a run: a live bar on a terminal, plain lines elsewhere, and both in the log."""

import contextlib
import fcntl
import io
import os
import struct
import sys
import time
import weakref
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TextIO

import rich.console
import rich.text

from samovar.core.clock import local_now
from samovar.core.errors import InputError
from samovar.core.files import opened
from samovar.report import wording
from samovar.report.records import Finished, Notice, Progress, Record, SnapshotWritten, Started, Tested, Valued
from samovar.report.script_output import LineOutput

_WHOLE_FILE = (os.SEEK_SET, 0, 0, 0)


class LogFile:
    """Appends lines to `path`. If the disk gets full later, lines are lost, but the run continues: see `failure`.

    A lock of the whole file lasts as long as its writer does, and `is_written` sees it without taking it.
    """

    def __init__(self, path: Path, now: Callable[[], datetime] = local_now) -> None:
        self._now = now
        self.failure: str | None = None
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise InputError(
                f"{path} cannot be written: {error.strerror}; give a folder that can be written to with --out"
            ) from error
        with contextlib.suppress(OSError):  # a file system may have no locks
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, *_WHOLE_FILE))
        self._path = path

    @staticmethod
    def is_written(path: Path) -> bool | None:
        """Whether a LogFile is open there; None if there is no file, or its file system has no locks."""
        try:
            with opened(path) as file:
                found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, struct.pack("hhqqi", fcntl.F_WRLCK, *_WHOLE_FILE))
        except OSError:
            return None
        return struct.unpack_from("h", found) != (fcntl.F_UNLCK,)

    def write(self, text: str) -> None:
        """Add `text` (each of its lines) under the present time."""
        stamp = self._now().isoformat(timespec="milliseconds")
        lines = "".join(f"{stamp} {line}\n" for line in text.splitlines())
        try:
            self._file.write(lines.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self.failure = f"{self._path} cannot be written: {error.strerror}"

    def close(self) -> None:
        self._file.close()


# Names from a prototxt reach the terminal: no control code among them may.
_CONTROL_CODES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_PLAIN_SIGNS = str.maketrans({"·": "|", "…": "...", "━": "="})
_START_OF_LINE = "\r\x1b[2K"


class Screen:
    """Writes to `stream`. If the stream is gone (a closed pipe, a lost terminal), it continues in silence.

    No call waits for a pipe or terminal that takes nothing now (Ctrl-S, `| less`): up to 1 MiB of lines is kept, and
    more is left out. The end of the screen waits for the kept ones. `terminal` and `width` replace what the stream says
    of itself.
    """

    def __init__(self, stream: TextIO, terminal: bool | None = None, width: int | None = None) -> None:
        self._stream = stream
        # Not as rich finds it, for which FORCE_COLOR makes a file a terminal.
        terminal = _is_terminal(stream) if terminal is None else terminal
        # It only renders: rich writes to a terminal even while it captures, and fails if that one is lost.
        self._rich = rich.console.Console(
            file=io.StringIO(), force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False
        )
        self._live = False
        self._gone = False
        self._num_left_out = 0
        self._port: LineOutput | None = None
        if _leads_to_its_descriptor(stream):
            self._port = LineOutput(stream.fileno())
            weakref.finalize(self, _take_rest, self._port, stream)
        self.is_terminal = self._rich.is_terminal and not self._rich.is_dumb_terminal

    @property
    def width(self) -> int:
        """Columns of the terminal now."""
        return self._rich.width

    def line(self, text: str, style: str = "", lead: str = "") -> None:
        """Show a line for good, above the live one; `style` is that of `lead`, or of all if there is none."""
        self.erase()
        shown = rich.text.Text((lead + text).translate(_CONTROL_CODES))
        shown.stylize(style, 0, len(lead) or None)
        self._write(self._rendered(shown, wrap=True) + "\n")

    def live(self, text: rich.text.Text) -> None:
        """Show `text`, cut to the width, until the next call of any method; only on a terminal."""
        if self._port is not None and self._port.is_behind:
            return
        text.truncate(self.width - 1)
        self._write(_START_OF_LINE + self._rendered(text) + "\r")
        self._live = True

    def erase(self) -> None:
        """Remove the live line, so that other lines can be written."""
        if self._live:
            self._write(_START_OF_LINE)
            self._live = False

    def keep(self) -> None:
        """Leave the live line where it is, for good."""
        if self._live:
            self._write("\n")
            self._live = False

    def _rendered(self, text: rich.text.Text, *, wrap: bool = False) -> str:
        if not self.is_terminal:
            return text.plain
        with self._rich.capture() as capture:
            self._rich.print(text, end="", soft_wrap=not wrap)
        return capture.get()

    def _write(self, text: str) -> None:
        if self._gone:
            return
        try:
            if self._port is None:
                self._stream.write(self._encodable(text))
                self._stream.flush()
            else:
                self._stream.flush()  # first what a program has printed itself
                self._send(self._port, text)
        except (OSError, ValueError):  # it is closed, or what it leads to is
            self._gone = True

    def _send(self, port: LineOutput, text: str) -> None:
        port.pump()
        if port.is_blocked:
            self._num_left_out += text.count("\n")
            return
        if self._num_left_out:
            text = f"(lines left out while nobody took them: {self._num_left_out:,})\n{text}"
            self._num_left_out = 0
        port.write(self._encodable(text).encode(self._stream.encoding))

    def _encodable(self, text: str) -> str:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"  # a program's own stream may not tell
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            return text.translate(_PLAIN_SIGNS).encode(encoding, "replace").decode(encoding)
        return text


def _take_rest(port: LineOutput, stream: TextIO) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        if not stream.closed:
            port.pump(wait=True)


def _leads_to_its_descriptor(stream: TextIO) -> bool:
    """Not so for a notebook's stream, which has one as well."""
    if type(stream) is not io.TextIOWrapper or stream.closed:
        return False
    return isinstance(getattr(stream.buffer, "raw", stream.buffer), io.FileIO)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # a program's own stream, or a closed one
        return False


def show_error(sentence: str) -> None:
    """The last line of a command that failed, on stderr."""
    Screen(sys.stderr).line(sentence, "bold red")


_WARNING = "samovar: warning: "
_REDRAW_S = 0.1
_MAX_BAR_WIDTH = 40
_END_FILES = ("result.json", "metrics.jsonl", "snapshots")


class Console:
    """Shows records as they come; without a terminal, progress every `display_steps` steps.

    Results go to `output`, warnings and errors to `errors`. No method raises if an output is gone.
    """

    def __init__(
        self,
        output: TextIO,
        errors: TextIO,
        *,
        log: LogFile | None = None,
        display_steps: int = 1,
        terminal: bool | None = None,
        width: int | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen = Screen(output, terminal, width)
        self._errors = Screen(errors, terminal, width)
        self._log = log
        self._log_failure_shown = False
        self._display_steps = max(1, display_steps)
        self._monotonic_s = monotonic_s
        self._started: Started | None = None
        self._shown_step = 0
        self._drawn_at_s = float("-inf")

    def show(self, record: Record) -> None:
        """Show one record."""
        match record:
            case Started():
                self._start(record)
            case Progress():
                self._progress(record)
            case Tested():
                self._line(wording.test_line(record))
            case Valued():
                for line in record.lines:
                    self._line(line.text, "dim")
            case SnapshotWritten():
                self._line(f"snapshot of step {record.step} in {record.path}", "dim")
            case Notice():
                self._notice(record.level, record.text)
            case Finished():
                self._finish(record)

    def failed(self, sentence: str) -> None:
        """The run ends by this error, which the caller shows. Remove the bar, and log the sentence."""
        self._screen.erase()
        self._write_log(f"samovar: error: {sentence}")

    def close(self) -> None:
        """Leave the terminal tidy; the last bar stays."""
        self._screen.keep()

    def _start(self, started: Started) -> None:
        self._started = started
        self._shown_step = started.start_step
        for text, style in zip(wording.start_lines(started), ["bold", "", "dim", "dim"], strict=False):
            self._line(text, style)

    def _progress(self, progress: Progress) -> None:
        last = progress.step >= progress.total_steps
        due = progress.step // self._display_steps > self._shown_step // self._display_steps
        if due or last:
            self._shown_step = progress.step
            self._write_log(wording.progress_line(progress))
        if self._screen.is_terminal:
            self._draw(progress, last)
        elif due or last:
            self._screen.line(wording.progress_line(progress))

    def _draw(self, progress: Progress, last: bool) -> None:
        now_s = self._monotonic_s()
        if now_s - self._drawn_at_s < _REDRAW_S and not last:
            return
        self._drawn_at_s = now_s
        self._screen.live(bar(progress, self._screen.width))
        if last:
            self._screen.keep()

    def _finish(self, finished: Finished) -> None:
        self._screen.keep()
        folder = self._started.run_folder if self._started is not None else None
        files = [name for name in _END_FILES if folder is not None and (Path(folder) / name).exists()]
        for text, style in zip(wording.end_lines(finished.result, folder, files), ["bold", "dim"], strict=False):
            self._line(text, style)

    def _notice(self, level: str, text: str) -> None:
        if level == "warning":
            self._aside(text)
        else:
            self._line(text)

    def _line(self, text: str, style: str = "") -> None:
        self._screen.line(text, style)
        self._write_log(text)

    def _aside(self, text: str) -> None:
        self._screen.erase()
        self._errors.line(text, "yellow", _WARNING)
        self._write_log(_WARNING + text)

    def _write_log(self, text: str) -> None:
        if self._log is None:
            return
        self._log.write(text)
        if self._log.failure is not None and not self._log_failure_shown:
            self._log_failure_shown = True
            self._errors.line(f"{self._log.failure}; the run continues without it", "yellow", _WARNING)


def bar(progress: Progress, width: int) -> rich.text.Text:
    """The live line: step, a bar in the rest of `width`, loss and speed."""
    head = wording.step_of(progress) + " "
    tail = " " + " · ".join([f"loss {wording.number(progress.loss)}", *wording.speed(progress)])
    bar_width = max(0, min(_MAX_BAR_WIDTH, width - 1 - len(head) - len(tail)))
    done = round(bar_width * min(1.0, progress.step / max(1, progress.total_steps)))
    return rich.text.Text.assemble(head, ("━" * done, "green"), ("━" * (bar_width - done), "bright_black"), tail)
