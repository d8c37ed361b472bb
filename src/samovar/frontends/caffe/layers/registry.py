"""Layer types by the name a prototxt uses."""

from samovar.formats.caffe.text import nearest
from samovar.frontends.caffe.layers.activations import BNLL, ELU, PReLU, ReLU, Sigmoid, Softmax, Swish, TanH
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.classification import Accuracy, SoftmaxWithLoss
from samovar.frontends.caffe.layers.combining import (
    AbsVal,
    ArgMax,
    Bias,
    Clip,
    Eltwise,
    Exp,
    Log,
    Power,
    Reduction,
    Scale,
    Threshold,
)
from samovar.frontends.caffe.layers.convolution import Convolution, Deconvolution
from samovar.frontends.caffe.layers.hdf5_output import HDF5Output
from samovar.frontends.caffe.layers.inner_product import Embed, InnerProduct, Parameter
from samovar.frontends.caffe.layers.inputs import DummyData
from samovar.frontends.caffe.layers.normalization import LRN, MVN, BatchNorm
from samovar.frontends.caffe.layers.pair_losses import (
    ContrastiveLoss,
    EuclideanLoss,
    HingeLoss,
    InfogainLoss,
    MultinomialLogisticLoss,
    SigmoidCrossEntropyLoss,
)
from samovar.frontends.caffe.layers.picking import SPP, BatchReindex, Filter, Im2col
from samovar.frontends.caffe.layers.pooling import Pooling
from samovar.frontends.caffe.layers.random_layer import Dropout
from samovar.frontends.caffe.layers.recurrent import LSTM, RNN
from samovar.frontends.caffe.layers.shaping import Concat, Crop, Flatten, Reshape, Silence, Slice, Split, Tile
from samovar.frontends.caffe.layers.user_layer import ModuleFactory, UserLayer
from samovar.frontends.caffe.spec import LayerSpec

DATA_TYPES = {
    "Data": ("data_param", "transform_param"),
    "HDF5Data": ("hdf5_data_param",),
    "ImageData": ("image_data_param", "transform_param"),
    "WindowData": ("window_data_param", "transform_param"),
}
"""Layers that read what files hold, and the fields with their settings."""
INPUT_TYPES = {"Input": ("input_param",), "MemoryData": ("memory_data_param",)}
"""Layers whose tops the caller of the net provides."""

_LAYERS: dict[str, type[Layer]] = {
    "AbsVal": AbsVal,
    "Accuracy": Accuracy,
    "ArgMax": ArgMax,
    "BNLL": BNLL,
    "BatchNorm": BatchNorm,
    "BatchReindex": BatchReindex,
    "Bias": Bias,
    "Clip": Clip,
    "Concat": Concat,
    "ContrastiveLoss": ContrastiveLoss,
    "Convolution": Convolution,
    "Crop": Crop,
    "Deconvolution": Deconvolution,
    "Dropout": Dropout,
    "DummyData": DummyData,
    "ELU": ELU,
    "Eltwise": Eltwise,
    "Embed": Embed,
    "EuclideanLoss": EuclideanLoss,
    "Exp": Exp,
    "Filter": Filter,
    "Flatten": Flatten,
    "HDF5Output": HDF5Output,
    "HingeLoss": HingeLoss,
    "Im2col": Im2col,
    "InfogainLoss": InfogainLoss,
    "InnerProduct": InnerProduct,
    "LRN": LRN,
    "LSTM": LSTM,
    "Log": Log,
    "MVN": MVN,
    "MultinomialLogisticLoss": MultinomialLogisticLoss,
    "PReLU": PReLU,
    "Parameter": Parameter,
    "Pooling": Pooling,
    "Power": Power,
    "RNN": RNN,
    "ReLU": ReLU,
    "Reduction": Reduction,
    "Reshape": Reshape,
    "SPP": SPP,
    "Scale": Scale,
    "Sigmoid": Sigmoid,
    "SigmoidCrossEntropyLoss": SigmoidCrossEntropyLoss,
    "Silence": Silence,
    "Slice": Slice,
    "Softmax": Softmax,
    "SoftmaxWithLoss": SoftmaxWithLoss,
    "Split": Split,
    "Swish": Swish,
    "TanH": TanH,
    "Threshold": Threshold,
    "Tile": Tile,
}
SUPPORTED = tuple(sorted((*_LAYERS, *DATA_TYPES, *INPUT_TYPES)))
_WAYS_OUT = {
    "LSTMUnit": "is a part of Caffe's own LSTM; write a layer of type LSTM",
    "Python": "runs code that the net names, which never happens here; write the layer as a torch module, and register "
    "it in your program with samovar.caffe.register_layer('{name}', ...): layers of type Python whose python_param has "
    "layer: '{name}' are then of that module",
}
_OF_CAFFE = frozenset(_WAYS_OUT)
_MAX_SHOWN = 80


def register_layer(name: str, factory: ModuleFactory) -> None:
    """Let prototxts use layers of type `name`; `factory(settings, bottom_shapes)` makes each one's torch module.

    `settings` is a dict, read from the layer's `python_param { param_str: '{"size": 3}' }`; `bottom_shapes` are
    those of the batch the net is built for. The module takes the bottoms and gives its top, or a tuple of tops.
    Layers of type Python whose python_param has `layer: NAME` are of the type registered as NAME; their `module` is
    never imported. A prototxt alone never names code: only what a program registers can be used. Raises ValueError
    for a name of Caffe's own; a name registered before gets the new factory.
    """
    known = name in _OF_CAFFE or name in SUPPORTED
    if known or not name:
        raise ValueError(f"layer type {name!r} is Caffe's own; choose another name" if name else "a type needs a name")
    _LAYERS[name] = type(name, (UserLayer,), {"factory": staticmethod(factory)})


def layer_class(spec: LayerSpec) -> type[Layer]:
    """The module class of the layer's type; InputError for a type that is unknown or not supported.

    A layer of type Python is of the type that a program registered under its `python_param { layer: "NAME" }`.
    """
    name = str(spec.message.python_param.layer) if spec.type == "Python" else spec.type
    kind = _LAYERS.get(name)
    if kind is not None and (spec.type != "Python" or issubclass(kind, UserLayer)):
        return kind
    if spec.type in _OF_CAFFE:
        shown = name if name.isidentifier() and len(name) <= _MAX_SHOWN else "NAME"
        raise spec.error(f"Caffe's layer type {spec.type} {_WAYS_OUT[spec.type].format(name=shown)}", "type")
    raise spec.error(
        f"unknown layer type '{spec.type}'; {nearest(spec.type, [*_LAYERS, *DATA_TYPES, *INPUT_TYPES])}", "type"
    )


def settings_of(spec: LayerSpec) -> tuple[str, ...]:
    """The fields of LayerParameter with settings that a layer of this type reads."""
    found = DATA_TYPES.get(spec.type) or INPUT_TYPES.get(spec.type)
    return found if found is not None else layer_class(spec).settings
