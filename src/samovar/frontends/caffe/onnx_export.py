"""A Caffe net as an ONNX file: each layer becomes operators by its own rule, nothing is traced.

So the file describes the layers, not the kernels that compute them here, and needs no other package.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np

from samovar.core.errors import InputError
from samovar.core.files import write_whole
from samovar.formats.onnx import Dimension, OnnxGraph
from samovar.frontends.caffe.layers.activations import Dropout
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.convolution import Convolution, Deconvolution
from samovar.frontends.caffe.layers.inner_product import InnerProduct
from samovar.frontends.caffe.layers.normalization import LRN, MVN, BatchNorm
from samovar.frontends.caffe.layers.pooling import Pooling
from samovar.frontends.caffe.layers.shaping import Reshape
from samovar.frontends.caffe.module import AnyPath, Net
from samovar.frontends.caffe.onnx_values import TRANSLATIONS, Floats, Scope, Translation
from samovar.frontends.caffe.spec import Shape

_Pads: TypeAlias = tuple[int, int, int, int]  # above, left, below, right


def convolution(scope: Scope, layer: Convolution, *bottoms: str) -> list[str]:
    if layer.channel_axis != 1:
        raise layer.spec.error(f"axis: {layer.channel_axis} has no counterpart in ONNX; only axis 1 can be exported")
    window = layer.window
    parameters = [scope.parameter(index) for index in range(len(layer.parameter_names))]
    operator = "ConvTranspose" if isinstance(layer, Deconvolution) else "Conv"
    return [
        scope.op(
            operator,
            bottom,
            *parameters,
            kernel_shape=window.kernel,
            strides=window.stride,
            pads=window.padding * 2,
            dilations=window.dilation,
            group=layer.groups,
        )
        for bottom in bottoms
    ]


def inner_product(scope: Scope, layer: InnerProduct, x: str) -> str:
    shape = scope.shapes[x]
    rows = x if layer.axis == 1 and len(shape) == 2 else scope.op("Flatten", x, axis=layer.axis)
    parameters = [scope.parameter(index) for index in range(len(layer.parameter_names))]
    y = scope.op("Gemm", rows, *parameters, transB=0 if layer.transpose else 1)
    if layer.axis == 1:
        return y
    sizes = (-1, *shape[1 : layer.axis], layer.num_output) if layer.axis else (layer.num_output,)
    return scope.op("Reshape", y, scope.integers(sizes))


def pooling(scope: Scope, layer: Pooling, x: str) -> str:
    if layer.with_index:
        raise layer.spec.error("a second top (the index of the maximum) cannot be exported to ONNX; remove it", "top")
    left, right, above, below = layer.margins
    pads = (above, left, below, right)
    if layer.is_stochastic:
        return _expected(scope, layer, x, pads)
    if layer.is_global:
        return scope.op("GlobalMaxPool" if layer.is_max else "GlobalAveragePool", x)
    if layer.is_max:
        return scope.op("MaxPool", x, kernel_shape=layer.kernel, strides=layer.stride, pads=pads)
    return _mean(scope, layer, x, pads)


def _mean(scope: Scope, layer: Pooling, x: str, pads: _Pads) -> str:
    """The mean over whole windows, corrected where Caffe divides by a window's part inside the padded image."""
    y = scope.op("AveragePool", x, kernel_shape=layer.kernel, strides=layer.stride, pads=pads, count_include_pad=1)
    heights, widths = (_window_sizes(layer, pads[2 + axis], axis) for axis in (0, 1))
    correction = prod(layer.kernel) / np.outer(heights, widths)
    return y if np.all(correction == 1) else scope.op("Mul", y, scope.constant(correction))


def _expected(scope: Scope, layer: Pooling, x: str, pads: _Pads) -> str:
    """Stochastic pooling in test: the mean of squares by the mean, 0 of a window of zeros."""
    if layer.is_random:
        raise _in_training(layer, "it draws its values")
    squares, values = _mean(scope, layer, scope.op("Mul", x, x), pads), _mean(scope, layer, x, pads)
    return scope.op("Div", squares, scope.op("Add", values, scope.constant(np.finfo(np.float32).tiny)))


def _window_sizes(layer: Pooling, beyond: int, axis: int) -> Floats:
    """The share of each window inside the image padded by `pad`, if the last leaves the image by `beyond`."""
    output, kernel, stride, pad = layer.top_shapes[0][2 + axis], layer.kernel[axis], layer.stride[axis], layer.pad[axis]
    overshoot = beyond - pad - stride * np.arange(output - 1, -1, -1)
    return (kernel - np.maximum(overshoot, 0)).astype(np.float32)


def batch_norm(scope: Scope, layer: BatchNorm, x: str) -> str:
    if not layer.uses_global:
        raise _in_training(layer, "it normalizes by its batch's own statistics")
    mean, variance, count = (scope.array(index) for index in range(3))
    scale = 0.0 if count[0] == 0 else 1 / count[0]
    statistics = scope.constant(mean * scale), scope.constant(variance * scale)
    ones, zeros = scope.constant(np.ones_like(mean)), scope.constant(np.zeros_like(mean))
    return scope.op("BatchNormalization", x, ones, zeros, *statistics, epsilon=layer.eps)


