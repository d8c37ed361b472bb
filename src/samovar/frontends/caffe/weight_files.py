"""Files of weights (caffemodel, safetensors, torch's own), written, and read without running code in them.

In a file of named tensors array 0 of layer "conv1" is "conv1.weight", as in a torch `state_dict`.
"""

import io
import json
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError

from samovar.checkpoint.manifest import PART_KEY
from samovar.core.errors import InputError, nearest
from samovar.core.files import read_file, start_of
from samovar.formats.caffe.caffemodel import (
    LayerRecord,
    StoredNet,
    Weights,
    encode_caffemodel,
    encode_caffemodel_hdf5,
    read_stored_net,
)
from samovar.formats.torch_pickle import require_only_tensors
from samovar.frontends.caffe.definition import CaffeNetDefinition
from samovar.frontends.caffe.spec import LayerSpec
from samovar.frontends.caffe.upgrade import type_today

NamedArrays: TypeAlias = dict[str, npt.NDArray[np.float32]]

MAX_STATE_BYTES = 1 << 36
_ZIP_MAGIC, _PICKLE_MAGIC = b"PK\x03\x04", b"\x80"
_OLD_FORM_PICKLES = 5  # before the values in a file of torch before 1.6
_HEADER_SIZE_BYTES = 8  # of safetensors: how long its header is
_STATE_KEYS = ("state_dict", "model_state_dict", "model")  # the keys under which checkpoints keep it
_WRAPPER_PREFIX = "module."  # DistributedDataParallel's


def is_named_file(path: Path) -> bool:
    """Whether `path` begins like a safetensors file or one by torch.save; False if it cannot be read."""
    return is_safetensors(path) or start_of(path, len(_ZIP_MAGIC)).startswith((_ZIP_MAGIC, _PICKLE_MAGIC))


def is_safetensors(path: Path) -> bool:
    start = start_of(path, _HEADER_SIZE_BYTES + 1)
    size = int.from_bytes(start[:_HEADER_SIZE_BYTES], "little")
    return start[_HEADER_SIZE_BYTES:] == b"{" and 2 <= size < 1 << 40


def read_named(path: Path, *, may_be_momentum: bool = False) -> NamedArrays:
    """The tensors of a safetensors file or a torch state_dict, by name, as float32 in C order.

    A torch file is read with `weights_only`: tensors and plain containers, no code. A dictionary under "state_dict" or
    "model" in it counts, and a prefix "module." of all names is dropped. Raises InputError, naming the file, if it
    holds anything else, is damaged, or claims to be larger than it is; also if it is another part of a snapshot.
    """
    if not is_safetensors(path):
        tensors = _read_torch(path)
    elif (part := metadata_of(path).get(PART_KEY, "weights")) == "weights" or may_be_momentum:
        tensors = _read_safetensors(path)
    else:  # momentum, say, which has the names and shapes of weights
        raise InputError(f"{path}: holds the {part} of a snapshot, not its weights; give weights.safetensors")
    return {name: _as_float32(path, name, tensor) for name, tensor in tensors.items()}


def metadata_of(path: Path) -> dict[str, str]:
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: is not a sound safetensors file, or was cut short: {error}") from None


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    content = read_file(path, "safetensors", MAX_STATE_BYTES)
    try:
        return dict(sorted(safetensors.torch.load(content).items()))  # it gives them in another order each time
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path}: is not a sound safetensors file, or was cut short: {error}") from None


def _read_torch(path: Path) -> dict[str, torch.Tensor]:
    size_bytes = path.stat().st_size
    try:
        _require_stored(path)
        _require_only_tensors(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says what is wrong with a file
            found = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # damaged archives and pickles raise any kind
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: is not a torch file of plain tensors, or was cut short; nothing in it was run. Save "
            f"model.state_dict() with torch.save, or take safetensors ({type(error).__name__}: {reason[:200]})"
        ) from None
    tensors = _state_dict(path, found)
    for name, tensor in tensors.items():
        if tensor.numel() * tensor.element_size() > size_bytes:
            raise InputError(f"{path}: '{name}' claims to be larger than the file ({size_bytes} bytes); it is damaged")
    return tensors


