"""InnerProduct."""

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import nn

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape, checked
from samovar.model.direct import linear
from samovar.model.half import stays_full


class InnerProduct(Layer):
    """y = x W^T + b, x with all axes from `axis` on taken as one of length K, in C, H, W order.

    Weight (num_output, K), or (K, num_output) with `transpose`; bias (num_output).
    """

    forgets_output = True
    settings = ("inner_product_param",)

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
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
        self.register_parameter("bias", None)
        if settings.bias_term:
            self.add_parameter("bias", (self.num_output,), "bias_filler")

    @property
    def takes_half(self) -> bool:  # type: ignore[override]
        return not (self.transpose or self.is_shared or stays_full(self.weight))

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (x,) = bottoms
        lead = x.shape[: self.axis]
        if len(lead) != 1 or x.dim() != 2:
            x = x.reshape(prod(lead), -1)
        if self.transpose:
            y = F.linear(x, self.weight.t(), self.bias)
        elif self.is_shared:
            y = F.linear(x, self.weight, self.bias)
        else:
            y = linear(x, self.weight, self.bias)
        return (y if len(lead) == 1 else y.reshape(*lead, self.num_output),)
