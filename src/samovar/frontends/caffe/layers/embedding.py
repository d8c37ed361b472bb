"""Embed and Parameter: values looked up, or simply given."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape, checked


class Embed(Layer):
    """y = W[x] + b: a row of W for each number of x, from 0 to input_dim - 1; x gets no gradient.

    Weight (input_dim, num_output), bias (num_output); output: the input's shape with num_output added.
    """

    takes_integers = True
    settings = ("embed_param",)

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        settings = spec.message.embed_param
        for field in ("num_output", "input_dim"):
            if getattr(settings, field) < 1:
                raise spec.error(f"{field} is missing or 0; it must be at least 1", "embed_param", field)
        self.input_dim = settings.input_dim
        self.top_shapes = [checked(spec, (*bottom_shapes[0], settings.num_output), "the output")]
        self.add_parameter("weight", (self.input_dim, settings.num_output), "weight_filler")
        self.register_parameter("bias", None)
        if settings.bias_term:
            self.add_parameter("bias", (settings.num_output,), "bias_filler")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        numbers = bottoms[0].long()
        if numbers.device.type != "cpu":  # a GPU would end the process instead of raising IndexError
            self._check_range(numbers)
        try:
            y = F.embedding(numbers, self.weight)
        except IndexError:
            self._check_range(numbers)
            raise
        return (y if self.bias is None else y + self.bias,)

    def _check_range(self, numbers: torch.Tensor) -> None:
        least, most = int(numbers.min()), int(numbers.max())
        if not 0 <= least <= most < self.input_dim:
            raise self.spec.error(
                f"input has values {least} to {most}; allowed are 0 to {self.input_dim - 1} (input_dim - 1)"
            ) from None


class Parameter(Layer):
    """A blob that is learned: the parameter itself, zeros at first, of the given shape."""

    num_bottoms = (0, 0)
    settings = ("parameter_param",)

    value: nn.Parameter

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        shape = tuple(spec.message.parameter_param.shape.dim)
        if not spec.message.parameter_param.HasField("shape"):
            raise spec.error("shape is missing; give the parameter's", "parameter_param")
        self.top_shapes = [shape]
        self.add_parameter("value", shape)

    def forward(self, *_bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.value,)
