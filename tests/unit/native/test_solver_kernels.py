"""The solvers' kernels with arguments that do not fit, and over rows with gaps between them."""

from typing import Any

import numpy as np
import pytest

from samovar import _native
from tests.unit.native.numbers import wild

KERNELS = {
    _native.sgd_step: (1, 1),
    _native.nesterov_step: (1, 1),
    _native.adagrad_step: (1, 1),
    _native.rmsprop_step: (1, 2),
    _native.adadelta_step: (2, 2),
    _native.adam_step: (2, 3),
}


def rows_of(num_elements: int, *runs: tuple[int, int], **changes: Any) -> _native.SolverRows:
    columns: dict[str, Any] = {
        "starts": np.array([start for start, _ in runs], np.uint64),
        "sizes": np.array([size for _, size in runs], np.uint64),
        "l2_decays": np.zeros(len(runs), np.float32),
        "l1_decays": np.zeros(len(runs), np.float32),
    }
    return _native.SolverRows(num_elements, **(columns | changes))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_elements_outside_of_rows_stay(kernel: Any) -> None:
    num_histories, num_constants = KERNELS[kernel]
    runs = ((3, 1), (16, 2047), (2064, 2049), (5000, 0))
    arrays = [np.full(6000, 0.5, np.float32) for _ in range(2 + num_histories)]
    rates = np.full(len(runs), 0.25, np.float32)
    kernel(*arrays, rows_of(6000, *runs), rates, 1.0, *[0.5] * num_constants)
    inside = np.zeros(6000, bool)
    for start, size in runs:
        inside[start : start + size] = True
    for array in (arrays[0], *arrays[2:]):
        assert (array[~inside] == 0.5).all()
    assert (arrays[0][inside] < 0.5).all()
    assert len(np.unique(arrays[0][inside])) == 1, "the same at every place of a vector"
    assert (arrays[1] == 0.5).all()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize(
    ("place", "array", "error"),
    [
        (0, np.ones(7, np.float32), ValueError),
        (1, np.ones(9, np.float32), ValueError),
        (-1, np.ones(9, np.float32), ValueError),
        (0, np.ones(8), TypeError),
        (-1, np.ones(16, np.float32)[::2], TypeError),
    ],
)
def test_refused_and_nothing_written(kernel: Any, place: int, array: Any, error: type[Exception]) -> None:
    num_histories, num_constants = KERNELS[kernel]
    arrays = [np.ones(8, np.float32) for _ in range(2 + num_histories)]
    arrays[place] = array
    with pytest.raises(error):
        kernel(*arrays, rows_of(8, (0, 8)), np.ones(1, np.float32), 1.0, *[0.5] * num_constants)
    with pytest.raises(ValueError, match="rates must have one entry per row: 1"):
        kernel(
            *[np.ones(8, np.float32)] * (2 + num_histories),
            rows_of(8, (0, 8)),
            np.ones(2, np.float32),
            1.0,
            *[0.5] * num_constants,
        )
    assert all((values == 1).all() for values in arrays)


@pytest.mark.parametrize(
    ("runs", "changes", "error"),
    [
        (((0, 9),), {}, IndexError),
        (((9, 0),), {}, IndexError),
        (((2**64 - 2, 4),), {}, IndexError),
        (((0, 4),), {"sizes": np.zeros(2, np.uint64)}, ValueError),
        (((0, 4),), {"l1_decays": np.zeros(2, np.float32)}, ValueError),
        (((0, 4),), {"starts": np.zeros(1)}, TypeError),
    ],
)
def test_rows_outside_of_the_buffer(runs: Any, changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        rows_of(8, *runs, **changes)


def sgd(weights: Any, gradients: Any, history: Any, rows: list[Any], momentum: float, scale: float) -> None:
    number = np.float32
    for start, size, rate, decay in rows:
        run = slice(start, start + size)
        sign = (weights[run] > 0).astype(number) - (weights[run] < 0).astype(number)
        gradient = number(scale) * gradients[run] + number(decay) * weights[run] + number(0) * sign
        history[run] = number(momentum) * history[run] + number(rate) * gradient
        weights[run] = weights[run] - history[run]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_sgd_rows_have_their_own_rates_and_leave_the_gaps(momentum: float, scale: float) -> None:
    size = 12_000
    rows = [(3, 1, 0.1, 0.0), (16, 2047, 0.01, 5e-4), (2064, 2049, 0.02, 0.0), (5000, 0, 1.0, 1.0), (5000, 7000, 0, 1)]
    runs = [(start, length) for start, length, _, _ in rows]
    rates, decays = (np.array([row[k] for row in rows], np.float32) for k in (2, 3))
    weights, gradients, history = arrays = [wild(k, size, np.float32) for k in range(3)]
    twins = [array.copy() for array in arrays]
    for _ in range(3):
        _native.sgd_step(weights, gradients, history, rows_of(size, *runs, l2_decays=decays), rates, scale, momentum)
        with np.errstate(all="ignore"):
            sgd(twins[0], twins[1], twins[2], rows, momentum, scale)
    assert [array.tobytes() for array in arrays] == [twin.tobytes() for twin in twins]
    gap = np.ones(size, bool)
    for start, length in runs:
        gap[start : start + length] = False
    original = [wild(k, size, np.float32)[gap] for k in range(3)]
    assert [array[gap].tobytes() for array in arrays] == [values.tobytes() for values in original]
