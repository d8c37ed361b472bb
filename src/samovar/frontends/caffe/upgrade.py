"""Nets in the formats before 2014 (`layers {}`), and other old fields, as layers of today's format.

Three generations: V0 (`layers { layer { type: "conv" } }`), V1 (`layers { type: CONVOLUTION }`), and today's
(`layer { type: "Convolution" }`). The rules are those of Caffe's own upgrade tools.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samovar.core.errors import InputError
from samovar.formats.caffe.schema import Message, message_class
from samovar.formats.caffe.text import TextMessage, TextPlace

# Names of types in V1 whose names today are spelled otherwise than in title case.
_TYPES = {"NONE": "", "ABSVAL": "AbsVal", "ARGMAX": "ArgMax", "BNLL": "BNLL", "HDF5_DATA": "HDF5Data"}
_TYPES |= {"HDF5_OUTPUT": "HDF5Output", "IM2COL": "Im2col", "LRN": "LRN", "MVN": "MVN", "RELU": "ReLU"}
_TYPES |= {"SOFTMAX_LOSS": "SoftmaxWithLoss", "TANH": "TanH"}
_V1_NAMES = message_class("V1LayerParameter").DESCRIPTOR.fields_by_name["type"].enum_type.values_by_name


def _named_as_type(v1_name: str) -> str:
    return _TYPES.get(v1_name, v1_name.title().replace("_", ""))


# Names of types in V0: some of their own, others as in V1, in lower case.
V0_TYPES = {"conv": "Convolution", "images": "ImageData", "innerproduct": "InnerProduct", "pool": "Pooling"}
V0_TYPES |= {
    name: _named_as_type(name.upper())
    for name in (
        *("accuracy", "bnll", "concat", "data", "dropout", "euclidean_loss", "flatten", "hdf5_data", "hdf5_output"),
        *("im2col", "infogain_loss", "lrn", "multinomial_logistic_loss", "relu", "sigmoid", "softmax", "softmax_loss"),
        *("split", "tanh", "window_data"),
    )
}

# Where the settings of a type went: new message, then old names with their new ones where they differ.
_CONVOLUTION = {"num_output": "", "biasterm": "bias_term", "weight_filler": "", "bias_filler": "", "pad": ""}
_CONVOLUTION |= {"kernelsize": "kernel_size", "group": "", "stride": ""}
_INNER_PRODUCT = {"num_output": "", "biasterm": "bias_term", "weight_filler": "", "bias_filler": ""}
_WINDOW = {f"det_{name}": name for name in ("fg_threshold", "bg_threshold", "fg_fraction", "context_pad", "crop_mode")}
_SOURCE = {"source": "", "batchsize": "batch_size"}
_IMAGES = {"rand_skip": "", "new_height": "", "new_width": "", "shuffle_images": "shuffle"}
_MOVED_FROM_V0: dict[str, tuple[str, dict[str, str]]] = {
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
    """A V0 layer with its bottoms and tops in today's format; an unknown type stays as it is."""
    old = connection.layer
    layer = message_class("LayerParameter")(
        name=old.name, type=V0_TYPES.get(old.type, old.type), bottom=connection.bottom, top=connection.top
    )
    layer.blobs.extend(old.blobs)
    _add_params(layer, {"lr_mult": old.blobs_lr, "decay_mult": old.weight_decay})
    owner, names = _MOVED_FROM_V0.get(old.type, ("", {}))
    for name, new_name in names.items():
        if old.HasField(name):
            _copy(getattr(layer, owner), new_name or name, getattr(old, name))
    for name, new_name in _TRANSFORM.items():
        if old.HasField(name):
            setattr(layer.transform_param, new_name, getattr(old, name))
    if old.HasField("hdf5_output_param"):
        layer.hdf5_output_param.CopyFrom(old.hdf5_output_param)
    return layer


def without_padding(path: Path, layers: list[tuple[Message, TextPlace]]) -> list[tuple[Message, TextPlace]]:
    """The layers without those of type padding: the convolution or pooling after one pads by itself.
    Raises InputError if another layer reads a padded blob."""
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


PlacedLayer = tuple[Message, TextPlace]

_SAME = ("name", "bottom", "top", "include", "exclude", "loss_weight", "blobs")
_TRANSFORMED = ("data_param", "image_data_param", "window_data_param")
_MOVED = ("scale", "mean_file", "crop_size", "mirror")
_NUM_STATISTICS = 3  # of a BatchNorm layer