def _require_stored(path: Path) -> None:
    """The parts of a torch file are not compressed: a compressed one could be of any size."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        packed = [part.filename for part in archive.infolist() if part.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise InputError(f"{path}: its part '{packed[0]}' is compressed, which torch.save never does; is it a .npz?")


def _require_only_tensors(path: Path) -> None:
    if start_of(path, len(_ZIP_MAGIC)) == _ZIP_MAGIC:
        # torch's own, so that it finds the same part as torch.load
        require_only_tensors(io.BytesIO(torch._C.PyTorchFileReader(str(path)).get_record("data.pkl")))
        return
    with path.open("rb") as file:
        for _ in range(_OLD_FORM_PICKLES):
            require_only_tensors(file)


def _state_dict(path: Path, found: object) -> dict[str, torch.Tensor]:
    for key in _STATE_KEYS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found:
        raise InputError(f"{path}: holds a {type(found).__name__}, not a state_dict: names with tensors")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise InputError(f"{path}: {name!r} is a {type(value).__name__}; a state_dict holds tensors by name")
    is_wrapped = all(name.startswith(_WRAPPER_PREFIX) for name in found)
    return {name.removeprefix(_WRAPPER_PREFIX) if is_wrapped else name: value for name, value in found.items()}


def _as_float32(path: Path, name: str, tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized or tensor.is_meta:
        raise InputError(f"{path}: '{name}' is {tensor.dtype}, {tensor.layout}; weights are dense real numbers")
    array: npt.NDArray[np.float32] = tensor.detach().to(torch.float32).contiguous().numpy()
    return array


SUFFIXES = {  # of files that weights are written to; the first that fits counts
    ".caffemodel.h5": "caffemodel.h5",
    ".caffemodel": "caffemodel",
    ".safetensors": "safetensors",
    ".pt": "pt",
    ".pth": "pt",
}
_METADATA_KEY = "caffe"
# Before 2015 all arrays had four axes: the axes that those of these layers have now.
_AXES = {"InnerProduct": (2, 1), "Embed": (2, 1), "Convolution": (4, 1), "Deconvolution": (4, 1), "PReLU": (1,)}
_OLD_AXES = 4


def read_stored(path: Path, model: CaffeNetDefinition | None) -> StoredNet:
    """The net's layers with their arrays, of any file of weights; with `model`, its name, types, bottoms and tops.

    Raises InputError, naming the file, if it holds no weights, is damaged, holds NaN or infinity, or has a layer that
    `model` lacks. Also if a layer has other names than its type, such as a bias alone.
    """
    arrays = read_named(path) if (is_named := is_named_file(path)) else {}
    stored = _with_metadata(grouped(arrays, path), path) if is_named else read_stored_net(path)
    layers = [_today(record) for record in stored.layers]
    name = stored.name if model is None else model.name
    stored = StoredNet(name, layers if model is None else _as_in(model, layers, path))
    if lacking := next((record.name for record in stored.layers if not all(b.size for b in record.blobs)), None):
        what = f"layer '{lacking}' lacks an array, as Caffe writes it if layers share one"
        raise InputError(f"{path}: {what}; give the net that shares it with --model")
    require_finite_layers(stored, path)
    _require_names(stored, arrays, path)
    return stored


def encode_stored(stored: StoredNet, kind: str, path: Path) -> bytes:
    """The bytes of a file of this `kind`: caffemodel, caffemodel.h5, safetensors or pt; `path` is the source.
    Raises InputError for a net that this kind cannot hold."""
    if kind == "caffemodel":
        return encode_caffemodel(stored.name, stored.layers)
    if kind == "caffemodel.h5":
        return encode_caffemodel_hdf5(stored.layers)
    return encode_named(named_arrays(stored.layers, path), stored, kind)


def encode_named(arrays: Mapping[str, npt.NDArray[np.float32]], stored: StoredNet, kind: str) -> bytes:
    """The bytes of a safetensors or pt file with these arrays; safetensors also keep an outline of the net."""
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    if kind == "safetensors":
        return safetensors.numpy.save(contiguous, {_METADATA_KEY: _outline(stored)})
    assert kind == "pt", kind
    content = io.BytesIO()
    torch.save({name: torch.from_numpy(array) for name, array in contiguous.items()}, content)
    return content.getvalue()


def require_finite(path: Path, layer: str, index: int, array: npt.NDArray[np.float32]) -> None:
    """InputError if the layer's array holds NaN or infinity."""
    if bad := array.size - int(np.isfinite(array).sum()):
        what = f"layer '{layer}', array {index} has {bad} values that are NaN or infinite"
        raise InputError(f"{path}: {what}; take an earlier snapshot")


