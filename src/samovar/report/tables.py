"""The answer of a command: facts and tables, divided to fit a terminal, aligned lines elsewhere; or a JSON document."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import rich.box
import rich.console
import rich.table
import rich.text

from samovar.core.plain import json_document
from samovar.report.console import Console
from samovar.report.records import Record

Row = Sequence[str]

_GAP = 2  # spaces between columns
_INDENT = "  "


class _Printer(rich.console.Console):
    def on_broken_pipe(self) -> None:
        """Continue in silence: its reader, such as `head`, has what it wants."""
        with suppress(SystemExit):
            super().on_broken_pipe()


def printer() -> rich.console.Console:
    """Writes to stdout, and takes text as it is. It is `quiet` once its reader has gone."""
    is_terminal = sys.stdout.isatty()  # not as rich finds it, for which FORCE_COLOR makes a file a terminal
    return _Printer(file=sys.stdout, force_terminal=is_terminal, highlight=False, markup=False, emoji=False)


def show_lines(console: rich.console.Console, *lines: str, style: str = "") -> None:
    """Lines, broken between words on a terminal."""
    for line in lines:
        console.print(rich.text.Text(printable(line), style), soft_wrap=not console.is_terminal)


def show_facts(console: rich.console.Console, title: str, facts: Sequence[tuple[str, str]]) -> None:
    """A title, and a name and a value on each line; a long value continues below itself."""
    show_lines(console, title, style="bold")
    width = max((len(name) for name, _ in facts), default=0)
    if not console.is_terminal:
        show_lines(console, *(f"{_INDENT}{name:<{width}}  {value}" for name, value in facts))
        return
    grid = rich.table.Table.grid(padding=(0, _GAP, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(f"{_INDENT}{name}", printable(value))
    console.print(grid)


def show_table(
    console: rich.console.Console, title: str, columns: Row, rows: Sequence[Row], right: Sequence[bool], total: int = 0
) -> None:
    """A table whose columns are aligned to the `right` or not; the last `total` rows stand apart.

    On a terminal that is too narrow it comes in several parts, each with the first column.
    """
    cells = [columns, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
    if not console.is_terminal:
        lines = [_aligned(row, widths, right) for row in cells]
        show_lines(console, title, *(f"{_INDENT}{line}" for line in lines))
        return
    show_lines(console, title, style="bold")
    for number, part in enumerate(_parts(widths, console.width)):
        if number:
            console.print()
        console.print(_table([[row[column] for column in part] for row in cells], [right[c] for c in part], total))


def printable(line: str) -> str:
    """Names come from files: a control character is shown as an escape."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def _aligned(row: Row, widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = zip(row, widths, right, strict=True)
    return (" " * _GAP).join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in cells).rstrip()


def _parts(widths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Columns that fit side by side, the first one always among them."""
    part, used = [0], widths[0]
    for column, width in enumerate(widths[1:], 1):
        if len(part) > 1 and used + _GAP + width > most:
            yield part
            part, used = [0], widths[0]
        part.append(column)
        used += _GAP + width
    yield part


def _table(cells: Sequence[Row], right: Sequence[bool], total: int) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP - 1, 0, 0), show_edge=False)
    for name, is_right in zip(cells[0], right, strict=True):
        table.add_column(name, justify="right" if is_right else "left", overflow="fold")
    for number, row in enumerate(cells[1:], 1):
        table.add_row(*row, end_section=total > 0 and number == len(cells) - 1 - total)
    return table


def print_json(value: object) -> None:
    """Print `value` as a JSON document, at once: at its exit Python reports a full disk in its own way."""
    try:
        sys.stdout.write(json_document(value) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        printer().on_broken_pipe()


class AnswerDisplay:
    """Shows the record of type `kind` by `answer`, and all others as text: on stderr, if it is a document."""

    def __init__(self, kind: type[Record], answer: Callable[[Any], None], *, is_document: bool = False) -> None:
        self._kind, self._answer = kind, answer
        self._console = Console(sys.stderr if is_document or answer is print_json else sys.stdout, sys.stderr)

    def show(self, record: Record) -> None:
        """Show one record."""
        (self._answer if isinstance(record, self._kind) else self._console.show)(record)