def layers_of(text: TextMessage) -> list[PlacedLayer]:
    """All layers of a net in today's format, in file order, the net's own `input` fields first.
    Raises InputError for a file that mixes generations, or whose old fields contradict each other."""
    net, places = text.message, text.places.fields
    if net.layers and net.layer:
        raise InputError(
            f"{text.path}:{text.places.line_of('layers')}: 'layers' is the format before 2014 and excludes 'layer'; "
            "write all layers in one of the two"
        )
    placed: list[PlacedLayer] = list(zip(net.layer, places.get("layer", []), strict=True))
    if net.layers:
        old = list(zip(net.layers, places["layers"], strict=True))
        if any(layer.HasField("layer") for layer in net.layers):
            placed = [(from_v0(layer), place) for layer, place in without_padding(text.path, old)]
        else:
            placed = [(_from_v1(layer), place) for layer, place in old]
    for layer, _ in placed:
        _freeze_statistics(layer)
    return [*_old_inputs(text), *placed]


def type_today(name: str) -> str:
    """Today's name of the type of a stored layer, also of V1 ("INNER_PRODUCT") and V0 ("innerproduct")."""
    if name in V0_TYPES:
        return V0_TYPES[name]
    return _named_as_type(name) if name in _V1_NAMES else name


def _from_v1(old: Message) -> Message:
    layer = message_class("LayerParameter")()
    for field, value in old.ListFields():
        if field.name in _SAME or field.name.endswith("_param"):
            _copy(layer, field.name, value)
    name = old.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[old.type].name
    layer.type = _named_as_type(name)
    names = {"name": old.param, "share_mode": old.blob_share_mode}
    _add_params(layer, names | {"lr_mult": old.blobs_lr, "decay_mult": old.weight_decay})
    _move_transforms(layer)
    return layer


def _copy(settings: Message, name: str, value: Any) -> None:
    """Set a field; if it is a list today, a single value becomes its only one."""
    target = getattr(settings, name)
    if hasattr(target, "extend"):
        target.extend(value if hasattr(value, "extend") else [value])
    elif hasattr(target, "CopyFrom"):
        target.CopyFrom(value)
    else:
        setattr(settings, name, value)


def _add_params(layer: Message, lists: Mapping[str, Sequence[Any]]) -> None:
    """Names, share modes and multipliers of parameters, which once had lists of their own."""
    for index in range(max(map(len, lists.values()))):
        param = layer.param.add()
        for field, values in lists.items():
            if index < len(values):
                setattr(param, field, values[index])


def _move_transforms(layer: Message) -> None:
    """Scale, mean file, crop and mirror were once written with the data's source."""
    for owner in _TRANSFORMED:
        if not layer.HasField(owner):
            continue
        settings = getattr(layer, owner)
        for field in _MOVED:
            if settings.HasField(field):
                setattr(layer.transform_param, field, getattr(settings, field))
                settings.ClearField(field)


def _freeze_statistics(layer: Message) -> None:
    """Old BatchNorm layers give multipliers for their three statistics; they are 0 for any given value."""
    if layer.type == "BatchNorm" and len(layer.param) == _NUM_STATISTICS:
        for param in layer.param:
            param.lr_mult, param.decay_mult = 0, 0


def _old_inputs(text: TextMessage) -> list[PlacedLayer]:
    """The net's own `input` fields with `input_shape` or `input_dim`, as one Input layer."""
    net = text.message
    if not (net.input or net.input_shape or net.input_dim):
        return []
    dims = list(net.input_dim)
    shapes = [list(shape.dim) for shape in net.input_shape] or [dims[i : i + 4] for i in range(0, len(dims), 4)]
    place = TextPlace(text.places.line_of("input"))
    if len(shapes) != len(net.input) or any(len(shape) != 4 for shape in shapes if dims):
        raise InputError(
            f"{text.path}:{place.line}: {len(net.input)} inputs with {len(net.input_shape)} input_shape and "
            f"{len(dims)} input_dim; give each input its input_shape (or four input_dim)"
        )
    layer = message_class("LayerParameter")(name="input", type="Input", top=net.input)
    for shape in shapes:
        layer.input_param.shape.add(dim=shape)
    return [(layer, place)]
