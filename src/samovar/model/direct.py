"""Layers that write their parameters' gradients straight into the flat gradient buffer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from samovar.model.half import half_of
from samovar.model.products import product, put, put_product


class FactorPlaces(Protocol):
    """The places of a gradient's two factors, if ranks exchange these; see `samovar.strategies.factors.FactoredSum`."""

    def expect_whole(self) -> None: ...
    def expect(self, rows: int) -> bool: ...
    def places(self, start: int, stop: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]: ...


@dataclass(slots=True)
class GradientSink:
    """The place of a parameter's gradient: the parameter's attribute `gradient_sink`.

    `view` has the parameter's shape. With `accumulate`, layers add to `view`; else they overwrite it. The thread
    that runs backward calls `written` when the gradient is in `view`, or both its factors are in `factors`.
    """

    view: torch.Tensor
    accumulate: bool
    written: Callable[[], None]
    factors: FactorPlaces | None = None


Sinks = tuple[GradientSink | None, ...]
Values = tuple[torch.Tensor, torch.Tensor | None]


def linear(x_MK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """y = x W^T + b, shape (M, N); legend: M samples, K inputs, N outputs.

    Backward writes dy^T x and sum_M dy into the `gradient_sink` of a parameter, without memory or a copy. Autograd
    then sees no gradient. Parameters without a sink get it as from `F.linear`. A forward pass may use a parameter
    with a sink once: a second use would overwrite the first.
    x and y are float32, or both bfloat16 if the parameters have such values (`samovar.model.half`).
    """
    sinks, values = sinks_of(x_MK, weight_NK, bias_N), values_of(weight_NK, bias_N)
    if sinks == (None, None) and values[0].dtype == weight_NK.dtype:
        return F.linear(x_MK.to(weight_NK.dtype), weight_NK, bias_N)
    x_MK = x_MK.to(values[0].dtype)
    y_MN: torch.Tensor = _Linear.apply(x_MK, weight_NK, bias_N, sinks, values)  # type: ignore[no-untyped-call]
    return y_MN


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_MK: torch.Tensor,
        _weight_NK: torch.Tensor,
        _bias_N: torch.Tensor | None,
        sinks: Sinks,
        values: Values,
    ) -> torch.Tensor:
        weight_NK, bias_N = values
        ctx.save_for_backward(x_MK, weight_NK)
        ctx.sinks = sinks
        return product(x_MK, weight_NK, bias_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MN: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_MK, weight_NK = ctx.saved_tensors
        weight_sink, bias_sink = ctx.sinks
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        # Parameters first: their exchange with other workers may start while dx is computed.
        bias_gradient = bias_gradient_of(dy_MN, bias_sink) if needs_bias else None
        weight_gradient = weight_gradient_of(dy_MN, x_MK, weight_sink) if needs_weight else None
        return (product(dy_MN, weight_NK.t()) if needs_x else None), weight_gradient, bias_gradient, None, None


def sinks_of(x: torch.Tensor, *parameters: torch.Tensor | None) -> Sinks:
    """Each parameter's sink, or None; all None under torch's autocast."""
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return (None,) * len(parameters)
    sinks = [getattr(parameter, "gradient_sink", None) for parameter in parameters]
    return tuple(sink if isinstance(sink, GradientSink) else None for sink in sinks)


def values_of(weight: torch.Tensor, bias: torch.Tensor | None) -> Values:
    """The values to compute with: the parameters without their graphs, or their bfloat16 copies."""
    half = half_of(weight)
    if half is None:
        return weight.detach(), None if bias is None else bias.detach()
    return half, None if bias is None else half_of(bias)


def weight_gradient_of(dy_MN: torch.Tensor, x_MK: torch.Tensor, sink: GradientSink | None) -> torch.Tensor | None:
    """Write dy^T x (N, K), or if they travel dy and x, into the sink; without one, return the product."""
    if sink is None:
        return product(dy_MN.t(), x_MK.t())
    if sink.factors is not None and sink.factors.expect(len(dy_MN)):
        for place, factor in zip(sink.factors.places(0, len(dy_MN)), (dy_MN, x_MK), strict=True):
            torch.from_numpy(place).copy_(factor)
    else:
        put_product(sink.view.view(dy_MN.shape[1], -1), dy_MN.t(), x_MK.t(), sink.accumulate)
    sink.written()
    return None


def bias_gradient_of(dy_MN: torch.Tensor, sink: GradientSink | None) -> torch.Tensor | None:
    """Write sum_M dy (N) into the sink; without one, return it."""
    if sink is None:
        return dy_MN.sum(0)
    put(sink.view, dy_MN.sum(0, dtype=torch.float32), sink.accumulate)
    sink.written()
    return None
