"""The kernels of exchanged weights against NumPy, operation by operation, bit for bit."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from samovar import _native
from tests.unit.native.numbers import wild

Floats = npt.NDArray[np.float32]
SIZES = (0, 1, 7, 63, 2049, 10_000)
RATES = (0.18, 0.5, 0.3)


def cases(num_arrays: int) -> Iterator[tuple[float, list[Floats]]]:
    for size in SIZES:
        for rate in RATES:
            yield rate, [wild(seed, size, np.float32) for seed in range(num_arrays)]


def assert_equal(found: list[Floats], wanted: list[Floats]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)  # not-a-numbers are equal here
        assert (np.signbit(one) == np.signbit(other))[~np.isnan(one)].all()


def test_elastic_pull() -> None:
    for rate, (x, center, difference) in cases(3):
        with np.errstate(all="ignore"):
            d = np.float32(rate) * (x - center)
            wanted = [x - d, center.copy(), d]
        _native.elastic_pull(x, center, difference, rate)
        assert_equal([x, center, difference], wanted)


def test_elastic_exchange_ends_one_exchange_and_begins_the_next() -> None:
    for rate, (x, center, difference) in cases(3):
        with np.errstate(all="ignore"):
            c = center + difference
            d = np.float32(rate) * (x - c)
            wanted = [x - d, c, d]
        _native.elastic_exchange(x, center, difference, rate)
        assert_equal([x, center, difference], wanted)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_outer_step(count: int, in_place: bool) -> None:
    momentum = np.float32(0.9)
    for rate, (x, center, velocity, total) in cases(4):
        with np.errstate(all="ignore"):
            delta: Any = total / np.float32(count)
            v = momentum * velocity + delta
            moved = center - np.float32(rate) * (delta + momentum * v)
        weights = total if in_place else x
        _native.outer_step(weights, center, velocity, total, count, rate, 0.9)
        assert_equal([weights, center, velocity], [moved, moved, v])


def test_arrays_of_other_sizes_types_and_steps_are_refused() -> None:
    x, short = np.zeros(4, np.float32), np.zeros(3, np.float32)
    for kernel in (_native.elastic_pull, _native.elastic_exchange):
        for arrays in ((x, x, short), (x, short, x), (short, x, x)):
            with pytest.raises(ValueError, match="the arrays must have equal sizes"):
                kernel(*arrays, 0.5)
        with pytest.raises(TypeError):
            kernel(x, x, np.zeros(4), 0.5)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            kernel(np.zeros(8, np.float32)[::2], x, x, 0.5)
    with pytest.raises(ValueError, match="outer_step: the arrays must have equal sizes"):
        _native.outer_step(x, x, x, short, 2, 0.7, 0.9)
