"""Layer types by the name a prototxt uses."""

from samovar.formats.caffe.text import nearest
from samovar.frontends.caffe.layers.activations import ReLU, Softmax
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.classification import Accuracy, SoftmaxWithLoss
from samovar.frontends.caffe.layers.convolution import Convolution
from samovar.frontends.caffe.layers.inner_product import InnerProduct
from samovar.frontends.caffe.layers.pooling import Pooling
from samovar.frontends.caffe.spec import LayerSpec

DATA_TYPE, INPUT_TYPE = "Data", "Input"

_LAYERS: dict[str, type[Layer]] = {
    "Accuracy": Accuracy,
    "Convolution": Convolution,
    "InnerProduct": InnerProduct,
    "Pooling": Pooling,
    "ReLU": ReLU,
    "Softmax": Softmax,
    "SoftmaxWithLoss": SoftmaxWithLoss,
}
SUPPORTED = tuple(sorted((*_LAYERS, DATA_TYPE, INPUT_TYPE)))
_UNSUPPORTED_NAMES = """
AbsVal ArgMax BNLL BatchNorm BatchReindex Bias Clip Concat ContrastiveLoss Crop Deconvolution
Dropout DummyData ELU Eltwise Embed EuclideanLoss Exp Filter Flatten HDF5Data HDF5Output HingeLoss
Im2col ImageData InfogainLoss LRN LSTM LSTMUnit Log MVN MemoryData MultinomialLogisticLoss PReLU
Parameter Power Python RNN Reduction Reshape SPP Scale Sigmoid SigmoidCrossEntropyLoss Silence Slice
Split Swish TanH Threshold Tile WindowData
"""
_OF_CAFFE = frozenset(_UNSUPPORTED_NAMES.split())


def layer_class(spec: LayerSpec) -> type[Layer]:
    """The module class of the layer's type; InputError for a type that is unknown or not supported yet."""
    if spec.type in _LAYERS:
        return _LAYERS[spec.type]
    if spec.type in _OF_CAFFE:
        raise spec.error(
            f"Caffe's layer type {spec.type} is not supported yet; supported are {', '.join(SUPPORTED)}",
            "type",
        )
    raise spec.error(f"unknown layer type '{spec.type}'; {nearest(spec.type, list(SUPPORTED))}", "type")


def settings_of(spec: LayerSpec) -> tuple[str, ...]:
    """The fields of LayerParameter with settings that a layer of this type reads."""
    if spec.type == DATA_TYPE:
        return ("data_param", "transform_param")
    return ("input_param",) if spec.type == INPUT_TYPE else layer_class(spec).settings
