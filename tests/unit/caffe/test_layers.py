"""Convolution, InnerProduct, ReLU and Softmax against definitions written with loops in float64."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

RunLayer = Callable[..., dict[str, np.ndarray]]


def near(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@dataclass(frozen=True)
class Window:
    """Settings of a convolution as text, and what they mean."""

    text: str
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    group: int = 1


WINDOWS = [
    Window("kernel_size: 3", (3, 3)),
    Window("kernel_size: 2 stride: 2 pad: 1", (2, 2), (2, 2), (1, 1)),
    Window("kernel_size: 3 dilation: 2 pad: 2", (3, 3), pad=(2, 2), dilation=(2, 2)),
    Window("kernel_h: 3 kernel_w: 1 stride_h: 1 stride_w: 2 pad_h: 1 pad_w: 0", (3, 1), (1, 2), (1, 0)),
    Window("kernel_size: 2 kernel_size: 3 stride: 3 group: 3", (2, 3), (3, 3), group=3),
]


@dataclass
class Convolved:
    """y[n, o, i, j] = b[o] + sum of w[o] times its patch of the padded x, and the gradients of sum(y dy)."""

    y: np.ndarray
    dx: np.ndarray
    dw: np.ndarray


def convolve(x: np.ndarray, w: np.ndarray, b: np.ndarray, dy: np.ndarray | None, window: Window) -> Convolved:
    pad_h, pad_w = window.pad
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad_h, pad_h), (pad_w, pad_w)))
    extents = [d * (k - 1) + 1 for d, k in zip(window.dilation, window.kernel, strict=True)]
    sizes = [(padded.shape[2 + a] - extents[a]) // window.stride[a] + 1 for a in (0, 1)]
    y = np.zeros((len(x), len(w), *sizes))
    dy = np.zeros_like(y) if dy is None else dy
    dpadded, dw = np.zeros_like(padded), np.zeros(w.shape)
    for n, o, i, j in np.ndindex(*y.shape):
        first = o // (len(w) // window.group) * w.shape[1]
        rows, columns = (
            slice(at * window.stride[a], at * window.stride[a] + extents[a], window.dilation[a])
            for a, at in ((0, i), (1, j))
        )
        patch = (n, slice(first, first + w.shape[1]), rows, columns)
        y[n, o, i, j] = b[o] + (padded[patch] * w[o]).sum()
        dpadded[patch] += w[o] * dy[n, o, i, j]
        dw[o] += padded[patch] * dy[n, o, i, j]
    return Convolved(y, dpadded[:, :, pad_h : pad_h + x.shape[2], pad_w : pad_w + x.shape[3]], dw)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
def test_convolution(run_layer: RunLayer, rng: np.random.Generator, window: Window, channels_last: bool) -> None:
    x = rng.standard_normal((2, 3, 6, 7)).astype(np.float32)
    w = rng.standard_normal((6, 3 // window.group, *window.kernel)).astype(np.float32)
    b = rng.standard_normal(6).astype(np.float32)
    dy = rng.standard_normal(convolve(x, w, b, None, window).y.shape)
    expected = convolve(x, w, b, dy, window)

    got = run_layer(
        f'type: "Convolution" top: "y" convolution_param {{ num_output: 6 {window.text} }}',
        {"data": x},
        dy,
        {"x/0": w, "x/1": b},
        channels_last=channels_last,
    )

    near(got["y"], expected.y)
    near(got["d data"], expected.dx)
    near(got["d x/0"], expected.dw)
    near(got["d x/1"], dy.sum((0, 2, 3)))


def test_convolution_over_one_axis(run_layer: RunLayer, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 9)).astype(np.float32)
    w = rng.standard_normal((4, 3, 3)).astype(np.float32)
    flat = convolve(x[:, :, None], w[:, :, None], np.zeros(4), None, Window("", (1, 3), (1, 2), (0, 1)))

    got = run_layer(
        'type: "Convolution" top: "y" '
        "convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 bias_term: false }",
        {"data": x},
        parameters={"x/0": w},
    )

    near(got["y"], flat.y[:, :, 0])


def test_convolution_with_channels_on_axis_2(run_layer: RunLayer, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 5, 3, 9)).astype(np.float32)
    w = rng.standard_normal((4, 3, 2)).astype(np.float32)
    flat = convolve(x.reshape(10, 3, 1, 9), w[:, :, None], np.zeros(4), None, Window("", (1, 2)))

    got = run_layer(
        'type: "Convolution" top: "y" convolution_param { num_output: 4 kernel_size: 2 axis: -2 bias_term: false }',
        {"data": x},
        parameters={"x/0": w},
    )

    near(got["y"], flat.y.reshape(2, 5, 4, 8))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_inner_product(run_layer: RunLayer, rng: np.random.Generator, axis: int, transpose: bool) -> None:
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    lead = x.shape[:axis]
    rows = x.reshape(int(np.prod(lead)), -1).astype(np.float64)
    w = rng.standard_normal((3, rows.shape[1])).astype(np.float32)
    b = rng.standard_normal(3).astype(np.float32)
    dy = rng.standard_normal((len(rows), 3))

    got = run_layer(
        'type: "InnerProduct" top: "y" '
        f"inner_product_param {{ num_output: 3 axis: {axis} transpose: {str(transpose).lower()} }}",
        {"data": x},
        dy,
        {"x/0": w.T if transpose else w, "x/1": b},
        channels_last=True,
    )

    near(got["y"], (rows @ w.T + b).reshape(*lead, 3))
    near(got["d data"], (dy @ w).reshape(x.shape))
    near(got["d x/0"], (dy.T @ rows).T if transpose else dy.T @ rows)
    near(got["d x/1"], dy.sum(0))


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_relu(run_layer: RunLayer, slope: float) -> None:
    x = np.array([[-2.0, -0.0, 0.0, 3.0]], np.float32)

    got = run_layer(f'type: "ReLU" top: "y" relu_param {{ negative_slope: {slope} }}', {"data": x}, np.ones((1, 4)))

    np.testing.assert_allclose(got["y"], [[-2 * slope, 0, 0, 3]])
    np.testing.assert_allclose(got["d data"], [[slope, slope, slope, 1]])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(run_layer: RunLayer, rng: np.random.Generator, axis: int) -> None:
    x = (30 * rng.standard_normal((3, 4, 2))).astype(np.float32)
    dy = rng.standard_normal(x.shape)
    powers = np.exp(x.astype(np.float64) - x.max())
    y = powers / powers.sum(axis, keepdims=True)

    got = run_layer(f'type: "Softmax" top: "y" softmax_param {{ axis: {axis} }}', {"data": x}, dy)

    near(got["y"], y)
    near(got["d data"], y * (dy - (dy * y).sum(axis, keepdims=True)))
