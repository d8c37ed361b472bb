"""ReLU and its relatives, sigmoids, Softmax."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from samovar.frontends.caffe.layers.base import KEPT, Layer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape, text


class ReLU(Layer):
    """y = max(x, 0) + negative_slope min(x, 0); the gradient at 0 is negative_slope."""

    memory_order = KEPT
    takes_half = True
    settings = ("relu_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.negative_slope = spec.message.relu_param.negative_slope
        self.is_merged = False  # set by the net where a layer beside it does this one's work

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (x,) = bottoms
        if self.is_merged:
            return (x,)
        if self.negative_slope:
            return (F.leaky_relu(x, self.negative_slope),)
        return (torch.relu_(x) if self.overwrites_bottom else torch.relu(x),)


class PReLU(Layer):
    """y = max(x, 0) + a[c] min(x, 0), c the index on axis 1; the gradient at 0 is a[c].

    Slopes (channels), or () with `channel_shared`; they start at 0.25.
    """

    forgets_output = True
    memory_order = KEPT
    settings = ("prelu_param",)

    slope: nn.Parameter

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        shape = bottom_shapes[0]
        if len(shape) < 2:
            raise spec.error(f"input has shape {text(shape)}; PReLU takes at least 2 axes (N, C, ...)", "bottom")
        is_shared = spec.message.prelu_param.channel_shared
        self.add_parameter("slope", () if is_shared else (shape[1],), "filler", default=0.25)

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.prelu(bottoms[0], self.slope.reshape(-1)),)


class ELU(Layer):
    """y = x where x > 0, else alpha (exp(x) - 1).

    Reference: Clevert, Unterthiner, Hochreiter, Fast and accurate deep network learning by ELUs, 2015.
    """

    memory_order = KEPT
    settings = ("elu_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.alpha = spec.finite("elu_param", "alpha")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.elu(bottoms[0], self.alpha),)


class Sigmoid(Layer):
    """y = 1 / (1 + exp(-x))."""

    memory_order = KEPT
    settings = ("sigmoid_param",)

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.sigmoid(bottoms[0]),)


class TanH(Layer):
    """y = tanh(x)."""

    memory_order = KEPT
    settings = ("tanh_param",)

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.tanh(bottoms[0]),)


class Swish(Layer):
    """y = x / (1 + exp(-beta x)).

    Reference: Ramachandran, Zoph, Le, Searching for activation functions, 2017.
    """

    forgets_output = True
    memory_order = KEPT
    settings = ("swish_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.beta = spec.finite("swish_param", "beta")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (x,) = bottoms
        return (F.silu(x) if self.beta == 1 else x * torch.sigmoid(self.beta * x),)


class BNLL(Layer):
    """y = log(1 + exp(x)), as x + log(1 + exp(-x)) where x > 0."""

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.softplus(bottoms[0]),)


class Softmax(Layer):
    """y = exp(x) / sum(exp(x)) along `axis`."""

    takes_scores = True
    settings = ("softmax_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.axis = spec.axis(bottom_shapes[0], spec.message.softmax_param.axis, "softmax_param", "axis")
        self.mixes_samples = self.axis == 0

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.softmax(bottoms[0], self.axis),)
