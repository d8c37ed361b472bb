"""The first format of nets: a layer's settings all in one message, and padding as a layer of its own."""

from pathlib import Path

from samovar.core.errors import InputError
from samovar.formats.caffe.schema import Message, message_class
from samovar.formats.caffe.text import Place

V0_TYPES = {
    "accuracy": "Accuracy",
    "bnll": "BNLL",
    "concat": "Concat",
    "conv": "Convolution",
    "data": "Data",
    "dropout": "Dropout",
    "euclidean_loss": "EuclideanLoss",
    "flatten": "Flatten",
    "hdf5_data": "HDF5Data",
    "hdf5_output": "HDF5Output",
    "im2col": "Im2col",
    "images": "ImageData",
    "infogain_loss": "InfogainLoss",
    "innerproduct": "InnerProduct",
    "lrn": "LRN",
    "multinomial_logistic_loss": "MultinomialLogisticLoss",
    "pool": "Pooling",
    "relu": "ReLU",
    "sigmoid": "Sigmoid",
    "softmax": "Softmax",
    "softmax_loss": "SoftmaxWithLoss",
    "split": "Split",
    "tanh": "TanH",
    "window_data": "WindowData",
}

# Where the settings of a type went: new message, then old names with their new ones where they differ.
_CONVOLUTION = {"num_output": "", "biasterm": "bias_term", "weight_filler": "", "bias_filler": "", "pad": ""}
_CONVOLUTION |= {"kernelsize": "kernel_size", "group": "", "stride": ""}
_INNER_PRODUCT = {"num_output": "", "biasterm": "bias_term", "weight_filler": "", "bias_filler": ""}
_WINDOW = {f"det_{name}": name for name in ("fg_threshold", "bg_threshold", "fg_fraction", "context_pad", "crop_mode")}
_SOURCE = {"source": "", "batchsize": "batch_size"}
_IMAGES = {"rand_skip": "", "new_height": "", "new_width": "", "shuffle_images": "shuffle"}
_MOVED: dict[str, tuple[str, dict[str, str]]] = {
    "concat": ("concat_param", {"concat_dim": ""}),
    "conv": ("convolution_param", _CONVOLUTION),
    "data": ("data_param", _SOURCE | {"rand_skip": ""}),
    "dropout": ("dropout_param", {"dropout_ratio": ""}),
    "hdf5_data": ("hdf5_data_param", _SOURCE),
    "images": ("image_data_param", _SOURCE | _IMAGES),
    "infogain_loss": ("infogain_loss_param", {"source": ""}),
    "innerproduct": ("inner_product_param", _INNER_PRODUCT),
    "lrn": ("lrn_param", dict.fromkeys(("local_size", "alpha", "beta", "k"), "")),
    "pool": ("pooling_param", {"pool": "", "pad": "", "kernelsize": "kernel_size", "stride": ""}),
    "window_data": ("window_data_param", _SOURCE | _WINDOW),
}
_TRANSFORM = {"scale": "scale", "meanfile": "mean_file", "cropsize": "crop_size", "mirror": "mirror"}
_PADDING = "padding"


def from_v0(connection: Message) -> Message:
    """A V0 layer with its bottoms and tops in today's format; a type nobody knows is kept as it is."""
    old = connection.layer
    layer = message_class("LayerParameter")(
        name=old.name, type=V0_TYPES.get(old.type, old.type), bottom=connection.bottom, top=connection.top
    )
    layer.blobs.extend(old.blobs)
    for index in range(max(len(old.blobs_lr), len(old.weight_decay))):
        param = layer.param.add()
        if index < len(old.blobs_lr):
            param.lr_mult = old.blobs_lr[index]
        if index < len(old.weight_decay):
            param.decay_mult = old.weight_decay[index]
    owner, names = _MOVED.get(old.type, ("", {}))
    for name, new_name in names.items():
        if old.HasField(name):
            _set(getattr(layer, owner), new_name or name, getattr(old, name))
    for name, new_name in _TRANSFORM.items():
        if old.HasField(name):
            setattr(layer.transform_param, new_name, getattr(old, name))
    if old.HasField("hdf5_output_param"):
        layer.hdf5_output_param.CopyFrom(old.hdf5_output_param)
    return layer


def _set(settings: Message, name: str, value: Message) -> None:
    target = getattr(settings, name)
    if hasattr(target, "append"):
        target.append(value)
    elif hasattr(target, "CopyFrom"):
        target.CopyFrom(value)
    else:
        setattr(settings, name, value)


def without_padding(path: Path, layers: list[tuple[Message, Place]]) -> list[tuple[Message, Place]]:
    """The layers without those of type padding: the convolution or pooling after one pads by itself.

    Raises InputError where another layer reads a padded blob.
    """
    kept, padded = [], {}
    for connection, place in layers:
        if connection.layer.type == _PADDING:
            if len(connection.bottom) != 1 or len(connection.top) != 1:
                raise InputError(f"{path}:{place.line}: a padding layer has one bottom and one top")
            padded[connection.top[0]] = connection
            continue
        changed = message_class("V1LayerParameter")()
        changed.CopyFrom(connection)
        for index, bottom in enumerate(connection.bottom):
            if bottom not in padded:
                continue
            if connection.layer.type not in ("conv", "pool"):
                raise InputError(
                    f"{path}:{place.line}: layer '{connection.layer.name}' of type {connection.layer.type} reads "
                    f"'{bottom}' of a padding layer; only conv and pool can pad by themselves"
                )
            changed.bottom[index] = padded[bottom].bottom[0]
            changed.layer.pad = padded[bottom].layer.pad
        kept.append((changed, place))
    return kept
