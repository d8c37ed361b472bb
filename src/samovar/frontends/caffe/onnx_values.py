"""Layers that work value by value, move values or bring many into fewer, as ONNX operators."""

from collections import Counter
from collections.abc import Iterable
from functools import reduce
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from samovar.formats.onnx import Attribute, Dimension, OnnxGraph
from samovar.frontends.caffe.layers.activations import ELU, PReLU, ReLU, Softmax, Swish
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.combining import (
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
from samovar.frontends.caffe.layers.inner_product import Embed, Parameter
from samovar.frontends.caffe.layers.inputs import DummyData
from samovar.frontends.caffe.layers.shaping import Concat, Crop, Flatten, Reshape, Slice, Split, Tile
from samovar.frontends.caffe.spec import Shape
from samovar.frontends.caffe.wiring import Step

Floats = npt.NDArray[np.float32]


class Scope:
    """The graph so far, and which value each blob holds.

    A blob that layers work on in place is one value after the other; the last of them gets the blob's name.
    `shapes` are by value, those the net was built for, batch included. `layer` is the one that is translated now.
    """

    layer: Layer

    def __init__(self, graph: OnnxGraph, steps: Iterable[Step]) -> None:
        self.shapes: dict[str, Shape] = {}
        self._graph = graph
        self._values: dict[str, str] = {}  # by blob
        self._names: dict[str, str] = {}  # of values in the file
        self._taken: set[str] = set()
        self._writes_left = Counter(top for step in steps for top in step.tops)
        self._made: set[str] = set()  # by the present layer

    def add_input(self, blob: str, sizes: Iterable[Dimension], shape: Shape) -> None:
        """A blob that the caller gives; `sizes` as the file shall say."""
        self._values[blob] = self._names[blob] = self._unique(blob)
        self.shapes[blob] = shape
        self._graph.add_input(blob, list(sizes))

    def add_output(self, blob: str, sizes: Iterable[Dimension]) -> None:
        """A blob that the graph gives, under its own name where no input has that."""
        value = self._values[blob]
        if self._names.get(value) != blob or value == blob:
            name = self._unique(blob)
            self._graph.add_node(f"{blob}/Identity", "Identity", [value], [name])
            value = name
        self._graph.add_output(value, list(sizes))

    def enter(self, layer: Layer) -> None:
        """What comes now belongs to `layer`."""
        self.layer = layer
        self._made = set()

    def value_of(self, blob: str) -> str:
        return self._values[blob]

    def set_value(self, blob: str, value: str, shape: Shape) -> None:
        """`blob` holds `value` from here on."""
        self._writes_left[blob] -= 1
        if value in self._made and value not in self._names:
            name = f"{blob}@{self.layer.spec.name}" if self._writes_left[blob] else blob
            self._names[value] = self._unique(name)
            self._graph.rename(value, self._names[value])
        self._values[blob] = value
        self.shapes[value] = shape

    def op(self, operator: str, *inputs: str, **attributes: Attribute) -> str:
        """A new operator with one output; gives its value."""
        return self.ops(operator, 1, *inputs, **attributes)[0]

    def ops(self, operator: str, num_outputs: int, *inputs: str, **attributes: Attribute) -> list[str]:
        """A new operator with several outputs."""
        name = self._unique(f"{self.layer.spec.name}/{operator}")
        outputs = [self._unique(f"{name}:{index}") for index in range(num_outputs)]
        self._graph.add_node(name, operator, inputs, outputs, **attributes)
        self._made.update(outputs)
        return outputs

    def constant(self, values: object) -> str:
        """A constant of the layer, float32."""
        return self._add_constant("constant", np.asarray(values, np.float32))

    def integers(self, values: object) -> str:
        """A constant of the layer, int64."""
        return self._add_constant("integers", np.asarray(values, np.int64))

    def parameter(self, index: int) -> str:
        """The layer's parameter `index`; one that layers share stands in the file once, if in one shape."""
        name = self.layer.parameter_names[index]
        if self.layer.attribute_names[index] in self.layer.reshaped:
            return self._add_constant("parameter", self.array(index))
        if name not in self._taken:
            self._graph.add_constant(self._unique(name), self.array(index))
        return name

    def array(self, index: int) -> Floats:
        """The values of the layer's parameter `index`, in C order."""
        owner, _, name = self.layer.attribute_names[index].rpartition(".")
        tensor: torch.Tensor = getattr(self.layer.get_submodule(owner), name)
        values = tensor.detach().to("cpu", torch.float32).reshape(self.layer.parameter_shapes[index])
        return np.asarray(values.numpy(), order="C")

    def _add_constant(self, kind: str, array: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> str:
        name = self._unique(f"{self.layer.spec.name}/{kind}")
        self._graph.add_constant(name, array)
        return name

    def _unique(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate


_FLOAT, _INT64 = 1, 7  # ONNX's numbers for kinds of values
_ELTWISE = ("Mul", "Add", "Max")  # by EltwiseOp
_SUM, _MEAN = 1, 4  # ReductionOp
_REDUCTIONS = {2: "ReduceL1", 3: "ReduceSumSquare", _MEAN: "ReduceMean"}


def relu(scope: Scope, layer: ReLU, x: str) -> list[str]:
    if layer.negative_slope:
        return [scope.op("LeakyRelu", x, alpha=layer.negative_slope)]
    return [scope.op("Relu", x)]


def prelu(scope: Scope, _layer: PReLU, x: str) -> list[str]:
    slope = scope.array(0)
    tail = (1,) * (len(scope.shapes[x]) - 2) if slope.size > 1 else ()
    return [scope.op("PRelu", x, scope.constant(slope.reshape(-1, *tail)))]


def elu(scope: Scope, layer: ELU, x: str) -> list[str]:
    return [scope.op("Elu", x, alpha=layer.alpha)]


def swish(scope: Scope, layer: Swish, x: str) -> list[str]:
    return [scope.op("Mul", x, scope.op("Sigmoid", _times(scope, x, layer.beta)))]


def softmax(scope: Scope, layer: Softmax, x: str) -> list[str]:
    return [scope.op("Softmax", x, axis=layer.axis)]


def clip(scope: Scope, layer: Clip, x: str) -> list[str]:
    return [scope.op("Clip", x, scope.constant(layer.least), scope.constant(layer.most))]


def exp(scope: Scope, layer: Exp, x: str) -> list[str]:
    return [_times(scope, scope.op("Exp", _times(scope, x, layer.inner_scale)), layer.outer_scale)]


def log(scope: Scope, layer: Log, x: str) -> list[str]:
    inner = _plus(scope, _times(scope, x, layer.scale), layer.shift)
    return [_times(scope, scope.op("Log", inner), layer.base_scale)]


def power(scope: Scope, layer: Power, x: str) -> list[str]:
    if layer.is_constant:
        return [_plus(scope, scope.op("Mul", x, scope.constant(0)), layer.constant)]
    base = _plus(scope, _times(scope, x, layer.scale), layer.shift)
    return [base if layer.power == 1 else scope.op("Pow", base, scope.constant(layer.power))]


def threshold(scope: Scope, layer: Threshold, x: str) -> list[str]:
    return [scope.op("Cast", scope.op("Greater", x, scope.constant(layer.threshold)), to=_FLOAT)]


def scale(scope: Scope, layer: Scale, *bottoms: str) -> list[str]:
    y = scope.op("Mul", bottoms[0], _operand(scope, layer, bottoms))
    if layer.bias is None:
        return [y]
    last = len(layer.parameter_names) - 1
    return [scope.op("Add", y, _spread(scope, layer, last))]


def bias(scope: Scope, layer: Bias, *bottoms: str) -> list[str]:
    return [scope.op("Add", bottoms[0], _operand(scope, layer, bottoms))]


def _operand(scope: Scope, layer: Scale | Bias, bottoms: tuple[str, ...]) -> str:
    if len(bottoms) == 1:
        return _spread(scope, layer, 0)
    if not layer.tail:
        return bottoms[1]
    kept = [0] * len(scope.shapes[bottoms[1]])
    return scope.op("Reshape", bottoms[1], scope.integers([*kept, *[1] * layer.tail]))


def _spread(scope: Scope, layer: Scale | Bias, index: int) -> str:
    array = scope.array(index)
    return scope.constant(array.reshape(*array.shape, *(1,) * layer.tail))


def embed(scope: Scope, layer: Embed, x: str) -> list[str]:
    y = scope.op("Gather", scope.parameter(0), scope.op("Cast", x, to=_INT64))
    return [y if layer.bias is None else scope.op("Add", y, scope.parameter(1))]


def parameter(scope: Scope, _layer: Parameter) -> list[str]:
    return [scope.parameter(0)]


def dummy_data(scope: Scope, layer: DummyData) -> list[str]:
    if layer.is_random:
        raise layer.spec.error("draws its values, which cannot be exported to ONNX; use an Input layer")
    return [scope.constant(value) for value in layer.constants]


def concat(scope: Scope, layer: Concat, *bottoms: str) -> list[str]:
    return [scope.op("Concat", *bottoms, axis=layer.axis)]


def slice_(scope: Scope, layer: Slice, x: str) -> list[str]:
    return scope.ops("Split", len(layer.sizes), x, scope.integers(layer.sizes), axis=layer.axis)


def split(_scope: Scope, layer: Split, x: str) -> list[str]:
    return [x] * len(layer.top_shapes)


def silence(_scope: Scope, _layer: object, *_bottoms: str) -> list[str]:
    return []


def flatten(scope: Scope, layer: Flatten, x: str) -> list[str]:
    sizes = (*[0] * layer.first, -1, *scope.shapes[x][layer.last + 1 :])
    return [scope.op("Reshape", x, scope.integers(sizes))]


def reshape(scope: Scope, layer: Reshape, x: str) -> list[str]:
    sizes = (*[0] * layer.start, *layer.sizes, *scope.shapes[x][layer.end :])
    return [scope.op("Reshape", x, scope.integers(sizes))]


def tile(scope: Scope, layer: Tile, x: str) -> list[str]:
    return [scope.op("Tile", x, scope.integers(layer.repeats))]


def crop(scope: Scope, layer: Crop, x: str, like: str) -> list[str]:
    axes = range(layer.axis, len(scope.shapes[x]))
    ends = [offset + scope.shapes[like][axis] for axis, offset in zip(axes, layer.offsets, strict=True)]
    bounds = (scope.integers(values) for values in (layer.offsets, ends, list(axes)))
    return [scope.op("Slice", x, *bounds)]


def eltwise(scope: Scope, layer: Eltwise, *bottoms: str) -> list[str]:
    factors = layer.coefficients or [1.0] * len(bottoms)
    is_sum = _ELTWISE[layer.operation] == "Add"
    parts = [_times(scope, x, factor) for x, factor in zip(bottoms, factors, strict=True)] if is_sum else bottoms
    return [reduce(lambda one, other: scope.op(_ELTWISE[layer.operation], one, other), parts)]


def reduction(scope: Scope, layer: Reduction, x: str) -> list[str]:
    axes = tuple(range(layer.axis, len(scope.shapes[x])))
    if layer.operation == _SUM:
        y = scope.op("ReduceSum", x, scope.integers(axes), keepdims=0)
    else:
        y = scope.op(_REDUCTIONS[layer.operation], x, axes=axes, keepdims=0)
    return [_times(scope, y, layer.coefficient)]


def arg_max(scope: Scope, layer: ArgMax, x: str) -> list[str]:
    shape = scope.shapes[x]
    if layer.axis is not None:
        values, indices = _best(scope, layer, x, layer.axis, shape[layer.axis])
        return [values if layer.with_values else indices]
    values, indices = _best(scope, layer, scope.op("Flatten", x, axis=1), 1, prod(shape[1:]))
    rows = scope.op("Concat", indices, values, axis=1) if layer.with_values else indices
    sizes = (-1, *layer.top_shapes[0][1:])
    return [scope.op("Reshape", rows, scope.integers(sizes))]


def _best(scope: Scope, layer: ArgMax, x: str, axis: int, size: int) -> tuple[str, str]:
    """The largest values and their indices: backwards through x, as Caffe takes the last of equal ones first."""
    least = int(np.iinfo(np.int64).min)
    bounds = (scope.integers([bound]) for bound in (-1, least, axis, -1))
    values, indices = scope.ops("TopK", 2, scope.op("Slice", x, *bounds), scope.integers([layer.top_k]), axis=axis)
    forward = scope.op("Sub", scope.constant(size - 1), scope.op("Cast", indices, to=_FLOAT))
    return values, forward


def _times(scope: Scope, x: str, factor: float) -> str:
    return x if factor == 1 else scope.op("Mul", x, scope.constant(factor))


def _plus(scope: Scope, x: str, term: float) -> str:
    return scope.op("Add", x, scope.constant(term)) if term else x
