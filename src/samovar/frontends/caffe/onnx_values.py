"""Layers that work value by value, move values or reduce many to few, as ONNX operators."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import reduce
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from samovar.formats.onnx import Attribute, Dimension, OnnxGraph
from samovar.frontends.caffe.layers.activations import Log, Power, PReLU
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.combining import ArgMax, Bias, Eltwise, Reduction, Scale
from samovar.frontends.caffe.layers.ends import DummyData
from samovar.frontends.caffe.layers.inner_product import Embed
from samovar.frontends.caffe.layers.shaping import Crop
from samovar.frontends.caffe.spec import Shape
from samovar.frontends.caffe.wiring import Step

Floats = npt.NDArray[np.float32]


class Scope:
    """The graph so far, and the value that each blob holds.

    A blob that layers change in place holds several values in turn; the last of them gets the blob's name. `shapes`
    are by value, as the net was built, batch included; so are the `names` in the file. `layer` is the one under
    translation.
    """

    layer: Layer

    def __init__(self, graph: OnnxGraph, steps: Iterable[Step]) -> None:
        self.shapes: dict[str, Shape] = {}
        self._graph = graph
        self._values: dict[str, str] = {}  # by blob
        self.names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._parameters: dict[str, str] = {}  # their names in the file
        self._writes_left = Counter(top for step in steps for top in step.tops)
        self._made: set[str] = set()  # by the present layer

    def add_input(self, blob: str, sizes: Iterable[Dimension], shape: Shape) -> None:
        """A blob that the caller gives; `sizes` are those in the file."""
        self._values[blob] = self.names[blob] = self._unique(blob)
        self.shapes[blob] = shape
        self._graph.add_input(blob, list(sizes))

    def add_output(self, blob: str, sizes: Iterable[Dimension]) -> None:
        """A blob that the graph gives, under its own name if no input has that name."""
        value = self._values[blob]
        if self.names.get(value) != blob or value == blob:
            name = self._unique(blob)
            self._graph.add_node(f"{blob}/Identity", "Identity", [value], [name])
            value = name
        self._graph.add_output(value, list(sizes))

    def enter(self, layer: Layer) -> None:
        self.layer = layer
        self._made = set()

    def value_of(self, blob: str) -> str:
        return self._values[blob]

    def set_value(self, blob: str, value: str, shape: Shape) -> None:
        self._writes_left[blob] -= 1
        if value in self._made and value not in self.names:
            name = f"{blob}@{self.layer.spec.name}" if self._writes_left[blob] else blob
            self.names[value] = self._unique(name)
        self._values[blob] = value
        self.shapes[value] = shape

    def op(self, operator: str, *inputs: str, **attributes: Attribute) -> str:
        return self.ops(operator, 1, *inputs, **attributes)[0]

    def ops(self, operator: str, num_outputs: int, *inputs: str, **attributes: Attribute) -> list[str]:
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
        """The layer's parameter `index`; a shared one is in the file once, if it has one shape."""
        name = self.layer.parameter_names[index]
        if self.layer.attribute_names[index] in self.layer.reshaped:
            return self._add_constant("parameter", self.array(index))
        if name not in self._parameters:
            self._parameters[name] = self._unique(name)
            self._graph.add_constant(self._parameters[name], self.array(index))
        return self._parameters[name]

    def array(self, index: int) -> Floats:
        """The values of the layer's parameter `index`, in C order."""
        parameter, shape = self.layer.caffe_parameters()[index], self.layer.parameter_shapes[index]
        values = parameter.detach().to("cpu", torch.float32).reshape(shape)
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

Translation: TypeAlias = Callable[..., str | list[str]]  # (scope, layer, *bottoms) -> top, or tops


def _prelu(scope: Scope, _layer: PReLU, x: str) -> str:
    slope = scope.array(0)
    tail = (1,) * (len(scope.shapes[x]) - 2) if slope.size > 1 else ()
    return scope.op("PRelu", x, scope.constant(slope.reshape(-1, *tail)))


def _power(scope: Scope, layer: Power, x: str) -> str:
    if layer.is_constant:
        return _plus(scope, scope.op("Mul", x, scope.constant(0)), layer.constant)
    base = _plus(scope, _times(scope, x, layer.scale), layer.shift)
    return base if layer.power == 1 else scope.op("Pow", base, scope.constant(layer.power))


def _scale(scope: Scope, layer: Scale, *bottoms: str) -> str:
    y = scope.op("Mul", bottoms[0], _operand(scope, layer, bottoms))
    return y if layer.bias is None else scope.op("Add", y, _spread(scope, layer, len(layer.parameter_names) - 1))


def _operand(scope: Scope, layer: Scale | Bias, bottoms: tuple[str, ...]) -> str:
    if len(bottoms) == 1:
        return _spread(scope, layer, 0)
    if not layer.tail:
        return bottoms[1]
    kept = [0] * len(scope.shapes[bottoms[1]])
    return scope.op("Reshape", bottoms[1], scope.integers([*kept, *[1] * layer.tail]))


def _spread(scope: Scope, layer: Scale | Bias, index: int) -> str:
    array = scope.array(index)
    return scope.constant(array.reshape((*array.shape, *(1,) * layer.tail)))


def _dummy_data(scope: Scope, layer: DummyData) -> list[str]:
    if layer.is_random:
        raise layer.spec.error("draws its values, which cannot be exported to ONNX; use an Input layer")
    return [scope.constant(value) for value in layer.constants]


def _crop(scope: Scope, layer: Crop, x: str, like: str) -> str:
    axes = range(layer.axis, len(scope.shapes[x]))
    ends = [offset + scope.shapes[like][axis] for axis, offset in zip(axes, layer.offsets, strict=True)]
    return scope.op("Slice", x, *(scope.integers(values) for values in (layer.offsets, ends, list(axes))))