def require_finite_layers(stored: StoredNet, path: Path) -> None:
    """As `require_finite`, for all arrays."""
    for record in stored.layers:
        for index, array in enumerate(record.blobs):
            require_finite(path, record.name, index, array)


def lacks_arrays(record: LayerRecord) -> bool:
    """Whether a layer of this type has arrays in any net, but not here."""
    is_by_bottoms = record.type in ("Bias", "Scale") and len(record.bottoms) > 1
    return record.type in _NAMES and not record.blobs and not is_by_bottoms


def _require_names(stored: StoredNet, arrays: NamedArrays, path: Path) -> None:
    for record in stored.layers:
        endings = [ending for ending in _ORDER if f"{record.name}.{ending}" in arrays]
        if endings and not record.type and endings[0] not in _FIRST:
            what = f"the first array of layer '{record.name}' is '{endings[0]}', not one of {', '.join(_FIRST)}"
            raise InputError(f"{path}: {what}; give all arrays of the layer, or the net with --model")
    records = {record.name: record for record in stored.layers if record.type in _NAMES}
    for name in arrays:
        layer, _, ending = name.rpartition(".")
        if ending in _ORDER and layer in records and ending not in (has := array_names(records[layer], path)):
            what = f"layer '{layer}' of type {records[layer].type} with {len(has)} array(s) has {', '.join(has)}"
            raise InputError(f"{path}: {what}, and this file '{name}'; give all arrays of the layer")


def _today(record: LayerRecord) -> LayerRecord:
    """The layer with today's name of its type, and its arrays without the axes that every array once had."""
    kind = type_today(record.type)
    axes = _AXES.get(kind, ())
    blobs = [_with_axes(b, axes[i]) if i < len(axes) else b for i, b in enumerate(record.blobs)]
    return record._replace(type=kind, blobs=blobs)


def _with_axes(array: npt.NDArray[np.float32], num_axes: int) -> npt.NDArray[np.float32]:
    leading = array.shape[: _OLD_AXES - num_axes]
    is_old = array.ndim == _OLD_AXES and set(leading) <= {1}
    return array.reshape(array.shape[_OLD_AXES - num_axes :]) if is_old else array


def _outline(stored: StoredNet) -> str:
    """The outline that safetensors keep with the arrays, from which the same caffemodel can be made again."""
    layers = [[r.name, r.type, list(r.bottoms), list(r.tops)] for r in stored.layers]
    return json.dumps({"name": stored.name, "layers": layers})


def _with_metadata(weights: Weights, path: Path) -> StoredNet:
    """The layers in the order of the file's outline, if it has one that fits; else in the arrays' order."""
    text = metadata_of(path).get(_METADATA_KEY) if is_safetensors(path) else None
    plain = StoredNet("", [LayerRecord(name, "", (), (), arrays) for name, arrays in weights.items()])
    if text is None:
        return plain
    try:
        outline = json.loads(text)
        layers = [
            LayerRecord(str(name), str(kind), tuple(map(str, bottoms)), tuple(map(str, tops)), weights.get(name, []))
            for name, kind, bottoms, tops in outline["layers"]
        ]
        listed = StoredNet(str(outline["name"]), layers)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: its outline of the net is damaged: {error!r}; convert the weights again") from error
    return listed if {layer.name for layer in layers if layer.blobs} == weights.keys() else plain


def _as_in(model: CaffeNetDefinition, layers: Sequence[LayerRecord], path: Path) -> list[LayerRecord]:
    specs = {spec.name: spec for spec in model.layers}
    with_arrays = {record.name: record for record in layers if record.blobs}
    for name in with_arrays:
        if name not in specs:
            raise InputError(f"{path}: {model.path} has no layer '{name}'; {nearest(name, list(specs))}")
    shared: NamedArrays = {}
    return [_record(spec, with_arrays, shared) for spec in specs.values()]


def _record(spec: LayerSpec, with_arrays: Mapping[str, LayerRecord], shared: NamedArrays) -> LayerRecord:
    """The layer with its arrays; those that it lacks come from `shared`: of layers before, by the name of `param`."""
    blobs = list(with_arrays[spec.name].blobs) if spec.name in with_arrays else []
    for index, name in enumerate(param.name for param in spec.message.param):
        if index < len(blobs) and blobs[index].size:
            shared.setdefault(name, blobs[index])
        elif name and name in shared and index <= len(blobs):
            blobs[index : index + 1] = [shared[name]]
    return _today(LayerRecord(spec.name, spec.type, spec.bottoms, spec.tops, blobs))


