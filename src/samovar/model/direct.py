"""Layers that write their parameters' gradients straight into the flat gradient buffer, and their matrix products.

Legend of convolutions, whose images are channels-last: N samples, C channels, O outputs, H height, W width, M = N H W.

Products are by the faster library: oneDNN uses the widest instructions of any CPU, MKL only those of Intel's. Measured
on one thread, oneDNN against MKL. On AMD with AVX-512, oneDNN is 2 times as fast for AlexNet's fc6 (16 x 9216 by 9216 x
4096) and for 6272 x 192 by 192 x 64. On Intel with AVX-512, fc6 forward is 1.6 times as fast. Its gradient of x is 0.57
times as fast there, and that of the weight 0.37 times (MKL writes it in place).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from samovar.core.host import vendor
from samovar.model.half import half_of

_HAS_ONEDNN: Final = bool(torch.backends.mkldnn.is_available()) and all(  # type: ignore[no-untyped-call]
    hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_convolution_pointwise")
)
_HAS_HALF: Final = _HAS_ONEDNN and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
_TYPES: Final = (torch.float32, torch.bfloat16) if _HAS_HALF else (torch.float32,)
_HAS_WIDE_MKL: Final = vendor() == "GenuineIntel" and bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
_LARGE_BYTES: Final = 8 << 20  # of rows of weights: MKL's order of reading them is worse than oneDNN's
_BLOCK_BYTES: Final = 4 << 20  # of results on their way to another place: they fit the cache, and reuse its memory


def product(a_MK: torch.Tensor, b_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """a b^T + bias, shape (M, N), both in one type; not differentiable. `b_NK` may be a transposed view."""
    if _is_for_torch(a_MK, b_NK):
        return F.linear(a_MK, b_NK, bias_N)
    y_MN: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a_MK, b_NK, bias_N, "none", [], "")
    return y_MN


def pointwise_convolution(x_NCHW: torch.Tensor, weight_OC11: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """y[n, :, h, w] = W x[n, :, h, w] + b, channels-last; not differentiable.

    PyTorch uses MKL for small batches.
    """
    if not _is_for_onednn(x_NCHW):
        return F.conv2d(x_NCHW, weight_OC11, bias_O)
    geometry = ((0, 0), (1, 1), (1, 1), 1)
    y: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(x_NCHW, weight_OC11, bias_O, *geometry, "none", [], "")
    return y


def _is_for_onednn(x: torch.Tensor) -> bool:
    return _HAS_ONEDNN and x.device.type == "cpu" and x.dtype in _TYPES and x.numel() > 0


def _is_for_torch(a_MK: torch.Tensor, b_NK: torch.Tensor) -> bool:
    """Whether to use torch's own product, which is MKL's on most CPUs."""
    if not _is_for_onednn(a_MK):
        return True
    is_large = b_NK.is_contiguous() and b_NK.nbytes >= _LARGE_BYTES
    return _HAS_WIDE_MKL and a_MK.dtype == torch.float32 and not is_large


def put_product(out_MN: torch.Tensor, a_MK: torch.Tensor, b_NK: torch.Tensor, accumulate: bool) -> None:
    """out = a b^T, or out += a b^T; `out_MN` may have another type than the product.

    oneDNN works in blocks of rows, without memory of the result's size. Page faults would take longer than the
    product (AlexNet's fc6: 15 ms instead of 76).
    """
    if out_MN.dtype == a_MK.dtype and _is_for_torch(a_MK, b_NK):
        torch.addmm(out_MN, a_MK, b_NK.t(), beta=int(accumulate), out=out_MN)
        return
    num_rows = max(16, _BLOCK_BYTES // (4 * b_NK.shape[0]))
    a_MK = a_MK.contiguous()
    for first in range(0, len(a_MK), num_rows):
        put(out_MN[first : first + num_rows], product(a_MK[first : first + num_rows], b_NK), accumulate)


def put(out: torch.Tensor, value: torch.Tensor, accumulate: bool) -> None:
    """out = value, or out += value."""
    if accumulate:
        out.add_(value)
    else:
        out.copy_(value)


class FactorPlaces(Protocol):
    """The places of a gradient's two factors, if ranks exchange these; see `samovar.strategies.factors.FactoredSum`."""

    def expect_whole(self) -> None: ...
    def expect(self, rows: int, geometry: tuple[int, ...] = ()) -> bool: ...
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
    if not _travel(dy_MN, x_MK, sink):
        put_product(sink.view.view(dy_MN.shape[1], -1), dy_MN.t(), x_MK.t(), sink.accumulate)
    sink.written()
    return None


def _travel(dy: torch.Tensor, x: torch.Tensor, sink: GradientSink, geometry: tuple[int, ...] = ()) -> bool:
    """Whether both factors of the gradient travel instead of it; they are in their places then."""
    if sink.factors is None or not sink.factors.expect(len(dy), geometry):
        return False
    put_factors(sink.factors.places(0, len(dy)), (dy, x))
    return True


def put_factors(places: Sequence[npt.NDArray[np.float32]], factors: Sequence[torch.Tensor]) -> None:
    """Write samples as rows, their channels last."""
    for place, factor in zip(places, factors, strict=True):
        moved = factor.movedim(1, -1)
        torch.from_numpy(place).view(moved.shape).copy_(moved)


def bias_gradient_of(dy_MN: torch.Tensor, sink: GradientSink | None) -> torch.Tensor | None:
    """Write sum_M dy (N) into the sink; without one, return it."""
    if sink is None:
        return dy_MN.sum(0)
    put(sink.view, dy_MN.sum(0, dtype=torch.float32), sink.accumulate)
    sink.written()
    return None


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
    if sink is None:
        return _derivative(dy, x, weight, window, 1)
    if not _travel(dy, x, sink, (*x.shape[2:], *window.stride, *window.padding, *window.dilation, window.groups)):
        put(sink.view, _derivative(dy, x, weight, window, 1), sink.accumulate)
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
