"""Weights of a `.caffemodel` for the parameters of a net, matched by layer name as Caffe does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.errors import InputError
from samovar.formats.caffe.caffemodel import LayerRecord, Weights, read_caffemodel
from samovar.frontends.caffe.layers.registry import UserLayer
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.spec import Shape, text
from samovar.frontends.caffe.weight_files import by_layer, is_named_file, read_named, require_finite
from samovar.frontends.caffe.wiring import LayerOutline

_MOST_NAMES = 20


@dataclass(frozen=True, slots=True)
class MatchedWeights:
    """`arrays` by parameter name ("conv1/0"), float32 in the parameter's shape.

    `missing` are layers of the net that the file lacks: they keep their filler. A layer that shares all its
    parameters with a present one is not missing (the HDF5 form leaves it out). `ignored` are layers of the
    file that the net lacks.
    """

    arrays: dict[str, npt.NDArray[np.float32]]
    missing: tuple[str, ...]
    ignored: tuple[str, ...]


def match_weights(net: CaffeNet, weights: Weights, path: Path) -> MatchedWeights:
    """Match the arrays of `weights`, read from `path`, to the parameters of `net`.

    A layer may lack arrays that it shares with one before. Shapes may differ by leading ones (files of 2014 store every
    array with four axes). Raises InputError if a layer has another number of arrays or another shape in the file, if a
    value is not finite, and if no layer matches.
    """
    shapes = {info.name: tuple(info.parameter.shape) for info in net.parameter_infos}
    arrays: dict[str, npt.NDArray[np.float32]] = {}
    with_parameters = [outline for outline in net.layers_for_caffemodel() if outline.parameter_names]
    for outline in with_parameters:
        if outline.name in weights:
            arrays |= _match_layer(outline, weights[outline.name], shapes, path)
    names = [outline.name for outline in with_parameters]
    if with_parameters and not arrays:
        raise InputError(
            f"{path}: belongs to another net: its layers {_some(list(weights))} are none of "
            f"{net.path}'s layers {_some(names)}; give weights with these layer names"
        )
    missing = tuple(outline.name for outline in with_parameters if not set(outline.parameter_names) <= set(arrays))
    return MatchedWeights(arrays, missing, tuple(name for name in weights if name not in names))


def _match_layer(
    outline: LayerOutline, found: list[npt.NDArray[np.float32]], shapes: dict[str, Shape], path: Path
) -> dict[str, npt.NDArray[np.float32]]:
    names = outline.parameter_names
    held = [index for index, array in enumerate(found) if array.size]
    is_lacking = any(name == f"{outline.name}/{index}" and index not in held for index, name in enumerate(names))
    if is_lacking or len(found) > len(names):
        raise InputError(
            f"{path}: layer '{outline.name}' has {len(held)} arrays, but {len(names)} in "
            "the net; compare bias_term of both nets, or rename the layer to keep its filler"
        )
    matched = {}
    for index in held:
        name, array = names[index], found[index]
        shape, owners = outline.parameter_shapes[index], shapes[name]
        if _without_leading_ones(array.shape) not in (_without_leading_ones(shape), _without_leading_ones(owners)):
            raise InputError(
                f"{path}: layer '{outline.name}', array {index} has shape {text(array.shape)}, but "
                f"{text(shape)} in the net; rename the layer in the prototxt to start it from its filler"
            )
        require_finite(path, outline.name, index, array)
        matched[name] = array.reshape(owners)
    return matched


def _without_leading_ones(shape: Shape) -> Shape:
    for axis, size in enumerate(shape):
        if size != 1:
            return shape[axis:]
    return ()


def _some(names: Sequence[str]) -> str:
    """The first 20 names: a file may hold any number of layers."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{list(names[:_MOST_NAMES])}{more}" if names else "(none with weights)"


def read_weights(path: Path, net: CaffeNet) -> Weights:
    """The arrays of each layer: of a caffemodel in any form, a safetensors file or a torch state_dict of `net`.
    Raises InputError, naming the file, if it is none of these or is damaged."""
    return as_weights(net, read_named(path), path) if is_named_file(path) else read_caffemodel(path)


