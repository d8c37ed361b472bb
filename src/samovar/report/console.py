"""What the launcher shows of a run: a live bar on a terminal, plain lines elsewhere, both in the log."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import rich.text

from samovar.report import wording
from samovar.report.log import Log
from samovar.report.records import (
    Failed,
    Finished,
    Notice,
    Progress,
    Record,
    SnapshotWritten,
    Started,
    Tested,
    Valued,
)
from samovar.report.screen import Screen

_REDRAW_S = 0.1
_MAX_BAR_WIDTH = 40
_END_FILES = ("result.json", "metrics.jsonl", "snapshots")


class Console:
    """Shows records as they come; progress every `display_steps` steps where there is no terminal.

    Results go to `output`, warnings and errors to `errors`. Nothing here raises for an output that is gone.
    """

    def __init__(
        self,
        output: TextIO,
        errors: TextIO,
        *,
        log: Log | None = None,
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
            case Failed():
                self.error(wording.failure_sentence(record))

    def error(self, sentence: str) -> None:
        """Show `samovar: error: <sentence>`."""
        self._aside(f"samovar: error: {sentence}", "bold red")

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
            self._aside(f"samovar: warning: {text}", "yellow")
        else:
            self._line(text)

    def _line(self, text: str, style: str = "") -> None:
        self._screen.line(text, style)
        self._write_log(text)

    def _aside(self, text: str, style: str) -> None:
        self._screen.erase()
        self._errors.line(text, style)
        self._write_log(text)

    def _write_log(self, text: str) -> None:
        if self._log is None:
            return
        self._log.write(text)
        if self._log.failure is not None and not self._log_failure_shown:
            self._log_failure_shown = True
            self._errors.line(f"samovar: warning: {self._log.failure}; the run goes on without it", "yellow")


def bar(progress: Progress, width: int) -> rich.text.Text:
    """The live line: step, a bar of what is left of `width`, loss and speed."""
    head = wording.step_of(progress) + " "
    tail = " " + " · ".join([f"loss {wording.number(progress.loss)}", *wording.speed(progress)])
    bar_width = max(0, min(_MAX_BAR_WIDTH, width - 1 - len(head) - len(tail)))
    done = round(bar_width * min(1.0, progress.step / max(1, progress.total_steps)))
    return rich.text.Text.assemble(head, ("━" * done, "green"), ("━" * (bar_width - done), "bright_black"), tail)
