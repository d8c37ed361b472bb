"""Many values into fewer: Eltwise, Reduction, ArgMax."""

from collections.abc import Sequence
from functools import reduce
from math import prod

import torch

from samovar.frontends.caffe.layers.base import KEPT, Layer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape, text

_PROD, _SUM, _MAX = 0, 1, 2  # EltwiseParameter.EltwiseOp
_ASUM, _SUMSQ, _MEAN = 2, 3, 4  # ReductionParameter.ReductionOp; 1 is the sum


class Eltwise(Layer):
    """Product, sum (each bottom times its `coeff`) or maximum of bottoms of one shape, value by value.

    Where bottoms tie for the maximum, one of them gets the gradient: of the first two the second, then the earlier.
    """

    num_bottoms = (2, 1 << 16)
    memory_order = KEPT
    takes_half = True
    settings = ("eltwise_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        settings = spec.message.eltwise_param
        for shape in bottom_shapes[1:]:
            if shape != bottom_shapes[0]:
                raise spec.error(
                    f"bottoms of shapes {text(bottom_shapes[0])} and {text(shape)}; all need the same shape", "bottom"
                )
        self.operation, self.coefficients = settings.operation, list(settings.coeff)
        if self.coefficients and self.operation == _PROD:
            raise spec.error("coeff belongs to operation: SUM; a product takes none", "eltwise_param", "coeff")
        if self.coefficients and len(self.coefficients) != len(bottom_shapes):
            raise spec.error(
                f"coeff is given {len(self.coefficients)} times for {len(bottom_shapes)} bottoms; give each one",
                "eltwise_param",
                "coeff",
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

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        shape = bottom_shapes[0]
        self.operation = spec.message.reduction_param.operation
        self.coefficient = spec.finite("reduction_param", "coeff")
        self.axis = spec.axis(shape, spec.message.reduction_param.axis, "reduction_param", "axis")
        self.mixes_samples = self.axis == 0
        self.top_shapes = [shape[: self.axis]]

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = bottoms[0].flatten(self.axis)
        if self.operation == _ASUM:
            x = x.abs()
        elif self.operation == _SUMSQ:
            x = x * x
        y = x.mean(-1) if self.operation == _MEAN else x.sum(-1)
        return (y if self.coefficient == 1 else y * self.coefficient,)


class ArgMax(Layer):
    """Indices of the `top_k` largest values, largest first; of equal ones the last first. No gradient.

    Along `axis` (values instead with `out_max_val`); without `axis` over all of a sample, giving (N, 1, top_k),
    and the values as a second row with `out_max_val`: (N, 2, top_k). Inputs of more axes add axes of size 1.
    """

    has_gradient = False
    settings = ("argmax_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        settings, shape = spec.message.argmax_param, bottom_shapes[0]
        self.top_k, self.with_values = settings.top_k, settings.out_max_val
        self.axis = spec.axis(shape, settings.axis, "argmax_param", "axis") if settings.HasField("axis") else None
        size = prod(shape[1:]) if self.axis is None else shape[self.axis]
        if not 1 <= self.top_k <= size:
            raise spec.error(f"top_k: {self.top_k} of {size} values; allowed are 1 to {size}", "argmax_param", "top_k")
        if self.axis is None:
            self.tail = (1,) * (len(shape) - 3)
            self.top_shapes = [(shape[0], 2 if self.with_values else 1, self.top_k, *self.tail)]
        else:
            self.top_shapes = [(*shape[: self.axis], self.top_k, *shape[self.axis + 1 :])]

    @torch.no_grad()
    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (x,) = bottoms
        if self.axis is not None:
            values, indices = self._best(x, self.axis)
            return (values if self.with_values else indices,)
        values, indices = self._best(x.reshape(len(x), -1), 1)
        rows = [indices, values] if self.with_values else [indices]
        return (torch.stack(rows, 1).reshape(len(x), len(rows), self.top_k, *self.tail),)

    def _best(self, x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
        values, order = torch.sort(x.flip(axis), dim=axis, descending=True, stable=True)
        indices = (x.shape[axis] - 1 - order).to(x.dtype)
        return values.narrow(axis, 0, self.top_k), indices.narrow(axis, 0, self.top_k)
