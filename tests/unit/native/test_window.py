"""Windows and segments of the native core."""

import gc
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from samovar import _native
from samovar.transports.shm import create_segment

MakeWindows = Callable[..., list[_native.Window]]
TIMEOUT_S = 60.0


def word(value: int) -> np.ndarray:
    return np.array([value], np.uint64)


@pytest.mark.parametrize("num_bytes", [1, 64, 4096, 4097, 100_001])
def test_what_is_put_is_got_by_all_and_lies_in_the_memory(make_windows: MakeWindows, num_bytes: int) -> None:
    windows = make_windows(3, 0, num_bytes)
    rows = np.random.default_rng(num_bytes).integers(0, 256, (3, num_bytes), np.uint8)
    for peer in range(3):
        windows[(peer + 1) % 3].put(peer, 0, rows[peer])
    for window in windows:
        for peer in range(3):
            got = np.empty(num_bytes, np.uint8)
            window.get(peer, 0, got)
            assert (got == rows[peer]).all()
            assert (window.memory(peer) == rows[peer]).all()
    windows[2].put(0, num_bytes - 1, np.array([77], np.uint8))
    assert (windows[0].memory(0)[:-1] == rows[0][:-1]).all()
    assert windows[0].memory(0)[-1] == 77


def test_put_takes_read_only_and_strided_sources_and_get_refuses_to_lose_its_result(
    make_windows: MakeWindows,
) -> None:
    (window,) = make_windows(1, 0, 16)
    window.put(0, 0, np.arange(32, dtype=np.uint8)[::2])
    window.put(0, 8, np.frombuffer(b"readonly", np.uint8))
    assert bytes(window.memory(0)) == bytes(range(0, 16, 2)) + b"readonly"
    for destination in (np.zeros(16, np.uint8)[::2], np.frombuffer(bytes(8), np.uint8)):
        with pytest.raises(TypeError):
            window.get(0, 0, destination)


@pytest.mark.parametrize(
    ("peer", "offset", "size"),
    [(0, 57, 8), (0, 64, 1), (0, 65, 0), (0, 0, 65), (2, 0, 1), (0, 2**64 - 4, 8), (0, 2**64 - 1, 1), (0, 2**63, 8)],
)
def test_bytes_outside_the_window_are_refused(make_windows: MakeWindows, peer: int, offset: int, size: int) -> None:
    window = make_windows(2, 1, 64)[0]
    with pytest.raises(IndexError, match="outside the window"):
        window.put(peer, offset, np.ones(size, np.uint8))
    destination = np.ones(size, np.uint8)
    with pytest.raises(IndexError, match="outside the window"):
        window.get(peer, offset, destination)
    assert not window.memory(0).any()
    assert not window.memory(1).any()
    assert destination.all()


def test_the_last_byte_and_nothing_at_the_end_are_inside(make_windows: MakeWindows) -> None:
    window = make_windows(1, 0, 64)[0]
    window.put(0, 63, np.ones(1, np.uint8))
    window.put(0, 64, np.ones(0, np.uint8))
    assert window.memory(0).sum() == 1


@pytest.mark.parametrize(
    ("peer", "offset", "error"),
    [
        (0, 4, ValueError),
        (0, 56, None),
        (0, 60, IndexError),
        (0, 64, IndexError),
        (0, 2**64 - 8, IndexError),
        (9, 0, IndexError),
    ],
)
def test_atomics_check_their_place(
    make_windows: MakeWindows, peer: int, offset: int, error: type[Exception] | None
) -> None:
    window = make_windows(1, 0, 64)[0]
    calls = (lambda: window.fetch_add(peer, offset, 1), lambda: window.compare_swap(peer, offset, 1, 2))
    for call in calls:
        if error is None:
            call()
        else:
            with pytest.raises(error):
                call()
    assert window.memory(0).sum() == (2 if error is None else 0)


