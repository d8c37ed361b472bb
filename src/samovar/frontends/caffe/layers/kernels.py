"""The layers' native kernels (native/*_kernels.hpp): float32 images in the CPU's memory, one pass each way.

Each function has a condition, `takes...`. If it does not hold, the layer uses torch's operations, with which tests
also compare. Gradients of gradients are torch's alone. Threads are torch's (`torch.get_num_threads()`), and bits do
not depend on their number.

Legend: N samples, C channels, H height, W width.
"""

import sys
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from samovar import _native

_LAST = torch.channels_last
_MOST_CLASSES = 64  # torch is faster at more; independent of the batch, whose size must not change bits
_LEAST_CHANNELS = 32  # fewer are pooled faster by torch


def takes(x: torch.Tensor) -> bool:
    """Whether a kernel takes `x` (N, C, H, W): either order in memory, without gaps."""
    return _is_plain(x) and x.dim() == 4 and (x.is_contiguous() or x.is_contiguous(memory_format=_LAST))


def takes_channels_last(x: torch.Tensor) -> bool:
    """Whether `x` (N, C, H, W) has its channels last in memory, and enough of them to work on in vectors."""
    return _is_plain(x) and x.dim() == 4 and x.shape[1] >= _LEAST_CHANNELS and x.is_contiguous(memory_format=_LAST)


def takes_scores(scores: torch.Tensor, labels: torch.Tensor) -> bool:
    """Whether the kernel of the softmax loss takes these scores (rows, classes) and int64 labels (rows, 1)."""
    if not _is_plain(scores) or scores.dim() != 2 or scores.shape[1] > _MOST_CLASSES:
        return False
    return scores.is_contiguous() and labels.is_contiguous() and labels.device == scores.device


def respond(x: torch.Tensor, response: _native.Response, is_within: bool) -> torch.Tensor:
    """Local response normalization of `x` (N, C, H, W), across channels or within them."""
    y: torch.Tensor = _Respond.apply(x, response, is_within)  # type: ignore[no-untyped-call]
    return y


def max_pool(x: torch.Tensor, pool: _native.MaxPool, output: tuple[int, int]) -> torch.Tensor:
    """Maxima of windows of `x` (N, C, H, W), channels last; `output` is their number on H and W."""
    y: torch.Tensor = _MaxPool.apply(x, pool, output)  # type: ignore[no-untyped-call]
    return y


