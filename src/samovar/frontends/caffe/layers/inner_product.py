"""Learned arrays and products with them: InnerProduct, Embed, Parameter."""

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import nn

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.spec import LayerSpec, Shape, checked
from samovar.model.direct import linear
from samovar.model.half import stays_full


class InnerProduct(Layer):
    """y = x W^T + b; all axes of x from `axis` on count as one of length K, in C, H, W order.
    Weight (num_output, K), or (K, num_output) with `transpose`; bias (num_output)."""

    forgets_output = True
    settings = ("inner_product_param",)
    weight: nn.Parameter

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        settings, shape = spec.message.inner_product_param, bottom_shapes[0]
        if settings.num_output < 1:
            raise spec.error("num_output is missing or 0; give the number of outputs", "inner_product_param")
        self.axis = spec.axis(shape, settings.axis, "inner_product_param", "axis")
        self.mixes_samples = self.axis == 0
        self.num_output = settings.num_output
        self.transpose = settings.transpose
        self.top_shapes = [checked(spec, (*shape[: self.axis], self.num_output), "the output")]
        num_inputs = prod(shape[self.axis :])
        weight_shape = (num_inputs, self.num_output) if self.transpose else (self.num_output, num_inputs)
        self.add_parameter("weight", weight_shape, "weight_filler")
        self.add_bias((self.num_output,), settings.bias_term)

    @property
    def takes_half(self) -> bool:  # type: ignore[override]
        return not (self.transpose or self.is_shared or stays_full(self.weight))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        lead = x.shape[: self.axis]
        if len(lead) != 1 or x.dim() != 2:
            x = x.reshape(prod(lead), prod(x.shape[self.axis :]))
        if self.transpose:
            y = F.linear(x, self.weight.t(), self.bias)
        elif self.is_shared:
            y = F.linear(x, self.weight, self.bias)
        else:
            y = linear(x, self.weight, self.bias)
        return (y if len(lead) == 1 else y.reshape(*lead, self.num_output),)


class Embed(Layer):
    """y = W[x] + b: a row of W for each number of x, from 0 to input_dim - 1; x gets no gradient.
    Weight (input_dim, num_output), bias (num_output); output: the input's shape with num_output added."""

    takes_integers = True
    settings = ("embed_param",)
    weight: nn.Parameter

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        settings = spec.message.embed_param
        for field in ("num_output", "input_dim"):
            if getattr(settings, field) < 1:
                raise spec.error(f"{field} is missing or 0; it must be at least 1", "embed_param", field)
        self.input_dim = settings.input_dim
        self.top_shapes = [checked(spec, (*bottom_shapes[0], settings.num_output), "the output")]
        self.add_parameter("weight", (self.input_dim, settings.num_output), "weight_filler")
        self.add_bias((settings.num_output,), settings.bias_term)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        numbers = x.long()
        refusal = f"input has values {{least}} to {{most}}; allowed are 0 to {self.input_dim - 1} (input_dim - 1)"
        y = self.at_numbers(numbers, self.input_dim, lambda: F.embedding(numbers, self.weight), refusal)
        return (y if self.bias is None else y + self.bias,)


class Parameter(Layer):
    """A learned blob: the parameter itself, zeros at first, of the given shape."""

    num_bottoms = (0, 0)
    settings = ("parameter_param",)
    value: nn.Parameter

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        shape = tuple(spec.message.parameter_param.shape.dim)
        if not spec.message.parameter_param.HasField("shape"):
            raise spec.error("shape is missing; give the parameter's", "parameter_param")
        self.top_shapes = [shape]
        self.add_parameter("value", shape)

    def forward(self) -> tuple[torch.Tensor, ...]:
        return (self.value,)
