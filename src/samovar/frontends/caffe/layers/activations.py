"""Layers that work value by value (ReLU and its relatives, sigmoids, powers, logarithms, Dropout), and Softmax."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from samovar.core.buffer import sent
from samovar.frontends.caffe.layers.base import KEPT, Layer, RandomLayer
from samovar.frontends.caffe.spec import LayerSpec, Shape, text


class ReLU(Layer):
    """y = max(x, 0) + negative_slope min(x, 0); the gradient at 0 is negative_slope."""

    memory_order = KEPT
    takes_half = True
    settings = ("relu_param",)

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        self.negative_slope = spec.message.relu_param.negative_slope
        self.is_merged = False  # set by the net if a layer next to it does this one's work

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.is_merged:
            return (x,)
        if self.negative_slope:
            return (F.leaky_relu(x, self.negative_slope),)
        return (torch.relu_(x) if self.overwrites_bottom else torch.relu(x),)


class PReLU(Layer):
    """y = max(x, 0) + a[c] min(x, 0), c the index on axis 1; the gradient at 0 is a[c].
    Slopes (channels), or () with `channel_shared`; they start at 0.25."""

    forgets_output = True
    memory_order = KEPT
    settings = ("prelu_param",)
    slope: nn.Parameter

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        shape = bottom_shapes[0]
        if len(shape) < 2:
            raise spec.error(f"input has shape {text(shape)}; PReLU takes at least 2 axes (N, C, ...)", "bottom")
        is_shared = spec.message.prelu_param.channel_shared
        self.add_parameter("slope", () if is_shared else (shape[1],), "filler", default=0.25)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.prelu(x, self.slope.reshape(-1)),)


class ELU(Layer):
    """y = x where x > 0, else alpha (exp(x) - 1).
    Reference: Clevert, Unterthiner, Hochreiter, Fast and accurate deep network learning by ELUs, 2015."""

    memory_order = KEPT
    settings = ("elu_param",)

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        self.alpha = spec.finite("elu_param", "alpha")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.elu(x, self.alpha),)


class Sigmoid(Layer):
    """y = 1 / (1 + exp(-x))."""

    memory_order = KEPT
    settings = ("sigmoid_param",)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.sigmoid(x),)


class TanH(Layer):
    """y = tanh(x)."""

    memory_order = KEPT
    settings = ("tanh_param",)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.tanh(x),)


class Swish(Layer):
    """y = x / (1 + exp(-beta x)). Reference: Ramachandran, Zoph, Le, Searching for activation functions, 2017."""

    forgets_output = True
    memory_order = KEPT
    settings = ("swish_param",)

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        self.beta = spec.finite("swish_param", "beta")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.silu(x) if self.beta == 1 else x * torch.sigmoid(self.beta * x),)


class BNLL(Layer):
    """y = log(1 + exp(x)), as x + log(1 + exp(-x)) where x > 0."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.softplus(x),)


class Softmax(Layer):
    """y = exp(x) / sum(exp(x)) along `axis`."""

    takes_scores = True
    settings = ("softmax_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        self.axis = spec.axis(bottom_shapes[0], spec.message.softmax_param.axis, "softmax_param", "axis")
        self.mixes_samples = self.axis == 0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.softmax(x, self.axis),)


_NATURAL = -1.0  # the value of `base` that stands for e


class AbsVal(Layer):
    """y = |x|; the gradient at 0 is 0."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.abs(),)


class Clip(Layer):
    """y = min(max(x, min), max); on the limits themselves the gradient passes."""

    settings = ("clip_param",)

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        if not spec.message.HasField("clip_param"):
            raise spec.error("clip_param is missing; give its min and max")
        self.least, self.most = spec.finite("clip_param", "min"), spec.finite("clip_param", "max")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.clamp(self.least, self.most),)


class Exp(Layer):
    """y = base^(shift + scale x); base -1 stands for e."""

    settings = ("exp_param",)

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        log_base = _log_base(spec, "exp_param")
        self.inner_scale = log_base * spec.finite("exp_param", "scale")
        try:
            self.outer_scale = math.exp(log_base * spec.finite("exp_param", "shift"))
        except OverflowError:
            raise spec.error("base^shift is too large for a float; make shift smaller", "exp_param.shift") from None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.exp(x if self.inner_scale == 1 else x * self.inner_scale)
        return (y if self.outer_scale == 1 else y * self.outer_scale,)


class Log(Layer):
    """y = log_base(shift + scale x); base -1 stands for e."""

    settings = ("log_param",)

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        log_base = _log_base(spec, "log_param")
        if log_base == 0:
            raise spec.error("base: 1 has no logarithm; give another base, or -1 for e", "log_param.base")
        self.base_scale = 1 / log_base
        self.scale, self.shift = spec.finite("log_param", "scale"), spec.finite("log_param", "shift")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.log(_affine(x, self.scale, self.shift))
        return (y if self.base_scale == 1 else y * self.base_scale,)


class Power(Layer):
    """y = (shift + scale x)^power; a constant without gradient where power or scale is 0."""

    settings = ("power_param",)

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        self.power, self.scale, self.shift = (spec.finite("power_param", f) for f in ("power", "scale", "shift"))
        self.is_constant = self.power * self.scale == 0
        self.constant = float(torch.tensor(self.shift) ** self.power)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.is_constant:
            return (torch.where(torch.zeros_like(x, dtype=torch.bool), x, self.constant),)
        base = _affine(x, self.scale, self.shift)
        return (base if self.power == 1 else base**self.power,)


class Threshold(Layer):
    """y = 1 where x > threshold, else 0. No gradient."""

    has_gradient = False
    settings = ("threshold_param",)

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        self.threshold = spec.finite("threshold_param", "threshold")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x > self.threshold).to(x.dtype),)


class Dropout(RandomLayer):
    """In training each value is kept with probability 1 - ratio and then divided by it, else 0; in test y = x.
    Reference: Srivastava et al., Dropout, 2014."""

    memory_order = KEPT
    takes_half = True
    settings = ("dropout_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        super().build(spec, bottom_shapes)
        ratio = spec.finite("dropout_param", "dropout_ratio")
        if not 0 < ratio < 1:
            raise spec.error(
                f"dropout_ratio: {ratio:g}; it must be between 0 and 1 (for 0 remove the layer)",
                "dropout_param.dropout_ratio",
            )
        self.is_random = spec.is_training
        self.threshold = np.uint32(min(round(ratio * 2**32), 2**32 - 1))
        self.scale = 1 / (1 - ratio)

    def work_as(self, is_training: bool) -> None:
        self.is_random = is_training

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not self.is_random:
            return (x,)
        kept = self.words(tuple(x.shape)) >= self.threshold
        mask = sent(torch.from_numpy(np.asarray(kept)), x.device).to(x.dtype).mul_(self.scale)
        return (x * mask,)


def _log_base(spec: LayerSpec, owner: str) -> float:
    base = spec.finite(owner, "base")
    if base == _NATURAL:
        return 1.0
    if base <= 0:
        raise spec.error(f"base: {base}; it must be above 0, or -1 for e", owner, "base")
    return math.log(base)


def _affine(x: torch.Tensor, scale: float, shift: float) -> torch.Tensor:
    if scale != 1:
        x = x * scale
    return x + shift if shift else x
