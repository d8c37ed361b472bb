"""ReLU and Softmax."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape


class ReLU(Layer):
    """y = max(x, 0) + negative_slope min(x, 0); the gradient at 0 is negative_slope."""

    settings = ("relu_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.negative_slope = spec.message.relu_param.negative_slope

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (x,) = bottoms
        if self.negative_slope:
            return (F.leaky_relu(x, self.negative_slope),)
        return (torch.relu_(x) if self.overwrites_bottom else torch.relu(x),)


class Softmax(Layer):
    """y = exp(x) / sum(exp(x)) along `axis`."""

    settings = ("softmax_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.axis = spec.axis(bottom_shapes[0], spec.message.softmax_param.axis, "softmax_param", "axis")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.softmax(bottoms[0], self.axis),)