def _eltwise(scope: Scope, layer: Eltwise, *bottoms: str) -> str:
    factors = layer.coefficients or [1.0] * len(bottoms)
    is_sum = _ELTWISE[layer.operation] == "Add"
    parts = [_times(scope, x, factor) for x, factor in zip(bottoms, factors, strict=True)] if is_sum else bottoms
    return reduce(lambda one, other: scope.op(_ELTWISE[layer.operation], one, other), parts)


def _reduction(scope: Scope, layer: Reduction, x: str) -> str:
    axes = tuple(range(layer.axis, len(scope.shapes[x])))
    if layer.operation == _SUM:
        y = scope.op("ReduceSum", x, scope.integers(axes), keepdims=0)
    else:
        y = scope.op(_REDUCTIONS[layer.operation], x, axes=axes, keepdims=0)
    return _times(scope, y, layer.coefficient)


def _arg_max(scope: Scope, layer: ArgMax, x: str) -> str:
    shape = scope.shapes[x]
    if layer.axis is not None:
        values, indices = _best(scope, layer, x, layer.axis, shape[layer.axis])
        return values if layer.with_values else indices
    values, indices = _best(scope, layer, scope.op("Flatten", x, axis=1), 1, prod(shape[1:]))
    rows = scope.op("Concat", indices, values, axis=1) if layer.with_values else indices
    return scope.op("Reshape", rows, scope.integers((-1, *layer.top_shapes[0][1:])))


def _best(scope: Scope, layer: ArgMax, x: str, axis: int, size: int) -> tuple[str, str]:
    """The largest values and their indices: backwards through x, as Caffe takes the last of equal ones first."""
    bounds = (scope.integers([bound]) for bound in (-1, int(np.iinfo(np.int64).min), axis, -1))
    values, indices = scope.ops("TopK", 2, scope.op("Slice", x, *bounds), scope.integers([layer.top_k]), axis=axis)
    return values, scope.op("Sub", scope.constant(size - 1), scope.op("Cast", indices, to=_FLOAT))


def _times(scope: Scope, x: str, factor: float) -> str:
    return x if factor == 1 else scope.op("Mul", x, scope.constant(factor))


def _plus(scope: Scope, x: str, term: float) -> str:
    return scope.op("Add", x, scope.constant(term)) if term else x


def _reshaped(s: Scope, x: str, start: int, sizes: Iterable[int], end: int) -> str:
    """The axes from `start` to `end` as others of these sizes."""
    return s.op("Reshape", x, s.integers((*[0] * start, *sizes, *s.shapes[x][end:])))


def _log(s: Scope, layer: Log, x: str) -> str:
    inner = _plus(s, _times(s, x, layer.scale), layer.shift)
    return _times(s, s.op("Log", inner), layer.base_scale)


def _embed(s: Scope, layer: Embed, x: str) -> str:
    y = s.op("Gather", s.parameter(0), s.op("Cast", x, to=_INT64))
    return y if layer.bias is None else s.op("Add", y, s.parameter(1))


TRANSLATIONS: dict[str, Translation] = {
    "AbsVal": lambda s, _, x: s.op("Abs", x),
    "ArgMax": _arg_max,
    "BNLL": lambda s, _, x: s.op("Softplus", x),
    "Bias": lambda s, layer, *bottoms: s.op("Add", bottoms[0], _operand(s, layer, bottoms)),
    "Clip": lambda s, layer, x: s.op("Clip", x, s.constant(layer.least), s.constant(layer.most)),
    "Concat": lambda s, layer, *bottoms: s.op("Concat", *bottoms, axis=layer.axis),
    "Crop": _crop,
    "DummyData": _dummy_data,
    "ELU": lambda s, layer, x: s.op("Elu", x, alpha=layer.alpha),
    "Eltwise": _eltwise,
    "Embed": _embed,
    "Exp": lambda s, layer, x: _times(s, s.op("Exp", _times(s, x, layer.inner_scale)), layer.outer_scale),
    "Flatten": lambda s, layer, x: _reshaped(s, x, layer.first, (-1,), layer.last + 1),
    "Log": _log,
    "PReLU": _prelu,
    "Parameter": lambda s, _: s.parameter(0),
    "Power": _power,
    "ReLU": lambda s, layer, x: (
        s.op("LeakyRelu", x, alpha=slope) if (slope := layer.negative_slope) else s.op("Relu", x)
    ),
    "Reduction": _reduction,
    "Reshape": lambda s, layer, x: _reshaped(s, x, layer.start, layer.sizes, layer.end),
    "Scale": _scale,
    "Sigmoid": lambda s, _, x: s.op("Sigmoid", x),
    "Silence": lambda _s, _layer, *_bottoms: [],
    "Slice": lambda s, layer, x: s.ops("Split", len(layer.sizes), x, s.integers(layer.sizes), axis=layer.axis),
    "Softmax": lambda s, layer, x: s.op("Softmax", x, axis=layer.axis),
    "Split": lambda _, layer, x: [x] * len(layer.top_shapes),
    "Swish": lambda s, layer, x: s.op("Mul", x, s.op("Sigmoid", _times(s, x, layer.beta))),
    "TanH": lambda s, _, x: s.op("Tanh", x),
    "Threshold": lambda s, layer, x: s.op("Cast", s.op("Greater", x, s.constant(layer.threshold)), to=_FLOAT),
    "Tile": lambda s, layer, x: s.op("Tile", x, s.integers(layer.repeats)),
}
