"""Where lines of a run go: a terminal or a pipe that is slow, stopped or gone holds nobody up."""

import io
import os
import pty
import re
import termios
import threading

import rich.text

from samovar.report.console import Screen
from tests.terminal import read_to_end


def test_a_lost_terminal_does_not_end_the_run() -> None:
    """Rich writes nothing at all there, if Python does not gather (PYTHONUNBUFFERED)."""
    master, slave = pty.openpty()
    with io.TextIOWrapper(os.fdopen(slave, "wb", 0), write_through=True) as lost:
        os.close(master)
        Screen(lost, terminal=True).line("x")


def test_a_terminal_that_takes_nothing_holds_nobody_up() -> None:
    """Ctrl-S, and later Ctrl-Q."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        screen = Screen(stream, terminal=True, width=400)
        termios.tcflow(slave, termios.TCOOFF)
        for number in range(1000):
            screen.line(f"{number} {'x' * 300}")
            screen.live(rich.text.Text("a bar"))
        shown = bytearray()
        reader = threading.Thread(target=lambda: shown.extend(read_to_end(master)))
        reader.start()
        termios.tcflow(slave, termios.TCOON)
        del screen  # it waits for the terminal
    reader.join()
    os.close(master)
    assert re.findall(rb"(\d+) x+", shown) == [b"%d" % number for number in range(1000)]
    assert b"a bar" not in shown


def test_lines_that_a_slow_reader_misses_are_counted() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    shown = bytearray()
    with os.fdopen(write_end, "w", encoding="utf-8") as stream:
        screen = Screen(stream)
        for _ in range(2000):
            screen.line("x" * 999)
        for _ in range(40):  # as often as there are pipes full of text
            shown += os.read(read_end, 1 << 20)
            screen.line("later")
    shown += os.read(read_end, 1 << 20)
    os.close(read_end)
    (missing,) = re.findall(rb"\(lines left out while nobody took them: ([\d,]+)\)", shown)
    assert 800 < int(missing) < 1000
    assert shown.count(b"x\n") + shown.count(b"later\n") + int(missing) == 2040
