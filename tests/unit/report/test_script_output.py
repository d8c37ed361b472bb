"""The output of several ranks as one: lines with their rank, without doubles, nothing lost, nothing kept for ever."""

import fcntl
import os
import pty
import random
import re
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from samovar.report.script_output import (
    MAX_LINE_BYTES,
    STDERR,
    STDOUT,
    Doubles,
    ErrorTail,
    LineOutput,
    LineSplitter,
    ScriptOutput,
    StoreRefusals,
)
from tests.terminal import read_to_end


def split(*pieces: bytes) -> list[bytes]:
    splitter = LineSplitter()
    return [line for piece in pieces for line in splitter.feed(piece)] + splitter.close()


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\n\ntwo", [b"one", b"", b"two"]),
        (b"one\r\ntwo\r\n", [b"one", b"two"]),
        (b"\r 10%\r 50%\r100%\ndone\n", [b"100%", b"done"]),
        (b" 10%\r 50%\r100%\r\ndone\n", [b"100%", b"done"]),
        (b" 10%\r 50%\r", [b" 50%"]),
        (b"\xff\xfe\x00\x1b[31m\n", [b"\xff\xfe\x00\x1b[31m"]),
        (b"", []),
        (b"\n", [b""]),
    ],
)
def test_lines_are_what_a_terminal_ends_up_showing_however_they_come(written: bytes, lines: list[bytes]) -> None:
    assert split(written) == lines
    assert split(*(bytes([byte]) for byte in written)) == lines
    rng = random.Random(len(written))
    cuts = sorted(rng.randrange(len(written) + 1) for _ in range(3))
    assert split(*(written[start:end] for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True))) == lines


def test_a_progress_bar_that_never_ends_its_line_is_not_collected() -> None:
    splitter = LineSplitter()
    for step in range(10_000):
        assert splitter.feed(b"\r%4d of 10000 " % step + b"#" * 100) == []
    assert splitter.unfinished.startswith(b"9999 of")
    assert len(splitter._rest) < 200


def test_a_line_without_an_end_comes_in_pieces_between_characters() -> None:
    text = "aé€😀" * 40_000
    splitter = LineSplitter()
    written = text.encode()
    lines = []
    for start in range(0, len(written), 50_000):
        lines += splitter.feed(written[start : start + 50_000])
        assert len(splitter.unfinished) <= MAX_LINE_BYTES
    lines += splitter.close()
    assert "".join(line.decode() for line in lines) == text
    assert max(map(len, lines)) <= MAX_LINE_BYTES


def test_a_rank_s_kth_copy_is_new_unless_another_printed_k_already() -> None:
    doubles = Doubles()
    order = [0, 1, 1, 0, 1, 0, 0, 2, 2, 2, 2, 2]
    assert [doubles.is_new(rank, b"step") for rank in order] == [
        *(True, False, True, False, True, False, True),
        *(False, False, False, False, True),
    ]
    assert doubles.is_new(0, b"other")


def test_each_line_comes_as_often_as_the_rank_that_prints_it_most() -> None:
    rng = random.Random(4)
    doubles = Doubles()
    printed = [(rank, b"line %d" % rng.randrange(5)) for rank in range(4) for _ in range(rng.randrange(50))]
    rng.shuffle(printed)
    shown = [line for rank, line in printed if doubles.is_new(rank, line)]
    for line in {line for _, line in printed}:
        counts = [sum(one == (rank, line) for one in printed) for rank in range(4)]
        assert shown.count(line) == max(counts)


def test_what_is_remembered_of_lines_is_bounded() -> None:
    doubles = Doubles(max_lines=100)
    for number in range(10_000):
        assert doubles.is_new(0, b"%d" % number)
    assert len(doubles._counts) == 100
    assert not doubles.is_new(1, b"9999")
    assert doubles.is_new(1, b"1")


@dataclass
class Shown:
    """A ScriptOutput whose two outputs are read all the time."""

    output: ScriptOutput
    text: dict[int, bytes] = field(default_factory=dict)


