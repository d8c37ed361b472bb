"""Pooling against Caffe's rules, written with loops in float64."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from samovar.core.errors import InputError

RunLayer = Callable[..., dict[str, np.ndarray]]


@dataclass(frozen=True)
class Window:
    """Settings as text, and what they mean for height and width."""

    text: str
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    floor: bool = False


WINDOWS = [
    Window("kernel_size: 2 stride: 2", (2, 2), (2, 2)),
    Window("kernel_size: 3 stride: 2", (3, 3), (2, 2)),
    Window("kernel_size: 3 stride: 2 round_mode: FLOOR", (3, 3), (2, 2), floor=True),
    Window("kernel_size: 3 stride: 2 pad: 1", (3, 3), (2, 2), (1, 1)),
    Window("kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR", (3, 3), (2, 2), (1, 1), floor=True),
    Window("kernel_size: 2 stride: 3 pad: 1", (2, 2), (3, 3), (1, 1)),  # the last window is clipped away
    Window("kernel_size: 3 stride: 1 pad: 2", (3, 3), (1, 1), (2, 2)),  # wider than torch's own padding
    Window("kernel_size: 4 stride: 3 pad: 3", (4, 4), (3, 3), (3, 3)),
    Window("kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0", (3, 2), (2, 1), (1, 0)),
    Window("kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 3 pad_h: 2 pad_w: 1", (3, 2), (2, 3), (2, 1)),
    Window("kernel_size: 9 stride: 9", (9, 9), (9, 9)),  # larger than the image
    Window("global_pooling: true", (7, 8)),
]


def output_size(size: int, window: Window, axis: int) -> int:
    kernel, stride, pad = window.kernel[axis], window.stride[axis], window.pad[axis]
    rounded = math.floor if window.floor else math.ceil
    count = rounded((size + 2 * pad - kernel) / stride) + 1
    return count - 1 if window.pad != (0, 0) and (count - 1) * stride >= size + pad else count


@dataclass
class Pooled:
    y: np.ndarray
    index: np.ndarray
    dx: np.ndarray


def pool(x: np.ndarray, window: Window, is_max: bool) -> Pooled:
    """Each window clipped to the image; MAX takes the first, AVE divides by the part in the padded image."""
    height, width = x.shape[2:]
    y = np.zeros((*x.shape[:2], output_size(height, window, 0), output_size(width, window, 1)))
    index, dx = np.zeros_like(y), np.zeros(x.shape)
    for n, c, i, j in np.ndindex(*y.shape):
        top, left = (at * window.stride[a] - window.pad[a] for a, at in ((0, i), (1, j)))
        bottom = min(top + window.kernel[0], height + window.pad[0])
        right = min(left + window.kernel[1], width + window.pad[1])
        area = (bottom - top) * (right - left)
        rows, columns = slice(max(top, 0), min(bottom, height)), slice(max(left, 0), min(right, width))
        patch = x[n, c, rows, columns].astype(np.float64)
        if is_max:
            row, column = divmod(int(patch.argmax()), patch.shape[1])
            y[n, c, i, j] = patch[row, column]
            index[n, c, i, j] = (rows.start + row) * width + columns.start + column
            dx[n, c, rows.start + row, columns.start + column] += dy_at(n, c, i, j)
        else:
            y[n, c, i, j] = patch.sum() / area
            dx[n, c, rows, columns] += dy_at(n, c, i, j) / area
    return Pooled(y, index, dx)


def dy_at(n: int, c: int, i: int, j: int) -> float:
    """The gradient of each output: different everywhere."""
    return 1 + n + 0.5 * c + 0.25 * i - 0.125 * j


def run(
    run_layer: RunLayer, x: np.ndarray, window: Window, pool: str, tops: str, **options: bool
) -> dict[str, np.ndarray]:
    shape = (*x.shape[:2], output_size(x.shape[2], window, 0), output_size(x.shape[3], window, 1))
    dy = np.fromfunction(np.vectorize(dy_at), shape)
    return run_layer(
        f'type: "Pooling" {tops} pooling_param {{ pool: {pool} {window.text} }}', {"data": x}, dy, **options
    )


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
def test_maximum(run_layer: RunLayer, rng: np.random.Generator, window: Window, channels_last: bool) -> None:
    x = rng.integers(-9, 0, (2, 3, 7, 8)).astype(np.float32)  # below 0: padding must not win; many ties
    expected = pool(x, window, is_max=True)

    got = run(run_layer, x, window, "MAX", 'top: "y"', channels_last=channels_last)
    with_index = run(run_layer, x, window, "MAX", 'top: "y" top: "index"', channels_last=channels_last)

    np.testing.assert_array_equal(got["y"], expected.y)
    np.testing.assert_allclose(got["d data"], expected.dx, rtol=1e-6)
    np.testing.assert_array_equal(with_index["index"], expected.index)
    np.testing.assert_array_equal(with_index["y"], expected.y)
    np.testing.assert_allclose(with_index["d data"], expected.dx, rtol=1e-6)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
def test_mean(run_layer: RunLayer, rng: np.random.Generator, window: Window, channels_last: bool) -> None:
    x = rng.standard_normal((2, 3, 7, 8)).astype(np.float32)
    expected = pool(x, window, is_max=False)

    got = run(run_layer, x, window, "AVE", 'top: "y"', channels_last=channels_last)

    np.testing.assert_allclose(got["y"], expected.y, atol=1e-6)
    np.testing.assert_allclose(got["d data"], expected.dx, atol=1e-6)


def test_57_where_flooring_gives_56(run_layer: RunLayer) -> None:
    x = np.zeros((1, 1, 113, 113), np.float32)

    up = run_layer('type: "Pooling" top: "y" pooling_param { kernel_size: 2 stride: 2 }', {"data": x})
    down = run_layer(
        'type: "Pooling" top: "y" pooling_param { kernel_size: 2 stride: 2 round_mode: FLOOR }', {"data": x}
    )

    assert up["y"].shape == (1, 1, 57, 57)
    assert down["y"].shape == (1, 1, 56, 56)


def test_a_window_outside_of_the_image_is_refused(run_layer: RunLayer) -> None:
    with pytest.raises(InputError, match="last window outside of the image"):
        run_layer(
            'type: "Pooling" top: "y" pooling_param { kernel_size: 1 stride: 4 }',
            {"data": np.zeros((1, 1, 4, 4), np.float32)},
        )
