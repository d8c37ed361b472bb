"""One output stream: lines, and on a terminal one line at the bottom that is drawn again and again."""

import io
import os
from typing import TextIO

import rich.console
import rich.text

# Names from a prototxt reach the terminal: no control code among them may.
_CONTROL_CODES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_PLAIN_SIGNS = str.maketrans({"·": "|", "…": "...", "━": "="})
_START_OF_LINE = "\r\x1b[2K"


class Screen:
    """Writes to `stream`. Where that is gone (a closed pipe, a lost terminal) it goes on in silence.

    `terminal` overrides what the stream says of itself; `width` likewise.
    """

    def __init__(self, stream: TextIO, terminal: bool | None = None, width: int | None = None) -> None:
        self._stream = stream
        self._rich = rich.console.Console(
            file=stream, force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False
        )
        self._live = False
        self._gone = False
        self.is_terminal = self._rich.is_terminal and not self._rich.is_dumb_terminal

    @property
    def width(self) -> int:
        """Columns of the terminal now."""
        return self._rich.width

    def line(self, text: str, style: str = "") -> None:
        """Show a line for good, above the live one."""
        self.erase()
        self._write(self._rendered(rich.text.Text(text.translate(_CONTROL_CODES), style)) + "\n")

    def live(self, text: rich.text.Text) -> None:
        """Show `text`, cut to the width, until the next call of any method here; only on a terminal."""
        text.truncate(self.width - 1)
        self._write(_START_OF_LINE + self._rendered(text) + "\r")
        self._live = True

    def erase(self) -> None:
        """Take the live line away, so that something else can be written."""
        if self._live:
            self._write(_START_OF_LINE)
            self._live = False

    def keep(self) -> None:
        """Leave the live line where it is, for good."""
        if self._live:
            self._write("\n")
            self._live = False

    def _rendered(self, text: rich.text.Text) -> str:
        if not self.is_terminal:
            return text.plain
        with self._rich.capture() as capture:
            self._rich.print(text, end="", soft_wrap=True)
        return capture.get()

    def _write(self, text: str) -> None:
        if self._gone:
            return
        try:
            self._stream.write(self._encodable(text))
            self._stream.flush()
        except OSError:
            self._gone = True
            self._silence()

    def _encodable(self, text: str) -> str:
        encoding = self._stream.encoding or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            return text.translate(_PLAIN_SIGNS).encode(encoding, "replace").decode(encoding)
        return text

    def _silence(self) -> None:
        """Point the descriptor at nothing: or Python fails at exit, when it flushes what is left."""
        try:
            descriptor = self._stream.fileno()
        except (OSError, io.UnsupportedOperation):
            return
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, descriptor)
        os.close(nothing)