@contextmanager
def shown(monotonic_s: "Clock | None" = None, with_doubles: bool = False) -> Iterator[Shown]:
    pipes = {STDOUT: os.pipe(), STDERR: os.pipe()}
    one = Shown(
        ScriptOutput(pipes[1][1], pipes[2][1], with_doubles=with_doubles, monotonic_s=monotonic_s or Clock()),
    )

    def read(stream: int) -> None:
        with os.fdopen(pipes[stream][0], "rb") as file:
            one.text[stream] = file.read()

    readers = [threading.Thread(target=read, args=(stream,)) for stream in pipes]
    for reader in readers:
        reader.start()
    try:
        yield one
        one.output.flush_lines()
        one.output.close()
    finally:
        for _, write_end in pipes.values():
            os.close(write_end)
        for reader in readers:
            reader.join()


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_lines_go_where_they_were_written_with_their_rank_and_without_doubles() -> None:
    with shown() as one:
        for rank in (1, 0, 2):
            one.output.take(rank, STDOUT, b"epoch 1\nrank %d\xff\n" % rank)
            one.output.take(rank, STDERR, b"epoch 1\n")
        one.output.take(2, STDOUT, b"no end")
    assert one.text[STDOUT] == b"[1] epoch 1\n[1] rank 1\xff\n[0] rank 0\xff\n[2] rank 2\xff\n[2] no end\n"
    assert one.text[STDERR] == b"[1] epoch 1\n"


def test_with_doubles_everything_is_shown() -> None:
    with shown(with_doubles=True) as one:
        for rank in range(3):
            one.output.take(rank, STDOUT, b"epoch 1\n")
    assert one.text[STDOUT] == b"[0] epoch 1\n[1] epoch 1\n[2] epoch 1\n"


def test_the_pieces_of_a_line_of_several_ranks_do_not_mix() -> None:
    with shown() as one:
        for piece in (b"a", b"b", b"\n"):
            for rank in range(3):
                one.output.take(rank, STDOUT, piece if piece == b"\n" else piece * (rank + 1))
    assert one.text[STDOUT].splitlines() == [b"[0] ab", b"[1] aabb", b"[2] aaabbb"]


def test_a_slow_reader_is_waited_for_by_whoever_asks_and_by_nobody_else() -> None:
    read_end, write_end = os.pipe()
    room = fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ)
    port = LineOutput(write_end)
    port.write(bytes(room + (1 << 20)))
    assert not port.is_blocked
    port.write(b"12")
    assert port.is_blocked
    os.read(read_end, room)
    port.pump()
    assert not port.is_blocked
    os.close(read_end)
    port.pump()
    port.write(bytes(room * 100))
    assert not port.is_blocked
    os.close(write_end)


def test_a_disk_that_was_full_takes_later_lines() -> None:
    read_end, write_end = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    port = LineOutput(full)
    port.write(b"lost\n")
    os.dup2(write_end, full)
    os.close(write_end)
    port.write(b"shown\n")
    os.close(full)
    assert os.read(read_end, 100) == b"shown\n"
    os.close(read_end)


CHAINED = [
    b"Traceback (most recent call last):",
    b'  File "a.py", line 1',
    b"KeyError: 1",
    b"",
    b"During handling of the above exception, another exception occurred:",
    b"",
    b"Traceback (most recent call last):",
    b'  File "a.py", line 3',
    b"ValueError: 2",
]


def tail_of(lines: list[bytes], clock: Clock | None = None) -> ErrorTail:
    tail = ErrorTail(clock or Clock())
    for line in lines:
        tail.feed(line)
    return tail


def test_an_error_is_what_comes_from_the_last_traceback_on_with_its_causes() -> None:
    handled = [b"a warning", *CHAINED[:3], b"went on"]
    assert tail_of([*handled, *CHAINED, b"and a word"]).lines() == [*CHAINED, b"and a word"]
    assert tail_of([b"only", b"words"]).lines() == [b"only", b"words"]
    assert tail_of([b"only", b"words"]).began_s is None


def test_an_error_that_was_dealt_with_long_ago_is_none() -> None:
    clock = Clock()
    tail = tail_of(CHAINED, clock)
    assert tail.began_s == 0.0
    clock.now_s = 60.0
    tail.feed(b"later")
    assert tail.began_s is None


def test_what_is_kept_of_an_error_is_bounded() -> None:
    tail = tail_of([CHAINED[0], *(b"%d" % number for number in range(100_000))])
    assert tail.lines() == [b"%d" % number for number in range(99_600, 100_000)]
    tail = tail_of([CHAINED[0], *(bytes(50_000) for _ in range(100))])
    assert sum(map(len, tail.lines())) <= 1 << 18
    assert len(tail_of([b"%d" % number for number in range(100)]).lines()) == 20