_WEIGHT_AND_BIAS = ("weight", "bias")
_NAMES = {
    "BatchNorm": ("mean", "variance", "count"),
    "Bias": ("bias",),
    "Convolution": _WEIGHT_AND_BIAS,
    "Deconvolution": _WEIGHT_AND_BIAS,
    "Embed": _WEIGHT_AND_BIAS,
    "InnerProduct": _WEIGHT_AND_BIAS,
    "LSTM": ("input_weight", "input_bias", "state_weight"),
    "PReLU": ("slope",),
    "Parameter": ("value",),
    "RNN": ("input_weight", "input_bias", "state_weight", "output_weight", "output_bias"),
    "Scale": ("scale", "bias"),
}
_FIRST = tuple(dict.fromkeys(names[0] for kind, names in _NAMES.items() if kind != "Bias"))
_STATIC = "static_weight"  # of a recurrent layer with a third bottom; before state_weight
_ORDER = (
    *("weight", "scale", "slope", "value", "bias", "mean", "variance", "count"),
    *("input_weight", "input_bias", _STATIC, "state_weight", "output_weight", "output_bias"),
)


def array_names(record: LayerRecord, path: Path) -> tuple[str, ...]:
    """The names of a stored layer's arrays in the modules of `samovar.caffe.load`, by its type and their number.
    Raises InputError for a layer without a type, of another type, or with another number of arrays."""
    if not record.blobs:
        return ()
    names, count = _NAMES.get(record.type, ()), len(record.blobs)
    if record.type in ("LSTM", "RNN") and count == len(names) + 1:
        names = (*names[:2], _STATIC, *names[2:])
    if record.type == "Scale" and count == 1 and len(record.bottoms) == 2:
        names = names[1:]  # its factor is the other bottom
    if not record.type:
        raise InputError(f"{path}: does not give the type of layer '{record.name}'; give the net with --model")
    if not names or count > len(names) or (count < len(names) and names[-1] != "bias"):
        raise InputError(
            f"{path}: layer '{record.name}' of type {record.type} has {count} arrays, which have no names here; "
            f"known are {', '.join(_NAMES)}"
        )
    return names[:count]


def named_arrays(layers: Sequence[LayerRecord], path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """All arrays by name, in the file's order. Raises InputError if two layers have one name."""
    found: dict[str, npt.NDArray[np.float32]] = {}
    for record in layers:
        for name, array in zip(array_names(record, path), record.blobs, strict=True):
            key = f"{record.name}.{name}"
            if key in found:
                raise InputError(f"{path}: two layers have the name '{record.name}'; names must tell them apart")
            found[key] = array
    return found


def grouped(arrays: NamedArrays, path: Path) -> Weights:
    """Layers with their arrays in Caffe's order, from names such as "conv1.weight", or "conv1/0" as in snapshots.
    Raises InputError for other names, and for names of both kinds in one layer."""
    placed = {_place(name, path): array for name, array in arrays.items()}
    if both := {layer for layer, place in placed if place < 0} & {layer for layer, place in placed if place >= 0}:
        raise InputError(f"{path}: arrays of layer '{min(both)}' have names and numbers; give one kind for each layer")
    return by_layer(placed)


def by_layer(placed: Mapping[tuple[str, int], npt.NDArray[np.float32]]) -> Weights:
    """Lists of arrays in the order of their places, by layer; layers in the order in which they came.
    A number that is left out, because layers share the array, has an empty one."""
    found: Weights = {layer: [] for layer, _ in placed}
    for layer, place in sorted(placed, key=lambda key: key[1]):
        found[layer] += [np.empty(0, np.float32)] * (place - len(found[layer]))
        found[layer].append(placed[layer, place])
    return found


def _place(name: str, path: Path) -> tuple[str, int]:
    """The layer, and a number that orders its arrays: less than 0 for a name."""
    layer, _, ending = name.rpartition(".")
    if layer and ending in _ORDER:
        return layer, _ORDER.index(ending) - len(_ORDER)
    layer, _, ending = name.rpartition("/")
    if layer and ending.isdecimal() and len(ending) <= 3 and ending == str(int(ending)):
        return layer, int(ending)
    raise InputError(
        f"{path}: '{name}' does not name an array of a Caffe layer; names are LAYER.weight, LAYER.bias and so on "
        f"({', '.join(_ORDER)}), or LAYER/0. If it is another net's file, rename its arrays first"
    )
