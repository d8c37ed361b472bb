"""The native kernels against NumPy, bit for bit."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from samovar import _native
from tests.unit.native.numbers import wild

Floats = npt.NDArray[Any]
SIZES = (0, 1, 7, 2047, 2048, 2049, 10_000)
DTYPES = (np.float32, np.float64)


def reduced(sources: list[Floats]) -> Floats:
    """((s_0 + s_1) + s_2) + ..."""
    total = sources[0].copy()
    for source in sources[1:]:
        total = total + source
    return total


def bits(array: Floats) -> bytes:
    return array.tobytes()


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
