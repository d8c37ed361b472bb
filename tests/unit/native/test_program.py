"""Programs: plans as arrays of operations on mapped memory."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from samovar import _native

MakeWindows = Callable[..., list[_native.Window]]
TIMEOUT_S = 60.0
RUN = 1 << 24


def floats(window: _native.Window, rank: int) -> np.ndarray:
    return window.memory(rank).view(np.float32)


def test_a_put_is_there_when_its_notification_is_and_steps_are_counted(make_windows: MakeWindows) -> None:
    windows = make_windows(2, 1, 1 << 20, 0)
    sender, receiver = (_native.Program(window) for window in windows)
    source = np.zeros(1 << 18, np.float32)
    sender.add_put(1, 0, floats(windows[0], 1), source)
    sender.add_wait(0)
    receiver.add_wait(0)
    receiver.add_notify(0, 0)

    def send(run: int) -> int:
        source[:] = run
        assert sender.run(TIMEOUT_S)
        return sender.steps

    def receive(run: int) -> int:
        assert receiver.run(TIMEOUT_S)
        assert (floats(windows[1], 1) == run).all()
        return receiver.steps

    with ThreadPoolExecutor(2) as pool:
        for run in range(1, 21):
            received = pool.submit(receive, run)
            assert (send(run), received.result(TIMEOUT_S)) == (2, 2)
    assert windows[0].wait(0, 0, 0.0) == 20 * RUN + 2
    assert windows[1].wait(0, 0, 0.0) == 20 * RUN + 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_sources", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 2047, 2049, 5000])
def test_combine_writes_one_sum_everywhere_in_the_order_of_the_sources(
    make_windows: MakeWindows, dtype: type, num_sources: int, size: int
) -> None:
    (window,) = make_windows(1, 0, 0)
    generator = np.random.default_rng(size)
    sources = [(generator.standard_normal(size) * 10.0 ** (3 * k)).astype(dtype) for k in range(num_sources)]
    expected = sources[0].copy()
    for source in sources[1:]:
        expected = expected + source
    others = [np.zeros(size, dtype) for _ in range(2)]
    program = _native.Program(window)
    program.add_combine([*reversed(sources), *others], sources)
    assert program.run(TIMEOUT_S)
    assert all(array.tobytes() == expected.tobytes() for array in (*sources, *others))
    assert program.steps == 0


def test_a_run_that_ends_by_its_deadline_tells_where_and_the_next_waits_for_the_next_run(
    make_windows: MakeWindows,
) -> None:
    window, other = make_windows(2, 2, 0)
    program = _native.Program(window)
    program.add_notify(1, 0)
    program.add_wait(1)
    program.add_notify(1, 1)
    for timeout_s in (0.0, 0.02):
        assert not program.run(timeout_s)
        assert program.position == 1
    assert other.wait(0, 0, 0.0) == 2 * RUN + 1
    assert other.wait(1, 1, 0.0) is None
    other.notify(0, 1, 2 * RUN + 9)
    assert not program.run(0.02), "the notification of an earlier run"
    other.notify(0, 1, 4 * RUN + 7)
    assert program.run(TIMEOUT_S)
    assert program.steps == 8
    assert other.wait(1, 1, 0.0) == 4 * RUN + 8


def test_arrays_live_as_long_as_the_program(make_windows: MakeWindows) -> None:
    """Freed memory would be overwritten by the arrays made afterwards."""
    (window,) = make_windows(1, 1, 0)
    program = _native.Program(window)
    destination = np.zeros(1000, np.float32)
    program.add_combine([np.full(1000, 1.0, np.float32)], [np.full(1000, float(k), np.float32) for k in (3, 4)])
    program.add_combine([destination], [np.full(1000, float(k), np.float32) for k in (3, 4)])
    copy = np.zeros(1000, np.float32)
    program.add_put(0, 0, copy, np.full(1000, 5.0, np.float32))
    gc.collect()
    fillers = [np.full(1000, -1.0, np.float32) for _ in range(50)]
    assert program.run(TIMEOUT_S)
    assert (destination == 7).all()
    assert (copy == 5).all()
    assert all((filler == -1).all() for filler in fillers)


def zeros(size: int = 4, dtype: type = np.float32, step: int = 1) -> np.ndarray:
    return np.zeros(size * step, dtype)[::step]


@pytest.mark.parametrize(
    ("destinations", "sources", "error"),
    [
        ([], [zeros()], ValueError),
        ([zeros()], [], ValueError),
        ([zeros()], [zeros(), zeros(3)], ValueError),
        ([zeros(), zeros(5)], [zeros()], ValueError),
        ([zeros()], [zeros(dtype=np.float64)], TypeError),
        ([zeros(dtype=np.float64)], [zeros()], TypeError),
        ([zeros(dtype=np.int32)], [zeros(dtype=np.int32)], TypeError),
        ([zeros(step=2)], [zeros()], TypeError),
        ([zeros()], [zeros(step=2)], TypeError),
        ([np.frombuffer(bytes(16), np.float32)], [zeros()], TypeError),
    ],
)
def test_combine_refuses_what_it_would_have_to_copy(
    make_windows: MakeWindows, destinations: list[np.ndarray], sources: list[np.ndarray], error: type[Exception]
) -> None:
    program = _native.Program(make_windows(1, 0, 0)[0])
    with pytest.raises(error):
        program.add_combine(destinations, sources)
    assert program.run(0.0), "nothing was added"


@pytest.mark.parametrize(
    ("destination", "source", "error"),
    [
        (zeros(4), zeros(5), ValueError),
        (zeros(4, step=2), zeros(4), TypeError),
        (zeros(4), zeros(4, step=2), TypeError),
        (np.frombuffer(bytes(16), np.float32), zeros(4), TypeError),
    ],
)
def test_put_refuses_what_it_would_have_to_copy(
    make_windows: MakeWindows, destination: np.ndarray, source: np.ndarray, error: type[Exception]
) -> None:
    program = _native.Program(make_windows(1, 1, 0)[0])
    with pytest.raises(error):
        program.add_put(0, 0, destination, source)


def test_slots_and_ranks_that_are_not_there_are_refused_when_added(make_windows: MakeWindows) -> None:
    window = make_windows(1, 1, 0)[0]
    for add in (
        lambda program: program.add_wait(1),
        lambda program: program.add_notify(1, 0),
        lambda program: program.add_notify(0, 1),
        lambda program: program.add_put(0, 1, zeros(), zeros()),
    ):
        program = _native.Program(window)
        with pytest.raises(IndexError, match="no such slot"):
            add(program)
