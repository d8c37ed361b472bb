"""Convolutions of channels-last images, with gradients written into the flat buffer.

Legend: N samples, C channels, O outputs, H height, W width, M = N H W.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from samovar.model.direct import GradientSink, Sinks, Values, bias_gradient_of, sinks_of, values_of, weight_gradient_of
from samovar.model.products import pointwise_convolution, product, put

Sizes = tuple[int, ...]  # of height and width


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """How the kernel moves over height and width."""

    stride: Sizes = (1, 1)
    padding: Sizes = (0, 0)
    dilation: Sizes = (1, 1)
    groups: int = 1

    def is_pointwise(self, weight_OCHW: torch.Tensor) -> bool:
        """Whether each output pixel depends on one input pixel: a matrix product."""
        return weight_OCHW.shape[2:] == (1, 1) and (self.stride, self.padding, self.groups) == ((1, 1), (0, 0), 1)


def convolution(
    x_NCHW: torch.Tensor, weight_OCHW: torch.Tensor, bias_O: torch.Tensor | None, window: ConvolutionWindow
) -> torch.Tensor:
    """y = w * x + b, shape (N, O, H', W'), channels-last where parameters have a `gradient_sink`.

    Sinks and types are those of `samovar.model.direct.linear`. The weight's gradient costs one copy, because oneDNN
    allocates it. The bias's gradient is a sum over pixels, 10 times as fast as oneDNN's.
    """
    sinks, values = sinks_of(x_NCHW, weight_OCHW, bias_O), values_of(weight_OCHW, bias_O)
    if sinks == (None, None) and values[0].dtype == weight_OCHW.dtype:
        return _outputs(x_NCHW.to(weight_OCHW.dtype), weight_OCHW, bias_O, window)
    x_NCHW = x_NCHW.to(values[0].dtype, memory_format=torch.channels_last)
    arguments = (x_NCHW, weight_OCHW, bias_O, window, sinks, values)
    y: torch.Tensor = _Convolution.apply(*arguments)  # type: ignore[no-untyped-call]
    return y


def _outputs(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, w: ConvolutionWindow) -> torch.Tensor:
    extent = w.dilation[1] * (weight.shape[3] - 1) + 1
    if weight.shape[1] == 1 and x.shape[3] + 2 * w.padding[1] - extent < w.stride[1]:
        # On several threads, oneDNN (torch 2.13) reads past a channels-last weight of one channel where outputs are one
        # pixel wide. Its strides as of a plain one, which has the same memory, avoid that.
        weight = weight.flatten().view(weight.shape)
    return F.conv2d(x, weight, bias, w.stride, w.padding, w.dilation, w.groups)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        _weight: torch.Tensor,
        _bias: torch.Tensor | None,
        window: ConvolutionWindow,
        sinks: Sinks,
        values: Values,
    ) -> torch.Tensor:
        weight, bias = values
        ctx.save_for_backward(x, weight)
        ctx.window, ctx.sinks = window, sinks
        if window.is_pointwise(weight):
            return pointwise_convolution(x, weight, bias)
        return _outputs(x, weight, bias, window)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        weight_sink, bias_sink = ctx.sinks
        dy = dy.contiguous(memory_format=torch.channels_last)
        # Parameters first: their exchange with other workers may start while dx is computed.
        bias_gradient = bias_gradient_of(_rows(dy), bias_sink) if needs_bias else None
        weight_gradient = _weight_gradient(dy, x, weight, ctx.window, weight_sink) if needs_weight else None
        dx = _input_gradient(dy, x, weight, ctx.window) if needs_x else None
        return dx, weight_gradient, bias_gradient, None, None, None


def _weight_gradient(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, window: ConvolutionWindow, sink: GradientSink | None
) -> torch.Tensor | None:
    """Write the gradient into the sink; without one, return it."""
    if window.is_pointwise(weight):
        gradient = weight_gradient_of(_rows(dy), _rows(x), sink)
        return None if gradient is None else gradient.view(weight.shape)
    gradient = _derivative(dy, x, weight, window, 1)
    if sink is None:
        return gradient
    put(sink.view, gradient, sink.accumulate)
    sink.written()
    return None


def _input_gradient(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, window: ConvolutionWindow) -> torch.Tensor:
    if window.is_pointwise(weight):
        return _images(product(_rows(dy), weight.flatten(1).t()), dy)
    return _derivative(dy, x, weight, window, 0)


def _derivative(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, w: ConvolutionWindow, index: int
) -> torch.Tensor:
    """The gradient of x (index 0) or of the weight (1)."""
    wanted = [index == 0, index == 1, False]
    arguments = (w.stride, w.padding, w.dilation, False, (0, 0), w.groups, wanted)
    gradient: torch.Tensor = torch.ops.aten.convolution_backward(dy, x, weight, None, *arguments)[index]
    return gradient


def _rows(x_NCHW: torch.Tensor) -> torch.Tensor:
    """A view (M, C) of channels-last images."""
    return x_NCHW.permute(0, 2, 3, 1).reshape(-1, x_NCHW.shape[1])


def _images(rows_MC: torch.Tensor, like_NCHW: torch.Tensor) -> torch.Tensor:
    """Rows as channels-last images of the size of `like_NCHW`."""
    num, _, height, width = like_NCHW.shape
    return rows_MC.view(num, height, width, -1).permute(0, 3, 1, 2)
