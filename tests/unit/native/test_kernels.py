"""The native kernels against NumPy, bit for bit."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from samovar import _native

Floats = npt.NDArray[Any]
SIZES = (0, 1, 7, 2047, 2048, 2049, 10_000)
DTYPES = (np.float32, np.float64)


def reduced(sources: list[Floats]) -> Floats:
    """((s_0 + s_1) + s_2) + ..."""
    total = sources[0].copy()
    for source in sources[1:]:
        total = total + source
    return total


def sgd_momentum(
    weights: Floats, gradients: Floats, history: Floats, runs: list[Any], momentum: float, scale: float
) -> None:
    number = np.float32
    for start, size, rate, decay in runs:
        run = slice(start, start + size)
        gradient = number(scale) * gradients[run] + number(decay) * weights[run]
        history[run] = number(momentum) * history[run] + number(rate) * gradient
        weights[run] = weights[run] - history[run]


def bits(array: Floats) -> bytes:
    return array.tobytes()


def wild(seed: int, size: int, dtype: type) -> Floats:
    """Numbers of all magnitudes; one in eight is a zero, a denormal or an infinity."""
    generator = np.random.default_rng([seed, size])
    info = np.finfo(dtype)
    special = np.array([0.0, -0.0, info.tiny / 4, -info.tiny / 2, np.inf, -np.inf, info.max, -info.max], dtype)
    values = generator.standard_normal(size) * 10.0 ** generator.integers(-6, 7, size)
    return np.where(generator.random(size) < 0.125, generator.choice(special, size), values).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_sources", range(1, 10))
def test_reduce_adds_in_the_order_of_the_sources(num_sources: int, dtype: type) -> None:
    for size in SIZES:
        sources = [wild(k, size, dtype) for k in range(num_sources)]
        with np.errstate(all="ignore"):
            expected = bits(reduced(sources))
        destination = np.full(size, 7, dtype)
        _native.reduce(destination, sources)
        assert bits(destination) == expected, size
        for alias in {0, num_sources // 2, num_sources - 1}:
            copies = [source.copy() for source in sources]
            _native.reduce(copies[alias], copies)
            assert bits(copies[alias]) == expected, (size, alias)
            assert all(bits(copies[k]) == bits(sources[k]) for k in range(num_sources) if k != alias)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_carries_nan_and_overflow_like_numpy(dtype: type) -> None:
    infinity, largest = np.inf, np.finfo(dtype).max
    sources = [np.array(row, dtype) for row in ([np.nan, infinity, largest, 1], [1, -infinity, largest, np.nan])]
    sources.append(np.array([2, 3, -largest, -infinity], dtype))
    destination = np.zeros(4, dtype)
    _native.reduce(destination, sources)
    with np.errstate(all="ignore"):
        assert bits(destination) == bits(reduced(sources))
    assert np.isnan(destination).tolist() == [True, True, False, True]
    assert destination[2] == infinity


def test_reduce_of_one_source_copies_it_and_may_be_itself() -> None:
    values = wild(0, 5000, np.float32)
    same = values.copy()
    _native.reduce(same, [same])
    assert bits(same) == bits(values)


@pytest.mark.parametrize(
    ("destination", "sources", "error"),
    [
        (np.zeros(3, np.float32), [], ValueError),
        (np.zeros(3, np.float32), [np.zeros(3, np.float32), np.zeros(2, np.float32)], ValueError),
        (np.zeros(3, np.float32), [np.zeros(4, np.float32)], ValueError),
        (np.zeros(3, np.float32), [np.zeros(3, np.float64)], TypeError),
        (np.zeros(3, np.float64), [np.zeros(3, np.float32)], TypeError),
        (np.zeros(3, np.float32), [np.zeros(3, np.int32)], TypeError),
        (np.zeros(3, np.int32), [np.zeros(3, np.int32)], TypeError),
        (np.zeros((3, 1), np.float32), [np.zeros((3, 1), np.float32)], TypeError),
        (np.zeros(6, np.float32)[::2], [np.zeros(3, np.float32)], TypeError),
        (np.zeros(3, np.float32), [np.zeros(6, np.float32)[::2]], TypeError),
        (np.frombuffer(bytes(12), np.float32), [np.zeros(3, np.float32)], TypeError),
    ],
)
def test_reduce_refuses(destination: Floats, sources: list[Floats], error: type[Exception]) -> None:
    with pytest.raises(error):
        _native.reduce(destination, sources)


def columns(runs: list[Any]) -> tuple[Floats, ...]:
    kinds = (np.uint64, np.uint64, np.float32, np.float32)
    return tuple(np.array([run[k] for run in runs], kind) for k, kind in enumerate(kinds))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_sgd_momentum_runs_have_their_own_rates_and_leave_the_gaps(momentum: float, scale: float) -> None:
    size = 12_000
    runs = [(3, 1, 0.1, 0.0), (16, 2047, 0.01, 5e-4), (2064, 2049, 0.02, 0.0), (5000, 0, 1.0, 1.0), (5000, 7000, 0, 1)]
    arrays = [wild(k, size, np.float32) for k in range(3)]
    twins = [array.copy() for array in arrays]
    for _ in range(3):
        _native.sgd_momentum(*arrays, *columns(runs), momentum, scale)
        with np.errstate(all="ignore"):
            sgd_momentum(*twins, runs, momentum, scale)
    assert [bits(array) for array in arrays] == [bits(twin) for twin in twins]
    gap = np.ones(size, bool)
    for start, length, _, _ in runs:
        gap[start : start + length] = False
    original = [wild(k, size, np.float32)[gap] for k in range(3)]
    assert [bits(array[gap]) for array in arrays] == [bits(values) for values in original]


def sgd_arguments(**changes: Any) -> dict[str, Any]:
    starts, sizes, rates, decays = columns([(0, 2, 0.1, 0.0), (4, 4, 0.1, 0.0)])
    buffers = {name: np.ones(8, np.float32) for name in ("weights", "gradients", "history")}
    rows = {"starts": starts, "sizes": sizes, "rates": rates, "decays": decays}
    return buffers | rows | {"momentum": 0.9, "gradient_scale": 1.0} | changes


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"gradients": np.ones(7, np.float32)}, ValueError),
        ({"history": np.ones(9, np.float32)}, ValueError),
        ({"sizes": np.array([1], np.uint64)}, ValueError),
        ({"rates": np.ones(3, np.float32)}, ValueError),
        ({"decays": np.ones(1, np.float32)}, ValueError),
        ({"sizes": np.array([2, 5], np.uint64)}, IndexError),
        ({"starts": np.array([0, 9], np.uint64)}, IndexError),
        ({"starts": np.array([0, 2**64 - 2], np.uint64)}, IndexError),
        ({"weights": np.ones(8)}, TypeError),
        ({"gradients": np.ones(16, np.float32)[::2]}, TypeError),
        ({"starts": np.array([0, 4])}, TypeError),
    ],
)
def test_sgd_momentum_refuses_and_writes_nothing(changes: dict[str, Any], error: type[Exception]) -> None:
    arguments = sgd_arguments(**changes)
    with pytest.raises(error):
        _native.sgd_momentum(**arguments)
    assert (arguments["weights"] == 1).all()
    assert (arguments["history"] == 1).all()
