"""What a layer sees while it becomes ONNX operators: values and their shapes, constants, and new operators."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from samovar.formats.onnx import Attribute, Dimension, OnnxGraph
from samovar.frontends.caffe.layers.base import Layer
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
