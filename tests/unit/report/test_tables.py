"""Facts and tables on terminals of any width, and elsewhere."""

import io

import pytest
import rich.console

from samovar.report.tables import printer, show_facts, show_lines, show_table

COLUMNS = ("layer", "type", "multiply-adds", "bytes")
ROWS = [("conv1", "Convolution", "35,280,000", "5,644,800"), ("whole", "", "441,000,000", "3")]
RIGHT = (False, False, True, True)


def shown(width: int, terminal: bool, total: int = 0) -> list[str]:
    stream = io.StringIO()
    console = rich.console.Console(file=stream, width=width, force_terminal=terminal, color_system=None)
    show_facts(console, "net", [("file", "a/net.prototxt"), ("hash", "0123456789" * 5)])
    show_table(console, "layers", COLUMNS, ROWS, RIGHT, total)
    return stream.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()


def test_elsewhere_a_line_is_as_long_as_it_must_be() -> None:
    assert shown(20, terminal=False) == [
        "net",
        "  file  a/net.prototxt",
        "  hash  " + "0123456789" * 5,
        "layers",
        "  layer  type         multiply-adds      bytes",
        "  conv1  Convolution     35,280,000  5,644,800",
        "  whole                 441,000,000          3",
    ]


def test_colours_by_force_do_not_make_a_file_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CI often sets FORCE_COLOR, and a value that is broken over lines cannot be searched for."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    show_lines(printer(), "word " * 100, style="bold")
    assert capsys.readouterr().out == "word " * 100 + "\n"


def test_a_wide_terminal_shows_whole_rows_and_sets_the_total_apart() -> None:
    lines = [line.rstrip() for line in shown(80, terminal=True, total=1)]
    assert lines[3:] == [
        "layers",
        "layer  type         multiply-adds      bytes",
        "────────────────────────────────────────────",
        "conv1  Convolution     35,280,000  5,644,800",
        "",
        "whole                 441,000,000          3",
    ]


@pytest.mark.parametrize("width", [24, 30, 40])
def test_a_narrow_terminal_shows_parts_and_breaks_no_number(width: int) -> None:
    lines = shown(width, terminal=True)
    assert max(map(len, lines)) <= width
    whole = "\n".join(lines)
    assert all(cell in whole for row in (COLUMNS, *ROWS) for cell in row)
    assert whole.count("conv1") > 1
