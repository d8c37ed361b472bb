"""Layers over windows and channels: convolutions, pooling, normalizations, inner products."""

import itertools

import numpy as np

from tests.unit.frontends.caffe.reference.case import Array, Case, Draw


def convolution(draw: Draw) -> Case:
    w = _Windows(draw)
    shape = (w.group * draw.integer(1, 2), *w.sizes)
    num_output, with_bias = w.group * draw.size(1, 2), draw.one_of(True, False)
    lead = (draw.integer(1, 2), *((2,) * draw.integer(0, 1) if len(w.sizes) < 3 else ()))  # axes before the channels
    weight = draw.values(num_output, shape[0] // w.group, *w.kernel)
    outputs = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(w.sizes, w.kernel, w.stride, w.pad, w.dilation, strict=True)
    ]

    def reference(x: Array, weight: Array, bias: Array | None = None) -> list[Array]:
        padded = np.pad(x.reshape(-1, *shape), [(0, 0), (0, 0), *((p, p) for p in w.pad)])
        y = np.zeros((len(padded), num_output, *outputs))
        if bias is not None:
            y += bias.reshape(-1, *(1,) * len(outputs))
        for g, offset in itertools.product(range(w.group), np.ndindex(*w.kernel)):
            ins, outs = _part(shape[0], w.group, g), _part(num_output, w.group, g)
            patch = padded[(slice(None), ins, *w.positions(offset, outputs))]
            y[:, outs] += np.einsum("nc...,oc->no...", patch, weight[(outs, slice(None), *offset)])
        return [y.reshape(*lead, num_output, *outputs)]

    axis = draw.one_of(len(lead), -len(shape))
    flags = f"bias_term: {str(with_bias).lower()} axis: {axis}"
    settings = f"convolution_param {{ num_output: {num_output} {w.text} {flags} }}"
    parameters = [weight, draw.values(num_output)][: 1 + with_bias]
    return Case("Convolution", settings, [draw.values(*lead, *shape)], reference, parameters)


