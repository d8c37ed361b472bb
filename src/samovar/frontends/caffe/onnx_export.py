"""A Caffe net as an ONNX file: each layer becomes operators by a rule of its own, nothing is traced.

So the file says what the layers mean, whichever kernels compute them here, and no other package is needed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from samovar.core.durable import publish_file
from samovar.core.errors import InputError
from samovar.formats.onnx import Dimension, OnnxGraph
from samovar.frontends.caffe import onnx_values, onnx_windows
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.loading import AnyPath
from samovar.frontends.caffe.module import Net
from samovar.frontends.caffe.onnx_scope import Scope
from samovar.frontends.caffe.onnx_windows import Translation
from samovar.frontends.caffe.spec import Shape

_BATCH = "batch"  # the name of the free size


def export_onnx(net: Net, path: AnyPath, batch_size: int | None = None) -> None:
    """Write `net` as an ONNX file to `path`, over what is there; see `encode_onnx`. Raises InputError as it does, and
    where the file cannot be written; it is then as it was before."""
    target = Path(path)
    content = encode_onnx(net, batch_size)
    try:
        publish_file(target, [content])
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}; give another name") from error


def encode_onnx(net: Net, batch_size: int | None = None) -> bytes:
    """The bytes of an ONNX file that computes what `net` computes after `eval()`, in float32.

    Inputs and outputs have the blobs' names, parameters those of a snapshot ("conv1/0"). The first axis of the inputs
    is free, or `batch_size`; a net whose layers fix it (Reshape, Input beside Parameter) needs that.

    Raises InputError, naming file, line and layer, for layer types without a counterpart (losses, Accuracy, RNN, LSTM,
    Im2col, SPP, BatchReindex, Filter and types that a program registered), and for layers that work as in training.
    Cost: two copies of the parameters in memory.
    """
    caffe_net = net.caffe_net
    batch: Dimension = _BATCH if batch_size is None else batch_size
    graph = OnnxGraph(caffe_net.name)
    scope = Scope(graph, caffe_net.steps)
    for name in net.input_names:
        shape = net.input_shapes[name]
        scope.add_input(name, _sizes(shape, shape, batch), shape)
    for step in caffe_net.steps:
        scope.enter(step.layer)
        bottoms = [scope.value_of(blob) for blob in step.bottoms]
        tops = _translation(step.layer)(scope, step.layer, *bottoms)
        for blob, value, shape in zip(step.tops, tops, step.layer.top_shapes, strict=True):
            scope.set_value(blob, value, shape)
    built_for = _first_input_shape(net.input_shapes)
    for name in caffe_net.output_names:
        scope.add_output(name, _sizes(scope.shapes[scope.value_of(name)], built_for, batch))
    return graph.encode()


def _sizes(shape: Shape, built_for: Shape, batch: Dimension) -> Sequence[Dimension]:
    """`shape` with the batch's size where the net was built with another."""
    follows = bool(shape) and bool(built_for) and shape[0] == built_for[0]
    return (batch, *shape[1:]) if follows else shape


def _first_input_shape(shapes: Mapping[str, Shape]) -> Shape:
    return next(iter(shapes.values()), ())


def _translation(layer: Layer) -> Translation:
    kind = layer.spec.type
    if kind not in _TRANSLATIONS:
        raise layer.spec.error(
            f"a layer of type {kind} cannot be exported to ONNX; give a net without it (a deploy net has no losses and "
            f"no Accuracy). Types that can: {', '.join(sorted(_TRANSLATIONS))}",
            "type",
        )
    return _TRANSLATIONS[kind]


def _plain(operator: str) -> Translation:
    """A layer that is one operator without settings."""

    def translate(scope: Scope, _layer: Layer, x: str) -> list[str]:
        return [scope.op(operator, x)]

    return translate


_TRANSLATIONS: dict[str, Translation] = {
    "AbsVal": _plain("Abs"),
    "ArgMax": onnx_values.arg_max,
    "BNLL": _plain("Softplus"),
    "BatchNorm": onnx_windows.batch_norm,
    "Bias": onnx_values.bias,
    "Clip": onnx_values.clip,
    "Concat": onnx_values.concat,
    "Convolution": onnx_windows.convolution,
    "Crop": onnx_values.crop,
    "Deconvolution": onnx_windows.convolution,
    "Dropout": onnx_windows.dropout,
    "DummyData": onnx_values.dummy_data,
    "ELU": onnx_values.elu,
    "Eltwise": onnx_values.eltwise,
    "Embed": onnx_values.embed,
    "Exp": onnx_values.exp,
    "Flatten": onnx_values.flatten,
    "InnerProduct": onnx_windows.inner_product,
    "LRN": onnx_windows.lrn,
    "Log": onnx_values.log,
    "MVN": onnx_windows.mvn,
    "PReLU": onnx_values.prelu,
    "Parameter": onnx_values.parameter,
    "Pooling": onnx_windows.pooling,
    "Power": onnx_values.power,
    "ReLU": onnx_values.relu,
    "Reduction": onnx_values.reduction,
    "Reshape": onnx_values.reshape,
    "Scale": onnx_values.scale,
    "Sigmoid": _plain("Sigmoid"),
    "Silence": onnx_values.silence,
    "Slice": onnx_values.slice_,
    "Softmax": onnx_values.softmax,
    "Split": onnx_values.split,
    "Swish": onnx_values.swish,
    "TanH": _plain("Tanh"),
    "Threshold": onnx_values.threshold,
    "Tile": onnx_values.tile,
}
