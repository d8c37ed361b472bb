"""Layers that write their parameters' gradients straight into the flat gradient buffer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


@dataclass(slots=True)
class GradientSink:
    """Where a parameter's gradient belongs; attached to the parameter as its attribute `gradient_sink`.

    `view` has the parameter's shape. `accumulate` adds to what `view` holds, otherwise it is overwritten.
    `written` is called once the gradient is in `view`, by the thread that runs backward.
    """

    view: torch.Tensor
    accumulate: bool
    written: Callable[[], None]


def linear(x_MK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """y = x W^T + b, shape (M, N), float32; legend: M samples, K inputs, N outputs.

    Parameters with a `gradient_sink` get dy^T x and sum_M dy written there during backward, with no memory of
    their own and no copy, and autograd sees no gradient for them; others get it as from `F.linear`.
    A parameter with a sink may be used once in a forward pass: a second use would overwrite the first.
    """
    weight_sink, bias_sink = _sink(weight_NK, x_MK), _sink(bias_N, x_MK)
    if weight_sink is None and bias_sink is None:
        return F.linear(x_MK, weight_NK, bias_N)
    sinks = weight_sink, bias_sink
    y_MN: torch.Tensor = _Linear.apply(x_MK, weight_NK, bias_N, sinks)  # type: ignore[no-untyped-call]
    return y_MN


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_MK: torch.Tensor,
        weight_NK: torch.Tensor,
        bias_N: torch.Tensor | None,
        sinks: tuple[GradientSink | None, GradientSink | None],
    ) -> torch.Tensor:
        ctx.save_for_backward(x_MK, weight_NK)
        ctx.sinks = sinks
        return F.linear(x_MK, weight_NK, bias_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MN: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_MK, weight_NK = ctx.saved_tensors
        weight_sink, bias_sink = ctx.sinks
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        # Parameters first: their exchange with other workers may start while dx is computed.
        bias_gradient = _bias_gradient(dy_MN, bias_sink) if needs_bias else None
        weight_gradient = _weight_gradient(dy_MN, x_MK, weight_sink) if needs_weight else None
        return (dy_MN @ weight_NK if needs_x else None), weight_gradient, bias_gradient, None


def _sink(parameter: torch.Tensor | None, x_MK: torch.Tensor) -> GradientSink | None:
    sink = getattr(parameter, "gradient_sink", None)
    if not isinstance(sink, GradientSink) or torch.is_autocast_enabled(x_MK.device.type):
        return None
    return sink


def _weight_gradient(dy_MN: torch.Tensor, x_MK: torch.Tensor, sink: GradientSink | None) -> torch.Tensor | None:
    if sink is None:
        return dy_MN.t() @ x_MK
    if sink.accumulate:
        sink.view.addmm_(dy_MN.t(), x_MK)
    else:
        torch.mm(dy_MN.t(), x_MK, out=sink.view)
    sink.written()
    return None


def _bias_gradient(dy_MN: torch.Tensor, sink: GradientSink | None) -> torch.Tensor | None:
    if sink is None:
        return dy_MN.sum(0)
    if sink.accumulate:
        sink.view.add_(dy_MN.sum(0))
    else:
        torch.sum(dy_MN, 0, out=sink.view)
    sink.written()
    return None
