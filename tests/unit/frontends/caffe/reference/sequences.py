"""Recurrent layers, picked samples, patches and pyramids."""

import numpy as np

from tests.unit.frontends.caffe.reference.case import Array, Case, Draw


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class _Sequence:
    """Inputs and parameters of a recurrent layer with `gates` x D rows of input weights."""

    def __init__(self, draw: Draw, gates: int, num_states: int) -> None:
        steps, count, self.size = draw.integer(1, 3), draw.integer(1, 2), draw.integer(1, 3)
        features = draw.shape(1, 2, most=2)
        self.is_exposed, self.has_static = draw.one_of(True, False), draw.one_of(True, False)
        self.num_states = num_states
        self.inputs = [draw.values(steps, count, *features), draw.labels(steps, count, classes=2)]
        rows = gates * self.size
        self.parameters = [draw.values(rows, int(np.prod(features))), draw.values(rows)]
        if self.has_static:
            self.inputs.append(draw.values(count, 2))
            self.parameters.append(draw.values(rows, 2))
        if self.is_exposed:
            self.inputs += [draw.values(1, count, self.size) for _ in range(num_states)]
        self.parameters.append(draw.values(rows, self.size))
        self.fixed = frozenset([1, *range(2 + self.has_static, len(self.inputs))])
        self.num_tops = 1 + (num_states if self.is_exposed else 0)
        self.settings = f"recurrent_param {{ num_output: {self.size} expose_hidden: {str(self.is_exposed).lower()} }}"

    def parts(self, *arrays: Array) -> tuple[Array, Array, list[Array], Array, list[Array]]:
        """The input's part of the gates, cont, the first states, W_state, and what parameters follow."""
        inputs, parameters = list(arrays[: len(self.inputs)]), list(arrays[len(self.inputs) :])
        x, cont = inputs[:2]
        weight, bias = parameters[:2]
        gates = x.reshape(*x.shape[:2], -1) @ weight.T + bias
        if self.has_static:
            gates = gates + inputs[2] @ parameters[2].T
        states = [np.zeros((x.shape[1], self.size))] * self.num_states
        if self.is_exposed:
            states = [state[0] for state in inputs[-self.num_states :]]
        rest = parameters[2 + self.has_static :]
        return gates, cont[..., None], states, rest[0], rest[1:]

    def outputs(self, values: list[Array], states: list[Array]) -> list[Array]:
        return [np.stack(values), *(state[None] for state in states)][: self.num_tops]


def rnn(draw: Draw) -> Case:
    it = _Sequence(draw, gates=1, num_states=1)
    parameters = [*it.parameters, draw.values(it.size, it.size), draw.values(it.size)]

    def reference(*arrays: Array) -> list[Array]:
        gates, cont, (h,), weight, (out_weight, out_bias) = it.parts(*arrays)
        values = []
        for step in range(len(gates)):
            h = np.tanh(gates[step] + (cont[step] * h) @ weight.T)
            values.append(np.tanh(h @ out_weight.T + out_bias))
        return it.outputs(values, [h])

    return Case("RNN", it.settings, it.inputs, reference, parameters, it.num_tops, it.fixed, fixed_tops=_states(it))


def lstm(draw: Draw) -> Case:
    it = _Sequence(draw, gates=4, num_states=2)

    def reference(*arrays: Array) -> list[Array]:
        gates, cont, (h, c), weight, _ = it.parts(*arrays)
        values = []
        for step in range(len(gates)):
            i, f, o, g = np.split(gates[step] + (cont[step] * h) @ weight.T, 4, 1)
            c = cont[step] * _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
            values.append(h)
        return it.outputs(values, [h, c])

    return Case("LSTM", it.settings, it.inputs, reference, it.parameters, it.num_tops, it.fixed, fixed_tops=_states(it))


def _states(it: _Sequence) -> frozenset[int]:
    return frozenset(range(1, it.num_tops))


