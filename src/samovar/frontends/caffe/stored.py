"""A net's weights between all files that can hold them: caffemodel, safetensors, torch's own."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import torch

from samovar.core.errors import InputError
from samovar.formats.caffe.caffemodel import (
    LayerRecord,
    StoredNet,
    Weights,
    encode_caffemodel,
    encode_caffemodel_hdf5,
    read_stored_net,
)
from samovar.formats.caffe.text import nearest
from samovar.frontends.caffe.definition import CaffeNetDefinition
from samovar.frontends.caffe.naming import grouped, named_arrays
from samovar.frontends.caffe.spec import LayerSpec
from samovar.frontends.caffe.state_files import is_named_file, is_safetensors, metadata_of, read_named
from samovar.frontends.caffe.upgrade import type_today

SUFFIXES = {  # of files that weights are written to; the first that fits counts
    ".caffemodel.h5": "caffemodel.h5",
    ".caffemodel": "caffemodel",
    ".safetensors": "safetensors",
    ".pt": "pt",
    ".pth": "pt",
}
_METADATA_KEY = "caffe"
# Layers whose arrays had four axes whatever they held before 2015: the axes they have now.
_AXES = {"InnerProduct": (2, 1), "Embed": (2, 1), "Convolution": (4, 1), "Deconvolution": (4, 1), "PReLU": (1,)}
_OLD_AXES = 4


def read_stored(path: Path, model: CaffeNetDefinition | None) -> StoredNet:
    """The net's layers with their arrays, of any file of weights; with `model`, its name, types, bottoms and tops.

    Raises InputError, naming the file, where it holds no weights, is damaged, holds a value that is no finite
    number, or a layer that `model` lacks.
    """
    if is_named_file(path):
        arrays = read_named(path)
        stored = _with_metadata(grouped(arrays, path), path)
    else:
        stored = read_stored_net(path)
    layers = [_today(record) for record in stored.layers]
    name = stored.name if model is None else model.name
    stored = StoredNet(name, layers if model is None else _as_in(model, layers, path))
    for record in stored.layers:
        require_finite(record, path)
    return stored


def encode_stored(stored: StoredNet, kind: str, path: Path) -> bytes:
    """The bytes of a file of this `kind`: caffemodel, caffemodel.h5, safetensors or pt; `path` is where it came from.

    Raises InputError for what the kind cannot hold.
    """
    if kind == "caffemodel":
        return encode_caffemodel(stored.name, stored.layers)
    if kind == "caffemodel.h5":
        return encode_caffemodel_hdf5(stored.layers)
    return encode_named(named_arrays(stored.layers, path), stored, kind)


def encode_named(arrays: Mapping[str, npt.NDArray[np.float32]], stored: StoredNet, kind: str) -> bytes:
    """The bytes of a safetensors or pt file with these arrays; the former keeps an outline of the net beside them."""
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    if kind == "safetensors":
        return safetensors.numpy.save(contiguous, {_METADATA_KEY: _outline(stored)})
    assert kind == "pt", kind
    content = io.BytesIO()
    torch.save({name: torch.from_numpy(array) for name, array in contiguous.items()}, content)
    return content.getvalue()


def require_finite(record: LayerRecord, path: Path) -> None:
    """InputError where an array of the layer holds a value that is NaN or infinite."""
    for index, array in enumerate(record.blobs):
        bad = array.size - int(np.isfinite(array).sum())
        if bad:
            raise InputError(
                f"{path}: layer '{record.name}', array {index} has {bad} values that are NaN or infinite; "
                "take an earlier snapshot"
            )


def _today(record: LayerRecord) -> LayerRecord:
    """The layer with its type's name of today, and its arrays without the axes that every array once had."""
    kind = type_today(record.type)
    axes = _AXES.get(kind, ())
    blobs = [_with_axes(b, axes[i]) if i < len(axes) else b for i, b in enumerate(record.blobs)]
    return record._replace(type=kind, blobs=blobs)


def _with_axes(array: npt.NDArray[np.float32], num_axes: int) -> npt.NDArray[np.float32]:
    leading = array.shape[: _OLD_AXES - num_axes]
    is_old = array.ndim == _OLD_AXES and set(leading) <= {1}
    return array.reshape(array.shape[_OLD_AXES - num_axes :]) if is_old else array


def _outline(stored: StoredNet) -> str:
    """What safetensors keeps beside the arrays, so that the same caffemodel can be made again."""
    layers = [[r.name, r.type, list(r.bottoms), list(r.tops)] for r in stored.layers]
    return json.dumps({"name": stored.name, "layers": layers})


def _with_metadata(weights: Weights, path: Path) -> StoredNet:
    """The layers as the file's own outline lists them, if it has one that fits; else in the arrays' order."""
    text = metadata_of(path).get(_METADATA_KEY) if is_safetensors(path) else None
    plain = StoredNet("", [LayerRecord(name, "", (), (), arrays) for name, arrays in weights.items()])
    if text is None:
        return plain
    try:
        outline = json.loads(text)
        layers = [
            LayerRecord(str(name), str(kind), _strings(bottoms), _strings(tops), weights.get(name, []))
            for name, kind, bottoms, tops in outline["layers"]
        ]
        listed = StoredNet(str(outline["name"]), layers)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: what stands beside its arrays about the net is damaged: {error!r}") from error
    return listed if {layer.name for layer in layers if layer.blobs} == weights.keys() else plain


def _strings(values: Sequence[object]) -> tuple[str, ...]:
    return tuple(map(str, values))


def _as_in(model: CaffeNetDefinition, layers: Sequence[LayerRecord], path: Path) -> list[LayerRecord]:
    """All layers of the model, in its order, with the arrays of the file."""
    specs = {spec.name: spec for spec in model.layers}
    with_arrays = {record.name: record for record in layers if record.blobs}
    for name in with_arrays:
        if name not in specs:
            raise InputError(f"{path}: {model.path} has no layer '{name}'; {nearest(name, list(specs))}")
    return [_record(spec, with_arrays) for spec in specs.values()]


def _record(spec: LayerSpec, with_arrays: Mapping[str, LayerRecord]) -> LayerRecord:
    blobs = with_arrays[spec.name].blobs if spec.name in with_arrays else ()
    return _today(LayerRecord(spec.name, spec.type, spec.bottoms, spec.tops, blobs))