def test_fetch_add_of_four_threads_is_exact(make_windows: MakeWindows) -> None:
    windows, count = make_windows(4, 0, 16), 2000
    with ThreadPoolExecutor(4) as pool:
        olds = list(pool.map(lambda window: [window.fetch_add(2, 8, 3) for _ in range(count)], windows))
    assert sorted(old for thread in olds for old in thread) == list(range(0, 4 * count * 3, 3))
    assert all(thread == sorted(thread) for thread in olds)
    assert windows[0].fetch_add(2, 8, 0) == 4 * count * 3


def test_fetch_add_wraps_at_64_bits(make_windows: MakeWindows) -> None:
    (window,) = make_windows(1, 0, 8)
    assert window.fetch_add(0, 0, 2**64 - 1) == 0
    assert window.fetch_add(0, 0, 2) == 2**64 - 1
    assert window.fetch_add(0, 0, 0) == 1


def test_compare_swap_stores_only_where_the_expected_was(make_windows: MakeWindows) -> None:
    window, other = make_windows(2, 0, 8)
    assert window.compare_swap(1, 0, 5, 9) == 0
    assert other.compare_swap(1, 0, 0, 9) == 0
    assert window.compare_swap(1, 0, 9, 2**64 - 1) == 9
    assert other.fetch_add(1, 0, 0) == 2**64 - 1


def test_a_lock_of_compare_swap_excludes(make_windows: MakeWindows) -> None:
    """Read, add and write back in three calls that let other threads run: only the lock keeps it exact."""
    windows, count = make_windows(4, 0, 16), 200

    def add(window: _native.Window) -> None:
        value = word(0)
        for _ in range(count):
            while window.compare_swap(0, 0, 0, 1) != 0:
                pass
            window.get(0, 8, value)
            window.put(0, 8, value + np.uint64(1))
            assert window.compare_swap(0, 0, 1, 0) == 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, windows))
    assert windows[0].memory(0).view(np.uint64).tolist() == [0, 4 * count]


@pytest.mark.parametrize("spin_ns", [0, 50_000])
def test_wait_returns_what_was_notified_and_leaves_it(make_windows: MakeWindows, spin_ns: int) -> None:
    window, other = make_windows(2, 3, 0, spin_ns)
    other.notify(0, 2, 5)
    assert window.wait(2, 5, TIMEOUT_S) == 5
    assert window.wait(2, 1, 0.0) == 5
    assert window.wait(2, 6, 0.01) is None
    assert window.wait(1, 1, 0.0) is None, "another slot"
    assert other.wait(2, 1, 0.0) is None, "another rank"
    assert window.wait(1, 0, 0.0) == 0
    other.notify(0, 2, 2**64 - 1)
    assert window.wait(2, 2**64 - 1, 0.0) == 2**64 - 1


@pytest.mark.parametrize("spin_ns", [0, 50_000])
def test_a_sleeping_rank_is_woken(make_windows: MakeWindows, spin_ns: int) -> None:
    """Ping-pong: every wait but the first begins before its notification, so each needs a wake-up or a spin."""
    windows = make_windows(2, 1, 0, spin_ns)

    def play(rank: int) -> list[int | None]:
        seen = []
        for turn in range(1, 301):
            if turn % 2 == rank:
                windows[rank].notify(1 - rank, 0, turn)
            else:
                seen.append(windows[rank].wait(0, turn, TIMEOUT_S))
        return seen

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(play, range(2))) == [list(range(1, 301, 2)), list(range(2, 301, 2))]


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, 0.02, float("nan")])
def test_waits_end_by_their_deadline(make_windows: MakeWindows, timeout_s: float) -> None:
    (window,) = make_windows(1, 2, 0, 1_000)
    assert window.wait(0, 1, timeout_s) is None
    assert window.wait_any(0, 2, timeout_s) is None


