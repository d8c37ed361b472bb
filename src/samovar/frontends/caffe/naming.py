"""The names of a net's arrays in a torch `state_dict`: "conv1.weight" for array 0 of layer "conv1"."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.formats.caffe.caffemodel import LayerRecord, Weights
from samovar.frontends.caffe.layers.registry import DATA_TYPES, INPUT_TYPES
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.wiring import Step

NamedArrays = Mapping[str, npt.NDArray[np.float32]]

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
_STATIC = "static_weight"  # of a recurrent layer with a third bottom; before state_weight
_ORDER = (
    *("weight", "scale", "slope", "value", "bias", "mean", "variance", "count"),
    *("input_weight", "input_bias", _STATIC, "state_weight", "output_weight", "output_bias"),
)


def array_names(record: LayerRecord, path: Path) -> tuple[str, ...]:
    """The names of a stored layer's arrays, those of `samovar.caffe.load`'s modules; by its type and their number.

    Raises InputError for a layer without a type, of another type, or with another number of arrays.
    """
    if not record.blobs:
        return ()
    names, count = _NAMES.get(record.type, ()), len(record.blobs)
    if record.type in ("LSTM", "RNN") and count == len(names) + 1:
        names = (*names[:2], _STATIC, *names[2:])
    if record.type == "Scale" and count == 1 and len(record.bottoms) == 2:
        names = names[1:]  # its factor is the other bottom
    if not record.type:
        raise InputError(f"{path}: does not say of which type layer '{record.name}' is; give the net with --model")
    if not names or count > len(names) or (count < len(names) and names[-1] != "bias"):
        raise InputError(
            f"{path}: layer '{record.name}' of type {record.type} has {count} arrays, which have no names here; "
            f"known are {', '.join(_NAMES)}"
        )
    return names[:count]


def named_arrays(layers: Sequence[LayerRecord], path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """All arrays by name, in the file's order. Raises InputError where two layers have one name."""
    found: dict[str, npt.NDArray[np.float32]] = {}
    for record in layers:
        for name, array in zip(array_names(record, path), record.blobs, strict=True):
            key = f"{record.name}.{name}"
            if key in found:
                raise InputError(f"{path}: two layers have the name '{record.name}'; names must tell them apart")
            found[key] = array
    return found


def grouped(arrays: NamedArrays, path: Path) -> Weights:
    """Arrays by name as layers with theirs in Caffe's order: "conv1.weight", or "conv1/0" as in snapshots.

    Raises InputError for other names, and where one of a layer's arrays is missing.
    """
    found: dict[str, dict[int, npt.NDArray[np.float32]]] = {}
    for name, array in arrays.items():
        layer, place = _place(name, path)
        found.setdefault(layer, {})[place] = array
    return {layer: [by_place[place] for place in sorted(by_place)] for layer, by_place in found.items()}


def _place(name: str, path: Path) -> tuple[str, int]:
    """Layer, and a number by which its arrays are put into order."""
    layer, _, ending = name.rpartition(".")
    if layer and ending in _ORDER:
        return layer, _ORDER.index(ending)
    layer, _, ending = name.rpartition("/")
    if layer and ending.isdecimal() and len(ending) <= 3:
        return layer, int(ending)
    raise InputError(
        f"{path}: no array of a Caffe layer is called '{name}'; names are LAYER.weight, LAYER.bias and the like "
        f"({', '.join(_ORDER)}), or LAYER/0. Rename those of another net to its layers' first"
    )


def as_weights(net: CaffeNet, arrays: NamedArrays, path: Path) -> Weights:
    """Arrays by name, as a caffemodel would hold them, for a net that is there: also those of a user's layers.

    What the net lacks is kept under its own name. Raises InputError where some of a layer's arrays are missing.
    """
    places = {
        f"{layer.spec.name}.{attribute}": (layer.spec.name, index)
        for layer in net.layers
        for index, attribute in enumerate(layer.attribute_names)
    }
    numbered = {f"{layer}/{index}": (layer, index) for layer, index in places.values()}
    found: dict[str, dict[int, npt.NDArray[np.float32]]] = {}
    for name, array in arrays.items():
        layer, index = places.get(name) or numbered.get(name) or (name, 0)
        found.setdefault(layer, {})[index] = array
    for name, (layer, index) in places.items():
        if layer in found and index not in found[layer]:
            raise InputError(f"{path}: has arrays of layer '{layer}', but no '{name}'; give all of the layer or none")
    return {layer: [by_index[index] for index in sorted(by_index)] for layer, by_index in found.items()}


Place = tuple[int, int]  # of a top or bottom: the layer's index among the outlines, and its own in the layer


class SplitNames:
    """Who takes which blob of a net, by the places of its layers (`outlines`, inputs included) in the file.

    `splits[layer, top]` are the names of the copies of a top that several layers take, in the order of their takers. A
    loss_weight that the prototxt gives takes the first.
    """

    def __init__(self, net: CaffeNet) -> None:
        self.outlines = net.layers_for_caffemodel()
        self._outline_of_step = [index for index in range(len(self.outlines)) if not self.is_input(index)]
        self._steps = dict(zip(self._outline_of_step, net.steps, strict=True))
        takers = self._takers()
        self.splits: dict[Place, tuple[str, ...]] = {
            place: self._copies(place, len(found)) for place, found in takers.items() if len(found) > 1
        }
        self._bottoms = {
            taker: copy
            for place, copies in self.splits.items()
            for taker, copy in zip(takers[place], copies, strict=True)
        }

    def is_input(self, index: int) -> bool:
        return self.outlines[index].type in DATA_TYPES or self.outlines[index].type in INPUT_TYPES

    def outline_of(self, step_number: int) -> int:
        """The index of the layer that makes the net's step."""
        return self._outline_of_step[step_number]

    def step_of(self, index: int) -> Step | None:
        """The step of the layer; None for an input."""
        return self._steps.get(index)

    def bottom(self, index: int, place: int) -> str:
        """The name of the layer's bottom, as Caffe's net has it."""
        return self._bottoms.get((index, place), self.outlines[index].bottoms[place])

    def _takers(self) -> dict[Place, list[Place]]:
        """Of every top who takes it; (layer, -1) for its loss_weight."""
        takers: dict[Place, list[Place]] = {}
        writers: dict[str, Place] = {}
        for index, outline in enumerate(self.outlines):
            for place, bottom in enumerate(outline.bottoms):
                takers[writers[bottom]].append((index, place))
            for place, top in enumerate(outline.tops):
                writers[top] = (index, place)
                takers[index, place] = [(index, -1)] if self._counts(index, place) else []
        return takers

    def _counts(self, index: int, place: int) -> bool:
        step = self._steps.get(index)
        given = [] if step is None else step.layer.spec.message.loss_weight
        return place < len(given) and given[place] != 0

    def _copies(self, place: Place, count: int) -> tuple[str, ...]:
        outline = self.outlines[place[0]]
        split = f"{outline.tops[place[1]]}_{outline.name}_{place[1]}_split"
        return tuple(f"{split}_{number}" for number in range(count))