def normalized(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x - mean) / sqrt(variance + eps) for each channel of (N, C, H, W), channels last; also mean and variance (C).
    Sums are in double precision: the error of mean and variance is 1e-7 of their size."""
    y, mean, variance = _Normalize.apply(x, eps)  # type: ignore[no-untyped-call]
    return y, mean, variance


def softmax_loss(
    scores: torch.Tensor, labels: torch.Tensor, ignored: int | None, least_log: float
) -> tuple[float, int, torch.Tensor] | None:
    """Sum of -log softmax(scores)[label], the number of labels that count, and the sum's gradient.
    None if a label is not a class."""
    gradient = torch.empty_like(scores, requires_grad=False)
    rows, classes = scores.shape
    addresses = scores.data_ptr(), labels.data_ptr(), gradient.data_ptr()
    loss, num_labels, is_valid = _native.softmax_loss(*addresses, rows, classes, ignored, least_log)
    return (loss, num_labels, gradient) if is_valid else None


def _is_plain(x: torch.Tensor) -> bool:
    """Whether this is a tensor with memory of its own: not a subclass, and nothing traces its operations."""
    return (
        not (torch.compiler.is_compiling() or _is_exported())
        and not torch.jit.is_tracing()  # type: ignore[no-untyped-call]
        and type(x) is torch.Tensor
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.layout == torch.strided
        and x.numel() > 0
    )


def _is_exported() -> bool:
    """Whether torch writes an ONNX file; does not import torch.onnx, which takes 0.4 s."""
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and bool(onnx.is_in_onnx_export())


def _like(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """`gradient` in the order that `x` has in memory."""
    return gradient.contiguous(memory_format=torch.contiguous_format if x.is_contiguous() else _LAST)


class _Respond(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, response: _native.Response, is_within: bool) -> torch.Tensor:
        y = torch.empty_like(x)
        threads = torch.get_num_threads()
        if is_within:
            response.within(x.data_ptr(), y.data_ptr(), *_planes(x), threads)
        else:
            response.across(x.data_ptr(), y.data_ptr(), _rows(x), threads)
        ctx.save_for_backward(x)
        ctx.settings = response, is_within
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        response, is_within = ctx.settings
        dy, dx = _like(x, dy), torch.empty_like(x)
        addresses, threads = (x.data_ptr(), dy.data_ptr(), dx.data_ptr()), torch.get_num_threads()
        if is_within:
            response.within_backward(*addresses, *_planes(x), threads)
        else:
            response.across_backward(*addresses, _rows(x), threads)
        return dx, None, None


def _rows(x: torch.Tensor) -> tuple[int, int, int]:
    """Numbers before, along and after the channels in memory."""
    n, c, h, w = x.shape
    return (n, c, h * w) if x.is_contiguous() else (n * h * w, c, 1)


def _planes(x: torch.Tensor) -> tuple[int, tuple[int, int, int]]:
    """Numbers before, along (H, W) and after the image's axes in memory."""
    n, c, h, w = x.shape
    return (n * c, (h, w, 1)) if x.is_contiguous() else (n, (h, w, c))


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pool: _native.MaxPool, output: tuple[int, int]) -> torch.Tensor:
        n, c = x.shape[:2]
        y = torch.empty((n, c, *output), dtype=x.dtype, device=x.device, memory_format=_LAST)
        where = torch.empty(y.numel(), dtype=torch.int32, device=x.device)
        pool.forward(x.data_ptr(), y.data_ptr(), where.data_ptr(), n, c, torch.get_num_threads())
        ctx.save_for_backward(where)
        ctx.settings = pool, x.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (where,) = ctx.saved_tensors
        pool, shape = ctx.settings
        dy = dy.contiguous(memory_format=_LAST)
        dx = torch.empty(shape, dtype=dy.dtype, device=dy.device, memory_format=_LAST)
        pool.backward(dy.data_ptr(), where.data_ptr(), dx.data_ptr(), *shape[:2], torch.get_num_threads())
        return dx, None, None


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
        shift = x[0, :, 0, 0].contiguous()  # moments about a value of the channel: no digits are lost to a large mean
        sums, squares = _moments(x, x, shift)
        offset = sums / (x.numel() // x.shape[1])
        mean = (shift + offset).float()
        variance = (squares / (x.numel() // x.shape[1]) - offset.square()).clamp_min_(0).float()
        deviation = (variance + eps).sqrt_()
        y = torch.empty_like(x)
        addresses = x.data_ptr(), mean.data_ptr(), deviation.data_ptr(), y.data_ptr()
        _native.standardize(*addresses, *_columns(x), torch.get_num_threads())
        ctx.save_for_backward(y, deviation)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        y, deviation = ctx.saved_tensors
        dy, dx = dy.contiguous(memory_format=_LAST), torch.empty_like(y)
        means = [(sums / (y.numel() // y.shape[1])).float() for sums in _moments(dy, y, torch.zeros_like(deviation))]
        dy_mean, product_mean = means[0].data_ptr(), means[1].data_ptr()
        _native.standardize_backward(
            dy.data_ptr(),
            y.data_ptr(),
            dy_mean,
            product_mean,
            deviation.data_ptr(),
            dx.data_ptr(),
            *_columns(y),
            torch.get_num_threads(),
        )
        return dx, None


def _columns(x: torch.Tensor) -> tuple[int, int]:
    return x.numel() // x.shape[1], x.shape[1]


def _moments(a: torch.Tensor, b: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """float64 (2, C): sums of a - shift, and of (a - shift) (b - shift), over all but the channels."""
    result = torch.empty(2, a.shape[1], dtype=torch.float64, device=a.device)
    shifts, found = (shift.data_ptr(), shift.data_ptr()), (result[0].data_ptr(), result[1].data_ptr())
    _native.column_moments(a.data_ptr(), b.data_ptr(), *shifts, *found, *_columns(a), torch.get_num_threads())
    return result