def load_weights(
    net: CaffeNet, paths: Sequence[Path], tells_ignored: bool = True, *, needs_all: bool = False
) -> tuple[str, ...]:
    """Put the files' arrays into the net, later files over earlier ones.

    Returns sentences on layers that no file has, and if `tells_ignored` on layers of files that the net lacks.
    Raises InputError, with the net unchanged, if a file is damaged, fits nowhere or differs in shape. With `needs_all`
    also if a layer of the net is in no file.
    """
    matched = [match_weights(net, read_weights(path, net), path) for path in paths]
    lacking = [layer for layer in matched[0].missing if all(layer in m.missing for m in matched)] if matched else []
    files, verb = ", ".join(map(str, paths)), "has" if len(paths) == 1 else "have"
    if needs_all:
        require_all(lacking, net.path, files)
    arrays = {name: array for match in matched for name, array in match.arrays.items()}
    for info in net.parameter_infos:
        if info.name in arrays:
            info.parameter.data.copy_(torch.from_numpy(arrays[info.name]))
    for path in paths:
        _load_buffers(net, path)
    missing = (f"{files}: {verb} no layers {_some(lacking)}; they start from their fillers",) if lacking else ()
    ignored = zip(paths, (match.ignored if tells_ignored else () for match in matched), strict=True)
    told = (f"{path}: layers {_some(names)} are not in this net; ignored" for path, names in ignored if names)
    return *missing, *told


def require_all(lacking: Sequence[str], model: Path, files: Path | str) -> None:
    """Raise InputError if the files lack layers with arrays of the net `model`."""
    if lacking:
        what = f"lacks the arrays of layers {_some(lacking)} of {model}"
        raise InputError(f"{files}: {what}; give a file that has them all, or a net without these layers")


def _load_buffers(net: CaffeNet, path: Path) -> None:
    """Load the buffers of a program's modules, which only a file of named tensors holds."""
    places = {
        f"{layer.spec.name}.{name}": buffer
        for layer in net.layers
        if isinstance(layer, UserLayer)
        for name, buffer in layer.kept_buffers().items()
    }
    arrays = read_named(path) if places and is_named_file(path) else {}
    for name, buffer in places.items():
        if name in arrays and arrays[name].shape == tuple(buffer.shape):
            buffer.copy_(torch.from_numpy(arrays[name]))


def as_weights(net: CaffeNet, arrays: Mapping[str, npt.NDArray[np.float32]], path: Path) -> Weights:
    """Arrays by name, as in a caffemodel, for an existing net, also those of a user's layers.
    Arrays that the net lacks keep their names. Raises InputError if some of a layer's arrays are missing."""
    places = {
        f"{layer.spec.name}.{attribute}": (layer.spec.name, index)
        for layer in net.layers
        for index, attribute in enumerate(layer.attribute_names)
    }
    numbered = {f"{layer}/{index}": (layer, index) for layer, index in places.values()}
    placed = {places.get(name) or numbered.get(name) or (name, 0): array for name, array in arrays.items()}
    layers = {layer for layer, _ in placed}
    for name, place in places.items():
        if place[0] in layers and place not in placed:
            advice = "give all of the layer or none"
            raise InputError(f"{path}: has arrays of layer '{place[0]}', but no '{name}'; {advice}")
    return by_layer(placed)


def stored_layers(net: CaffeNet, arrays: Mapping[str, npt.NDArray[np.float32]]) -> list[LayerRecord]:
    """The layers as in a caffemodel, from arrays by parameter name; layers that share arrays have a copy each."""
    records = []
    for outline in net.layers_for_caffemodel():
        shaped = zip(outline.parameter_names, outline.parameter_shapes, strict=True)
        blobs = [arrays[name].reshape(shape) for name, shape in shaped]
        records.append(LayerRecord(outline.name, outline.type, outline.bottoms, outline.tops, blobs))
    return records