def test_an_endless_deadline_is_no_deadline_at_once(make_windows: MakeWindows) -> None:
    window, other = make_windows(2, 1, 0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(window.wait, 0, 1, float("inf"))
        other.notify(0, 0, 3)
        assert waiting.result(TIMEOUT_S) == 3


def test_wait_any_takes_each_value_once(make_windows: MakeWindows) -> None:
    window, other = make_windows(2, 4, 0)
    other.notify(0, 0, 9)
    other.notify(0, 3, 7)
    other.notify(0, 2, 8)
    assert [window.wait_any(1, 3, 0.0) for _ in range(3)] == [(2, 8), (3, 7), None]
    assert window.wait_any(0, 1, 0.0) == (0, 9)


def test_two_consumers_get_every_value_exactly_once(make_windows: MakeWindows) -> None:
    count = 500
    center, *producers = make_windows(3, 4, 0)

    def produce(slot: int) -> None:
        for value in range(1, count + 1):
            producers[slot].notify(0, slot, value)
            assert producers[slot].wait(0, value, TIMEOUT_S) == value

    def consume(stop_slot: int) -> list[tuple[int, int]]:
        taken = []
        while (fired := center.wait_any(0, 4, TIMEOUT_S)) is not None and fired[0] < 2:
            taken.append(fired)
            center.notify(fired[0] + 1, 0, fired[1])
        assert fired is not None
        return taken

    with ThreadPoolExecutor(4) as pool:
        consumers = [pool.submit(consume, slot) for slot in (2, 3)]
        list(pool.map(produce, range(2)))
        for slot in (2, 3):  # each stops one consumer
            producers[0].notify(0, slot, 1)
        taken = [pair for consumer in consumers for pair in consumer.result(TIMEOUT_S)]
    assert sorted(taken) == [(slot, value) for slot in range(2) for value in range(1, count + 1)]


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 4), (3, 1), (2, 2), (2, 2**32 - 1)])
def test_wait_any_refuses_slots_that_are_not_there(make_windows: MakeWindows, first: int, count: int) -> None:
    (window,) = make_windows(1, 3, 0)
    with pytest.raises(IndexError):
        window.wait_any(first, count, 0.0)


def test_places_that_are_not_there_are_refused(make_windows: MakeWindows) -> None:
    window = make_windows(2, 3, 8)[0]
    for call in (
        lambda: window.wait(3, 1, 0.0),
        lambda: window.notify(2, 0, 1),
        lambda: window.notify(0, 3, 1),
        lambda: window.memory(2),
    ):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(TypeError):
        window.notify(0, 0, 2**64)


def open_window(descriptor: int, world_size: int = 2, **changes: int) -> _native.Window:
    settings = {"rank": 0, "file_offset": _native.Segment.head_bytes(world_size), "num_slots": 2}
    settings |= {"bytes_per_rank": 64, "spin_ns": 0} | changes
    return _native.Window(_native.Segment(descriptor, world_size), **settings)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_slots": 3}, ValueError, r"other sizes \(2 slots, 64 bytes\) than this one \(3 slots, 64 bytes\)"),
        ({"bytes_per_rank": 65}, ValueError, r"other sizes .* \(2 slots, 65 bytes\)"),
        ({"bytes_per_rank": 0}, ValueError, r"other sizes"),
        ({"rank": 2}, IndexError, "no such rank: 2"),
        ({"file_offset": 4095}, OSError, "Invalid argument"),
        ({"bytes_per_rank": 2**64 - 1}, OSError, "too large"),
        ({"bytes_per_rank": 2**62}, OSError, "too large"),
        ({"file_offset": 2**63}, OSError, "Invalid argument"),
    ],
)
def test_opening_a_window_refuses(changes: dict[str, int], error: type[Exception], message: str) -> None:
    descriptor = create_segment(2)
    try:
        open_window(descriptor)
        with pytest.raises(error, match=message):
            open_window(descriptor, **changes)
    finally:
        os.close(descriptor)


