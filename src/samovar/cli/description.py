"""What a command tells of a thing: facts and tables, for people and as JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import rich.box
import rich.console
import rich.table

Value: TypeAlias = str | int | float | bool | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` have a value for each of `columns`."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Description:
    """`kind` says what the thing is; `notes` are sentences that stand at the end."""

    kind: str
    facts: Sequence[tuple[str, Value]]
    tables: Sequence[Table] = ()
    notes: Sequence[str] = field(default=())

    def as_json(self) -> str:
        """One object: kind, facts by name, rows by table and column, notes."""
        tables = {t.title: [dict(zip(t.columns, row, strict=True)) for row in t.rows] for t in self.tables}
        return json.dumps({"kind": self.kind, **dict(self.facts), **tables, "notes": list(self.notes)}, indent=2)


def show(description: Description) -> None:
    """Print it: tables with lines on a terminal, columns of plain text elsewhere."""
    console = rich.console.Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    width = max((len(name) for name, _ in description.facts), default=0)
    lines = [description.kind, *(f"  {name:<{width}}  {_text(value)}" for name, value in description.facts)]
    console.print("\n".join(map(_printable, lines)), soft_wrap=True)
    for table in description.tables:
        console.print()
        if console.is_terminal:
            console.print(_rich_table(table))
        else:
            console.print("\n".join(_plain_lines(table)), soft_wrap=True)
    for note in description.notes:
        console.print(_printable(note), soft_wrap=True)


def _rich_table(table: Table) -> rich.table.Table:
    shown = rich.table.Table(title=table.title, title_justify="left", box=rich.box.ROUNDED)
    for index, name in enumerate(table.columns):
        shown.add_column(name, justify="right" if _is_number(table, index) else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(_printable(_text(value)) for value in row))
    return shown


def _plain_lines(table: Table) -> list[str]:
    cells = [table.columns, *(tuple(_printable(_text(value)) for value in row) for row in table.rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(table.columns))]
    right = [_is_number(table, index) for index in range(len(table.columns))]
    lines = [
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    ]
    return [table.title, *(f"  {line}" for line in lines)]


def _is_number(table: Table, index: int) -> bool:
    return all(isinstance(row[index], int | float) for row in table.rows if row[index] is not None)


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else " x ".join(map(str, value)) or "()"


def _printable(line: str) -> str:
    """Names come from files: what could steer a terminal is shown as it would be written."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