def batch_reindex(draw: Draw) -> Case:
    shape = draw.shape()
    index = draw.labels(draw.integer(1, 5), classes=shape[0])
    inputs = [draw.values(*shape), index]
    return Case("BatchReindex", "", inputs, lambda x, index: [x[index.astype(int)]], fixed=frozenset([1]))


def filter_(draw: Draw) -> Case:
    count, num_tops = draw.integer(1, 4), draw.integer(1, 2)
    selector = draw.labels(count, classes=2)
    selector[0] = 1
    inputs = [*(draw.values(count, *draw.shape(0, 2)) for _ in range(num_tops)), selector]

    def reference(*arrays: Array) -> list[Array]:
        return [x[arrays[-1] != 0] for x in arrays[:-1]]

    return Case("Filter", "", inputs, reference, num_tops=num_tops, fixed=frozenset([num_tops]))


def im2col(draw: Draw) -> Case:
    kernel, stride = (draw.integer(1, 3), draw.integer(1, 3)), (draw.integer(1, 2), draw.integer(1, 2))
    pad, dilation = (draw.integer(0, 1), draw.integer(0, 1)), draw.integer(1, 2)
    size = [dilation * (k - 1) + draw.integer(1, 3) for k in kernel]
    counts = [
        (n + 2 * p - dilation * (k - 1) - 1) // s + 1 for n, k, s, p in zip(size, kernel, stride, pad, strict=True)
    ]

    def reference(x: Array) -> list[Array]:
        padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
        y = np.zeros((len(x), x.shape[1], *kernel, *counts))
        for a, b, i, j in np.ndindex(*kernel, *counts):
            y[:, :, a, b, i, j] = padded[:, :, i * stride[0] + a * dilation, j * stride[1] + b * dilation]
        return [y.reshape(len(x), -1, *counts)]

    windows = f"kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride_h: {stride[0]} stride_w: {stride[1]}"
    settings = f"convolution_param {{ {windows} pad_h: {pad[0]} pad_w: {pad[1]} dilation: {dilation} }}"
    return Case("Im2col", settings, [draw.values(2, 2, *size)], reference)


def spp(draw: Draw) -> Case:
    """Sizes that every level divides, or that leave its padding below its window's size."""
    height, levels, method = draw.one_of(8, 9, 7), draw.integer(1, 3), draw.one_of("MAX", "AVE")
    width = draw.one_of(4, 7, 8)

    def reference(x: Array) -> list[Array]:
        found = [_bins(x, 2**level, method) for level in range(levels)]
        return found if levels == 1 else [np.concatenate([level.reshape(len(x), -1) for level in found], 1)]

    settings = f"spp_param {{ pyramid_height: {levels} pool: {method} }}"
    return Case("SPP", settings, [draw.distinct(1, 2, height, width)], reference)


def _bins(x: Array, count: int, method: str) -> Array:
    """Windows of ceil(size / count), that far apart, from -pad on; a mean counts the padding up to size + pad."""
    kernels = [-(-n // count) for n in x.shape[2:]]
    pads = [(k * count - n + 1) // 2 for k, n in zip(kernels, x.shape[2:], strict=True)]
    axes = [
        [(i * k - p, min(i * k - p + k, n + p)) for i in range(count) if i * k - p < n]
        for k, p, n in zip(kernels, pads, x.shape[2:], strict=True)
    ]
    rows = []
    for top, bottom in axes[0]:
        row = []
        for left, right in axes[1]:
            window = x[:, :, max(top, 0) : bottom, max(left, 0) : right]
            mean = window.sum((2, 3)) / ((bottom - top) * (right - left))
            row.append(window.max((2, 3)) if method == "MAX" else mean)
        rows.append(np.stack(row, -1))
    return np.stack(rows, -2)


CASES = {f.__name__.strip("_"): f for f in (rnn, lstm, batch_reindex, filter_, im2col, spp)}
