"""Many values into fewer (Eltwise, Reduction, ArgMax), and an operand repeated over further axes (Scale, Bias)."""

from collections.abc import Sequence
from functools import reduce
from math import prod

import torch
from torch import nn

from samovar.frontends.caffe.layers.base import KEPT, Layer
from samovar.frontends.caffe.spec import LayerSpec, Shape, text

_PROD, _SUM, _MAX = 0, 1, 2  # EltwiseParameter.EltwiseOp
_ASUM, _SUMSQ, _MEAN = 2, 3, 4  # ReductionParameter.ReductionOp; 1 is the sum


class Eltwise(Layer):
    """Product, sum (each bottom times its `coeff`) or maximum of bottoms of one shape, value by value.
    If bottoms tie for the maximum, one of them gets the gradient: of the first two the second, then the earlier."""

    num_bottoms = (2, 1 << 16)
    memory_order = KEPT
    takes_half = True
    settings = ("eltwise_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        settings = spec.message.eltwise_param
        for shape in bottom_shapes[1:]:
            if shape != bottom_shapes[0]:
                raise spec.error(
                    f"bottoms of shapes {text(bottom_shapes[0])} and {text(shape)}; all need the same shape", "bottom"
                )
        self.operation, self.coefficients = settings.operation, list(settings.coeff)
        if self.coefficients and self.operation == _PROD:
            raise spec.error("coeff belongs to operation: SUM; a product takes none", "eltwise_param.coeff")
        if self.coefficients and len(self.coefficients) != len(bottom_shapes):
            raise spec.error(
                f"coeff is given {len(self.coefficients)} times for {len(bottom_shapes)} bottoms; give each one",
                "eltwise_param.coeff",
            )

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.operation == _MAX:
            return (_maximum(bottoms),)
        if self.operation == _PROD:
            return (reduce(torch.mul, bottoms),)
        if not any(coefficient != 1 for coefficient in self.coefficients):
            return (reduce(torch.add, bottoms),)
        y = bottoms[0] * self.coefficients[0]
        for bottom, coefficient in zip(bottoms[1:], self.coefficients[1:], strict=True):
            y = torch.add(y, bottom, alpha=coefficient)
        return (y,)


def _maximum(bottoms: Sequence[torch.Tensor]) -> torch.Tensor:
    first, second, *others = bottoms
    y = torch.where(first > second, first, second)
    for other in others:
        y = torch.where(other > y, other, y)
    return y


class Reduction(Layer):
    """coeff times the sum, sum of magnitudes, sum of squares or mean over all axes from `axis` on."""

    settings = ("reduction_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        shape = bottom_shapes[0]
        self.operation = spec.message.reduction_param.operation
        self.coefficient = spec.finite("reduction_param", "coeff")
        self.axis = spec.axis(shape, spec.message.reduction_param.axis, "reduction_param", "axis")
        self.mixes_samples = self.axis == 0
        self.top_shapes = [shape[: self.axis]]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.flatten(self.axis)
        if self.operation == _ASUM:
            x = x.abs()
        elif self.operation == _SUMSQ:
            x = x * x
        y = x.mean(-1) if self.operation == _MEAN else x.sum(-1)
        return (y if self.coefficient == 1 else y * self.coefficient,)


class ArgMax(Layer):
    """Indices of the `top_k` largest values, largest first; of equal ones the last first. No gradient.

    Along `axis`, with `out_max_val` values instead of indices. Without `axis` over a whole sample: (N, 1, top_k), or
    with `out_max_val` (N, 2, top_k), values in the second row. Inputs of more axes add axes of size 1.
    """

    has_gradient = False
    settings = ("argmax_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        settings, shape = spec.message.argmax_param, bottom_shapes[0]
        if not shape:
            raise spec.error("input is a single value; ArgMax takes at least one axis", "bottom")
        self.top_k, self.with_values = settings.top_k, settings.out_max_val
        self.axis = spec.axis(shape, settings.axis, "argmax_param", "axis") if settings.HasField("axis") else None
        size = prod(shape[1:]) if self.axis is None else shape[self.axis]
        if not 1 <= self.top_k <= size:
            raise spec.error(f"top_k: {self.top_k} of {size} values; allowed are 1 to {size}", "argmax_param.top_k")
        if self.axis is None:
            self.tail = (1,) * (len(shape) - 3)
            self.top_shapes = [(shape[0], 2 if self.with_values else 1, self.top_k, *self.tail)]
        else:
            self.top_shapes = [(*shape[: self.axis], self.top_k, *shape[self.axis + 1 :])]

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.axis is not None:
            values, indices = self._best(x, self.axis)
            return (values if self.with_values else indices,)
        values, indices = self._best(x.reshape(len(x), prod(x.shape[1:])), 1)
        rows = [indices, values] if self.with_values else [indices]
        return (torch.stack(rows, 1).reshape(len(x), len(rows), self.top_k, *self.tail),)

    def _best(self, x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
        values, order = torch.sort(x.flip(axis), dim=axis, descending=True, stable=True)
        indices = (x.shape[axis] - 1 - order).to(x.dtype)
        return values.narrow(axis, 0, self.top_k), indices.narrow(axis, 0, self.top_k)


class _Broadcast(Layer):
    """An operand of the shape of the first bottom's axes from `axis` on, `num_axes` of them (-1: to the end)."""

    num_bottoms = (1, 2)
    forgets_output = True

    def operand(self, shapes: Sequence[Shape]) -> Shape:
        """The operand's shape; also sets `view_shape`, which broadcasts to the first bottom."""
        owner, settings, x = self.settings[0], getattr(self.spec.message, self.settings[0]), shapes[0]
        if (len(shapes) == 2 and not shapes[1]) or (len(shapes) == 1 and settings.num_axes == 0):
            axis = 0
        else:
            axis = self.spec.axis(x, settings.axis, owner, "axis")
        if len(shapes) == 2:
            shape = shapes[1]
        elif settings.num_axes < -1 or axis + settings.num_axes > len(x):
            raise self.spec.error(
                f"num_axes: {settings.num_axes} from axis {axis} of an input of shape {text(x)}; allowed are -1 (to "
                f"the end) to {len(x) - axis}",
                owner,
                "num_axes",
            )
        else:
            shape = x[axis:] if settings.num_axes == -1 else x[axis : axis + settings.num_axes]
        if x[axis : axis + len(shape)] != shape:
            raise self.spec.error(
                f"second bottom of shape {text(shape)} does not fit the first, {text(x)}, from axis {axis} on", "bottom"
            )
        self.tail = len(x) - axis - len(shape)
        return shape

    def broadcast(self, operand: torch.Tensor) -> torch.Tensor:
        return operand.reshape((*operand.shape, *(1,) * self.tail))


class Scale(_Broadcast):
    """y = s x (+ b), s and b repeated over the axes that they lack.
    s is the second bottom, or a parameter that starts at 1; with `bias_term`, b is a parameter of its shape."""

    memory_order = KEPT
    settings = ("scale_param",)
    scale: nn.Parameter

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        shape = self.operand(bottom_shapes)
        if len(bottom_shapes) == 1:
            self.add_parameter("scale", shape, "filler", default=1.0)
        self.add_bias(shape, spec.message.scale_param.bias_term)

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = self.broadcast(bottoms[1] if len(bottoms) == 2 else self.scale)
        if self.bias is None:
            return (bottoms[0] * scale,)
        return (torch.addcmul(self.broadcast(self.bias), bottoms[0], scale),)


class Bias(_Broadcast):
    """y = x + b, b repeated over the axes that it lacks: the second bottom, or a parameter that starts at 0."""

    memory_order = KEPT
    settings = ("bias_param",)
    bias: nn.Parameter

    def build(self, _spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        shape = self.operand(bottom_shapes)
        if len(bottom_shapes) == 1:
            self.add_parameter("bias", shape, "filler")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (bottoms[0] + self.broadcast(bottoms[1] if len(bottoms) == 2 else self.bias),)
