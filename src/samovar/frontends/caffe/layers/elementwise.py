"""Plain functions of each value: AbsVal, Clip, Exp, Log, Power, Threshold."""

import math
from collections.abc import Sequence

import torch

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape

_NATURAL = -1.0  # the value of `base` that stands for e


class AbsVal(Layer):
    """y = |x|; the gradient at 0 is 0."""

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (bottoms[0].abs(),)


class Clip(Layer):
    """y = x brought to min .. max; on the limits themselves the gradient passes."""

    settings = ("clip_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        if not spec.message.HasField("clip_param"):
            raise spec.error("clip_param is missing; give its min and max")
        self.least, self.most = spec.finite("clip_param", "min"), spec.finite("clip_param", "max")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (bottoms[0].clamp(self.least, self.most),)


class Exp(Layer):
    """y = base^(shift + scale x); base -1 stands for e."""

    settings = ("exp_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        log_base = _log_base(spec, "exp_param")
        self.inner_scale = log_base * spec.finite("exp_param", "scale")
        try:
            self.outer_scale = math.exp(log_base * spec.finite("exp_param", "shift"))
        except OverflowError:
            raise spec.error("base^shift is too large for a float; make shift smaller", "exp_param", "shift") from None

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.exp(bottoms[0] if self.inner_scale == 1 else bottoms[0] * self.inner_scale)
        return (y if self.outer_scale == 1 else y * self.outer_scale,)


class Log(Layer):
    """y = log_base(shift + scale x); base -1 stands for e."""

    settings = ("log_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        log_base = _log_base(spec, "log_param")
        if log_base == 0:
            raise spec.error("base: 1 has no logarithm; give another base, or -1 for e", "log_param", "base")
        self.base_scale = 1 / log_base
        self.scale, self.shift = spec.finite("log_param", "scale"), spec.finite("log_param", "shift")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.log(_affine(bottoms[0], self.scale, self.shift))
        return (y if self.base_scale == 1 else y * self.base_scale,)


class Power(Layer):
    """y = (shift + scale x)^power; a constant without gradient where power or scale is 0."""

    settings = ("power_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.power, self.scale, self.shift = (spec.finite("power_param", f) for f in ("power", "scale", "shift"))
        self.is_constant = self.power * self.scale == 0
        self.constant = float(torch.tensor(self.shift) ** self.power)

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (x,) = bottoms
        if self.is_constant:
            return (torch.where(torch.zeros_like(x, dtype=torch.bool), x, self.constant),)
        base = _affine(x, self.scale, self.shift)
        return (base if self.power == 1 else base**self.power,)


class Threshold(Layer):
    """y = 1 where x > threshold, else 0. No gradient."""

    has_gradient = False
    settings = ("threshold_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.threshold = spec.finite("threshold_param", "threshold")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((bottoms[0] > self.threshold).to(bottoms[0].dtype),)


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