REFUSED = (
    b"[W1124 03:10:49.811887472 TCPStoreLibUvBackend.cpp:126] [c10d] Error processing client message: Invalid size.",
    b"Exception raised from read_key at /pytorch/TCPStoreLibUvBackend.cpp:588 (most recent call first):",
    b"frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7f2a97f1ab8d in libc10.so)",
    b"",
)


def test_what_a_store_says_of_connections_that_it_refuses_is_said_once_a_rank() -> None:
    refusals = StoreRefusals()
    said = [refusals.shown(rank, line) for rank in (0, 3) for line in REFUSED * 100]
    told = [line for line in said if line is not None]
    assert len(told) == 2
    assert b"Invalid size.); do strangers connect" in told[0]


def test_other_lines_beside_such_refusals_are_shown_as_they_are() -> None:
    refusals = StoreRefusals()
    others = (b"", b"frame #0: of another error", b"[W1124 03:10:49.8 socket.cpp:126] [c10d] slow", b"loss 0.1")
    assert [refusals.shown(0, line) for line in others] == list(others)
    head, *stack = REFUSED
    refusals.shown(0, head)
    assert [refusals.shown(0, line) for line in (*stack, *others[1:])][-3:] == [None, *others[2:]]
    assert [refusals.shown(1, line) for line in others] == list(others)


def test_an_error_is_not_shown_twice_but_always_last_and_in_full() -> None:
    text = b"\n".join(CHAINED) + b"\n"
    expected = b"".join(b"[1] " + line + b"\n" for line in CHAINED)
    with shown() as one:
        one.output.take(1, STDERR, text)
        one.output.show_error(1)
    assert one.text[STDERR] == expected
    with shown() as one:
        one.output.take(0, STDERR, text)
        one.output.take(1, STDERR, text)
        one.output.take(0, STDERR, b"a word more\n")
        one.output.show_error(1)
    assert one.text[STDERR].endswith(b"[0] a word more\nsamovar: error of rank 1:\n" + expected)


def test_a_rank_that_said_nothing_has_no_error_to_show() -> None:
    with shown() as one:
        one.output.take(0, STDERR, b"something\n")
        one.output.show_error(1)
    assert one.text[STDERR] == b"[0] something\n"


def test_the_rank_whose_traceback_came_first_is_waited_for() -> None:
    clock = Clock()
    with shown(clock) as one:
        clock.now_s = 10.0
        one.output.take(1, STDERR, CHAINED[0] + b"\n")
        clock.now_s = 11.0
        one.output.take(0, STDERR, CHAINED[0] + b"\n")
        assert one.output.await_others_s(0, ended_s=12.0) > 0
        assert one.output.await_others_s(1, ended_s=12.0) == 0
        assert one.output.await_others_s(2, ended_s=9.0) == 0


def test_on_a_terminal_the_lowest_rank_s_progress_bar_stands_below_the_lines() -> None:
    """Redrawn at most ten times a second, cut to the width, gone when a line comes."""
    screen, terminal = pty.openpty()
    clock = Clock()
    try:
        termios.tcsetwinsize(terminal, (25, 20))
        output = ScriptOutput(terminal, terminal, monotonic_s=clock)
        output.take(0, STDERR, b"\r10% " + b"#" * 50)
        output.take(1, STDERR, b"\r99%")
        clock.now_s += 0.01
        output.take(0, STDERR, b"\r20%")
        clock.now_s += 0.2
        output.take(0, STDERR, b"\r30%")
        output.take(1, STDOUT, b"line\n")
        output.flush_lines()
        output.close()
    finally:
        os.close(terminal)
        shown = read_to_end(screen)
        os.close(screen)
    bars, lines = shown.split(b"[1] line")
    assert bars.startswith(b"[0] 10% ###")
    assert b"20%" not in bars
    assert bars.endswith(b"[0] 30%\r\x1b[2K")
    assert lines.split() == [b"[0]", b"30%", b"[1]", b"99%"]
    assert max(len(part) for part in re.split(rb"\r\x1b\[2K|\r\n", shown)) < 20