def test_a_segment_refuses_another_number_of_ranks_and_none() -> None:
    descriptor = create_segment(2)
    try:
        with pytest.raises(ValueError, match="made for 2 ranks, not for 3"):
            _native.Segment(descriptor, 3)
        with pytest.raises(ValueError, match="at least one rank"):
            _native.Segment(descriptor, 0)
    finally:
        os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _native.Segment(descriptor, 2)


def test_a_descriptor_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(b"My notes, in which nobody should write." * 1000)
    with path.open("r+b") as file, pytest.raises(ValueError, match="not a Samovar segment"):
        _native.Segment(file.fileno(), 2)
    with path.open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        _native.Segment(file.fileno(), 2)
    assert path.read_bytes() == b"My notes, in which nobody should write." * 1000
    read_end, write_end = os.pipe()
    with os.fdopen(read_end), os.fdopen(write_end, "w") as pipe, pytest.raises(OSError):
        _native.Segment(pipe.fileno(), 2)


def test_memory_outlives_its_window(make_windows: MakeWindows) -> None:
    windows = make_windows(2, 0, 4096)
    memory = windows[0].memory(0)
    other = windows.pop()
    windows.clear()
    gc.collect()
    other.put(0, 10, np.array([42], np.uint8))
    del other
    gc.collect()
    assert memory[10] == 42
    memory[:] = 7
    assert memory.sum() == 7 * 4096


def test_the_board_shows_every_mapping_the_same_words() -> None:
    descriptor = create_segment(2)
    try:
        writer, reader = _native.Segment(descriptor, 2), _native.Segment(descriptor, 2)
        for row in range(3):
            for index in range(8):
                writer.post(row, index, 2**64 - 1 - row * 8 - index)
        assert [reader.read(row, index) for row in range(3) for index in range(8)] == [2**64 - 1 - k for k in range(24)]
        for row, index in ((3, 0), (0, 8)):
            with pytest.raises(IndexError):
                reader.read(row, index)
            with pytest.raises(IndexError):
                writer.post(row, index, 1)
    finally:
        os.close(descriptor)


SIGNALLED = """
import os, signal
from samovar import _native
from samovar.transports.shm import create_segment

taken = 0

def note(number, frame):
    global taken
    taken += 1
    if taken == 3:  # more may come before the program is at its end
        raise ZeroDivisionError

segment = _native.Segment(create_segment(1), 1)
window = _native.Window(segment, 0, segment.head_bytes(1), 2, 0, 0)
program = _native.Program(window)
program.add_wait(0)
background = _native.Program(window)
background.add_wait(1)
thread = _native.ProgressThread(segment, 0, 0)
thread.submit(background)
signal.signal(signal.SIGALRM, note)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    {wait}
except ZeroDivisionError:
    os._exit(3)
"""


@pytest.mark.parametrize(
    "wait",
    ["window.wait(0, 1, 30.0)", "window.wait_any(0, 2, 30.0)", "program.run(30.0)", "thread.wait(background, 30.0)"],
)
def test_signal_handlers_run_while_a_rank_waits_and_may_end_the_wait(wait: str) -> None:
    program = [sys.executable, "-c", SIGNALLED.format(wait=wait)]
    assert subprocess.run(program, check=False).returncode == 3


RANK = """
import signal
from samovar import _native

_native.die_with_parent()
print("ready", flush=True)
signal.pause()
"""
LAUNCHER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {RANK!r}])"


def test_a_rank_dies_with_its_launcher() -> None:
    """The rank holds the pipe open: its end is the rank's end."""
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        launcher.send_signal(signal.SIGKILL)
        assert launcher.stdout.read() == ""


def test_windows_begin_on_the_systems_pages() -> None:
    """Of 4 KiB here, and of 16 or 64 on some ARM kernels."""
    sizes = _native.Segment.head_bytes(3), _native.Window.file_bytes(3, 5, 1)
    assert [size % mmap.PAGESIZE for size in sizes] == [0, 0]