def lrn(scope: Scope, layer: LRN, x: str) -> str:
    if not layer.is_within:
        return scope.op("LRN", x, size=layer.size, alpha=layer.alpha, beta=layer.beta, bias=layer.k)
    squares, window = scope.op("Mul", x, x), (layer.size, layer.size)
    pads = (layer.size // 2,) * 4
    mean = scope.op("AveragePool", squares, kernel_shape=window, strides=(1, 1), pads=pads, count_include_pad=1)
    base = scope.op("Add", scope.op("Mul", mean, scope.constant(layer.alpha)), scope.constant(1))
    return scope.op("Div", x, scope.op("Pow", base, scope.constant(layer.beta)))


def mvn(scope: Scope, layer: MVN, x: str) -> str:
    axes = tuple(range(layer.num_lead, len(scope.shapes[x])))
    if not axes:
        raise layer.spec.error("normalizes single values to 0, which cannot be exported to ONNX; remove the layer")
    y = scope.op("Sub", x, scope.op("ReduceMean", x, axes=axes, keepdims=1))
    if not layer.normalizes_variance:
        return y
    variance = scope.op("ReduceMean", scope.op("Mul", y, y), axes=axes, keepdims=1)
    return scope.op("Div", y, scope.op("Add", scope.op("Sqrt", variance), scope.constant(layer.eps)))


def dropout(_scope: Scope, layer: Dropout, x: str) -> str:
    if layer.is_random:
        raise _in_training(layer, "it drops values")
    return x


def _in_training(layer: Layer, how: str) -> InputError:
    return layer.spec.error(
        f"works as in training: {how}; for ONNX call eval() on the net first, or remove the layer's own phase or "
        "use_global_stats"
    )


_BATCH = "batch"  # the name of the free size


def export_onnx(net: Net, path: AnyPath, batch_size: int | None = None) -> None:
    """Write `net` as an ONNX file to `path`, also over an old file; see `encode_onnx`. Raises InputError as it does,
    and if the file cannot be written; an old file then stays."""
    target = Path(path)
    content = encode_onnx(net, batch_size)
    write_whole(target, content)


def encode_onnx(net: Net, batch_size: int | None = None) -> bytes:
    """The bytes of an ONNX file that computes the same as `net` after `eval()`, in float32.

    Inputs and outputs have the blobs' names, parameters those of a snapshot ("conv1/0"). The first axis of the inputs
    is free, or `batch_size`, if it has the first input's size; where a Reshape fixes it, the net's own. A net with a
    Parameter needs `batch_size`.

    Raises InputError, naming file, line and layer, for layers that work as in training. It also does for types without
    a counterpart: losses, Accuracy, RNN, LSTM, Im2col, SPP, BatchReindex, Filter, and those that a program registered.
    Cost: two copies of the parameters in memory.
    """
    caffe_net = net.caffe_net
    own = next((shape[0] for shape in net.input_shapes.values() if shape), _BATCH)
    layers = [step.layer for step in caffe_net.steps]
    is_fixed = any(isinstance(one, Reshape) and one.start == 0 and one.sizes[:1] > (0,) for one in layers)
    batch: Dimension = batch_size or (own if is_fixed else _BATCH)
    graph = OnnxGraph(caffe_net.name)
    scope = Scope(graph, caffe_net.steps)
    for name in net.input_names:
        shape = net.input_shapes[name]
        scope.add_input(name, _sizes(shape, own, batch), shape)
    for step in caffe_net.steps:
        scope.enter(step.layer)
        bottoms = [scope.value_of(blob) for blob in step.bottoms]
        made = _translation(step.layer)(scope, step.layer, *bottoms)
        tops = [made] if isinstance(made, str) else made
        for blob, value, shape in zip(step.tops, tops, step.layer.top_shapes, strict=True):
            scope.set_value(blob, value, shape)
    for name in caffe_net.output_names:
        scope.add_output(name, _sizes(scope.shapes[scope.value_of(name)], own, batch))
    return graph.encode(scope.names)


def _sizes(shape: Shape, own: Dimension, batch: Dimension) -> Sequence[Dimension]:
    """`shape` with this batch's size, if it begins with the `own` size of the net."""
    return (batch, *shape[1:]) if shape[:1] == (own,) else shape


def _translation(layer: Layer) -> Translation:
    kind = layer.spec.type
    if kind not in _TRANSLATIONS:
        raise layer.spec.error(
            f"a layer of type {kind} cannot be exported to ONNX; give a net without it (a deploy net has no losses and "
            f"no Accuracy). Types that can: {', '.join(sorted(_TRANSLATIONS))}",
            "type",
        )
    return _TRANSLATIONS[kind]


_TRANSLATIONS: dict[str, Translation] = TRANSLATIONS | {
    "BatchNorm": batch_norm,
    "Convolution": convolution,
    "Deconvolution": convolution,
    "Dropout": dropout,
    "InnerProduct": inner_product,
    "LRN": lrn,
    "MVN": mvn,
    "Pooling": pooling,
}