def deconvolution(draw: Draw) -> Case:
    w = _Windows(draw)
    sizes = [min(size, 3) for size in w.sizes]
    channels, num_output = w.group * draw.integer(1, 2), w.group * draw.integer(1, 2)
    pad = [min(p, k - 1) for p, k in zip(w.pad, w.kernel, strict=True)] if min(sizes) > 1 else [0] * len(sizes)
    whole = [s * (n - 1) + d * (k - 1) + 1 for n, k, s, d in zip(sizes, w.kernel, w.stride, w.dilation, strict=True)]
    pad = [p if 2 * p < size else 0 for p, size in zip(pad, whole, strict=True)]

    def reference(x: Array, weight: Array, bias: Array | float = 0.0) -> list[Array]:
        y = np.zeros((len(x), num_output, *whole))
        for g, offset in itertools.product(range(w.group), np.ndindex(*w.kernel)):
            ins, outs = _part(channels, w.group, g), _part(num_output, w.group, g)
            target = (slice(None), outs, *w.positions(offset, sizes))
            y[target] += np.einsum("nc...,co->no...", x[:, ins], weight[(ins, slice(None), *offset)])
        inner = tuple(slice(p, size - p) for p, size in zip(pad, whole, strict=True))
        return [y[(slice(None), slice(None), *inner)] + np.reshape(bias, (-1, *(1,) * len(whole)))]

    with_bias = draw.one_of(True, False)
    flags = f"{w.text_of(pad)} bias_term: {str(with_bias).lower()}"
    weight = draw.values(channels, num_output // w.group, *w.kernel)
    settings = f"convolution_param {{ num_output: {num_output} {flags} }}"
    parameters = [weight, draw.values(num_output)][: 1 + with_bias]
    return Case("Deconvolution", settings, [draw.values(1, channels, *sizes)], reference, parameters)


class _Windows:
    def __init__(self, draw: Draw) -> None:
        axes = draw.integer(1, 3)
        most = (3, 3, 2)[axes - 1]
        self.kernel = [draw.integer(1, most) for _ in range(axes)]
        self.stride = [draw.integer(1, 2) for _ in range(axes)]
        self.pad = [draw.integer(0, 1) for _ in range(axes)]
        self.dilation = [draw.integer(1, 2) for _ in range(axes)]
        self.group = draw.integer(1, 2)
        self.sizes = [d * (k - 1) + 1 + draw.integer(0, 2) for d, k in zip(self.dilation, self.kernel, strict=True)]
        self.text = self.text_of(self.pad)

    def text_of(self, pad: list[int]) -> str:
        named = {"kernel_size": self.kernel, "stride": self.stride, "pad": pad, "dilation": self.dilation}
        return f"group: {self.group} " + " ".join(f"{name}: {v}" for name, values in named.items() for v in values)

    def positions(self, offset: tuple[int, ...], counts: list[int]) -> tuple[slice, ...]:
        return tuple(
            slice(o * d, o * d + (n - 1) * s + 1, s)
            for o, n, s, d in zip(offset, counts, self.stride, self.dilation, strict=True)
        )


def _part(count: int, group: int, index: int) -> slice:
    return slice(index * count // group, (index + 1) * count // group)


def pooling(draw: Draw) -> Case:
    method = draw.one_of("MAX", "AVE")
    is_global, floor = draw.integer(0, 4) == 0, draw.one_of(True, False)
    size = [draw.integer(3, 6), draw.size(3, 6)]
    kernel = size if is_global else [draw.integer(1, 3), draw.integer(1, 3)]
    stride = [1, 1] if is_global else [draw.integer(1, k) for k in kernel]
    pad = [0, 0] if is_global else [draw.integer(0, k - 1) for k in kernel]
    counts = []
    for n, k, s, p in zip(size, kernel, stride, pad, strict=True):
        room = (n + 2 * p - k) / s
        count = int(np.floor(room) if floor else np.ceil(room)) + 1
        counts.append(count - 1 if any(pad) and (count - 1) * s >= n + p else count)

    def reference(x: Array) -> list[Array]:
        y = np.zeros((*x.shape[:2], *counts))
        for i, j in np.ndindex(*counts):
            starts = [at * s - p for at, s, p in zip((i, j), stride, pad, strict=True)]
            ends = [min(a + k, n + p) for a, k, n, p in zip(starts, kernel, size, pad, strict=True)]
            divisor = (ends[0] - starts[0]) * (ends[1] - starts[1])
            rows, columns = (slice(max(a, 0), min(b, n)) for a, b, n in zip(starts, ends, size, strict=True))
            window = x[:, :, rows, columns]
            y[:, :, i, j] = window.max((2, 3)) if method == "MAX" else window.sum((2, 3)) / divisor
        return [y]

    sizes = (
        "global_pooling: true"
        if is_global
        else (
            f"kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride_h: {stride[0]} stride_w: {stride[1]} "
            f"pad_h: {pad[0]} pad_w: {pad[1]}"
        )
    )
    settings = f"pooling_param {{ pool: {method} {sizes} {'round_mode: FLOOR' if floor else ''} }}"
    return Case("Pooling", settings, [draw.distinct(1, draw.size(1, 2), *size)], reference)


def stochastic_pooling_in_test(draw: Draw) -> Case:
    kernel, stride = draw.integer(1, 3), draw.integer(1, 2)
    height, width = draw.integer(3, 5), draw.integer(3, 5)
    counts = [-(-(n - kernel) // stride) + 1 for n in (height, width)]

    def reference(x: Array) -> list[Array]:
        y = np.zeros((*x.shape[:2], *counts))
        for i, j in np.ndindex(*counts):
            window = x[:, :, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            y[:, :, i, j] = (window**2).sum((2, 3)) / window.sum((2, 3))
        return [y]

    settings = f"pooling_param {{ pool: STOCHASTIC kernel_size: {kernel} stride: {min(stride, kernel)} }}"
    if stride > kernel:
        stride = kernel
        counts[:] = [-(-(n - kernel) // stride) + 1 for n in (height, width)]
    return Case("Pooling", settings, [draw.values(1, 2, height, width, least=0.1)], reference, phase="TEST")


def lrn(draw: Draw) -> Case:
    size, alpha, beta, k = draw.one_of(1, 3, 5), draw.number(0.1, 2), draw.one_of(0.75, 0.5, 1.0), draw.number(1, 2)
    is_within = draw.one_of(True, False)
    reach = size // 2

    def reference(x: Array) -> list[Array]:
        squares = np.zeros_like(x)
        if is_within:
            for i, j in np.ndindex(*x.shape[2:]):
                near = x[:, :, max(i - reach, 0) : i + reach + 1, max(j - reach, 0) : j + reach + 1]
                squares[:, :, i, j] = (near**2).sum((2, 3))
            return [x * (1 + alpha * squares / size**2) ** -beta]
        for c in range(x.shape[1]):
            squares[:, c] = (x[:, max(c - reach, 0) : c + reach + 1] ** 2).sum(1)
        return [x * (k + alpha * squares / size) ** -beta]

    region = "WITHIN_CHANNEL" if is_within else "ACROSS_CHANNELS"
    settings = f"lrn_param {{ local_size: {size} alpha: {alpha} beta: {beta} k: {k} norm_region: {region} }}"
    return Case(
        "LRN",
        settings,
        [draw.values(draw.integer(1, 2), draw.size(1, 4), draw.integer(1, 3), draw.size(1, 3))],
        reference,
    )


def mvn(draw: Draw) -> Case:
    across, variance = draw.one_of(True, False), draw.one_of(True, False)
    shape = (draw.integer(1, 2), draw.integer(1, 3), draw.integer(2, 3), draw.size(3, 3))

    def reference(x: Array) -> list[Array]:
        axes = (1, 2, 3) if across else (2, 3)
        centered = x - x.mean(axes, keepdims=True)
        return [centered / (np.sqrt((centered**2).mean(axes, keepdims=True)) + 1e-9) if variance else centered]

    settings = f"across_channels: {str(across).lower()} normalize_variance: {str(variance).lower()}"
    return Case("MVN", f"mvn_param {{ {settings} }}", [draw.values(*shape)], reference)


def batch_norm(draw: Draw) -> Case:
    """The statistics are given as parameters; their changes have their own tests."""
    shape = (draw.integer(4, 6), draw.size(1, 3), *draw.shape(0, 2))
    phase, given, eps = draw.one_of("TRAIN", "TEST"), draw.one_of(None, True, False), draw.one_of(1e-5, 1e-2, 0.5)
    uses_global = phase == "TEST" if given is None else given
    count = draw.one_of(0.5, 1.0, 999.9)

    def reference(x: Array, mean: Array, variance: Array, count: Array) -> list[Array]:
        axes = (0, *range(2, x.ndim))
        mean, variance = mean / count, variance / count
        if not uses_global:
            mean, variance = x.mean(axes), x.var(axes)
        column = (-1, *(1,) * (x.ndim - 2))
        return [(x - mean.reshape(column)) / np.sqrt(variance.reshape(column) + eps)]

    text = "" if given is None else f"use_global_stats: {str(given).lower()}"
    statistics = [draw.values(shape[1]), draw.values(shape[1], least=0.5), np.array([count], np.float32)]
    settings = f"batch_norm_param {{ eps: {eps} {text} }}"
    x = draw.values(*shape, scale=draw.one_of(1.0, 3.0))
    return Case("BatchNorm", settings, [x], reference, statistics, phase=phase)


def inner_product(draw: Draw) -> Case:
    shape, num_output = draw.shape(1, 4), draw.integer(1, 3)
    axis, transposed, with_bias = draw.axis(shape), draw.one_of(True, False), draw.one_of(True, False)
    at = axis % len(shape)
    size = int(np.prod(shape[at:]))

    def reference(x: Array, w: Array, b: Array | float = 0.0) -> list[Array]:
        rows = x.reshape(*x.shape[:at], -1)
        return [rows @ (w if transposed else w.T) + b]

    flags = f"transpose: {str(transposed).lower()} bias_term: {str(with_bias).lower()}"
    weight = draw.values(*((size, num_output) if transposed else (num_output, size)))
    return Case(
        "InnerProduct",
        f"inner_product_param {{ num_output: {num_output} axis: {axis} {flags} }}",
        [draw.values(*shape)],
        reference,
        [weight, draw.values(num_output)][: 1 + with_bias],
    )


CASES = {
    f.__name__: f
    for f in (*(convolution, deconvolution, pooling, stochastic_pooling_in_test, lrn, mvn, batch_norm, inner_product),)
}
