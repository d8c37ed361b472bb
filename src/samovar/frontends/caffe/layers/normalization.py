"""BatchNorm, LRN and MVN: values brought to a common size.

Legend: N samples, C channels, H height, W width; M values of a channel in the batch.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from samovar import _native
from samovar.frontends.caffe.layers import kernels
from samovar.frontends.caffe.layers.base import KEPT, Layer
from samovar.frontends.caffe.spec import LayerSpec, Shape, text

_WITHIN_CHANNEL = 1  # LRNParameter.NormRegion


class BatchNorm(Layer):
    """y = (x - mean) / sqrt(variance + eps) for each channel (axis 1); no learned factor, see Scale.

    In training, mean and variance are the batch's and update three running sums: sum = fraction * sum + value. The
    values are the mean (C), the variance times M / (M - 1) (C), and a count of 1 (1). In test, or with
    `use_global_stats`, mean and variance are their sums divided by the count's (0 if that is 0).
    Reference: Ioffe and Szegedy, Batch normalization, 2015.
    """

    memory_order = KEPT
    settings = ("batch_norm_param",)
    mean: nn.Parameter
    variance: nn.Parameter
    count: nn.Parameter

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        settings, shape = spec.message.batch_norm_param, bottom_shapes[0]
        if len(shape) < 2:
            raise spec.error(f"input has shape {text(shape)}; BatchNorm takes at least 2 axes (N, C, ...)", "bottom")
        given = settings.HasField("use_global_stats")
        self.uses_global = settings.use_global_stats if given else not spec.is_training
        self.mixes_samples = not self.uses_global
        self.fraction = spec.finite("batch_norm_param", "moving_average_fraction")
        self.eps = spec.finite("batch_norm_param", "eps")
        for attribute, size in (("mean", shape[1]), ("variance", shape[1]), ("count", 1)):
            self.add(attribute, (size,), is_statistic=True)

    def work_as(self, is_training: bool) -> None:
        if not self.spec.message.batch_norm_param.HasField("use_global_stats"):
            self.uses_global = not is_training

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.uses_global:
            count = float(self.count.detach())
            scale = 0.0 if count == 0 else 1 / count
            mean, variance = ((sums.detach() * scale).to(x.dtype) for sums in (self.mean, self.variance))
            return (torch.batch_norm(x, None, None, mean, variance, False, 0.0, self.eps, False),)
        if kernels.takes_channels_last(x):
            y, mean, variance = kernels.normalized(x, self.eps)
        else:
            y, mean, variance = _normalized(x, (0, *range(2, x.dim())), self.eps, eps_in_root=True)
        num_values = x.numel() // x.shape[1]
        if num_values:  # none behind a Filter that kept no sample
            self._keep(mean.flatten(), variance.flatten() * (num_values / max(1, num_values - 1)))
        return (y,)

    @torch.no_grad()
    def _keep(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        for sums, value in ((self.mean, mean), (self.variance, variance), (self.count, 1.0)):
            sums.mul_(self.fraction).add_(value)


class LRN(Layer):
    """y = x / (k + alpha/n S)^beta, S the sum of squares over n = local_size neighbours on the channel axis.

    WITHIN_CHANNEL: S over n x n neighbours of the same channel, divided by n^2 instead, and k is always 1. Values
    beyond the edge count as 0. Reference: Krizhevsky et al., 2012, section 3.3.
    """

    memory_order = KEPT
    settings = ("lrn_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        settings, shape = spec.message.lrn_param, bottom_shapes[0]
        if len(shape) != 4:
            raise spec.error(f"input has shape {text(shape)}; LRN takes 4 axes (N, C, H, W)", "bottom")
        self.size = settings.local_size
        if self.size % 2 == 0 or self.size > _MAX_SIZE:
            raise spec.error(f"local_size: {self.size}; it must be odd, 1 to {_MAX_SIZE}", "lrn_param.local_size")
        self.alpha, self.beta, self.k = (spec.finite("lrn_param", field) for field in ("alpha", "beta", "k"))
        self.is_within = settings.norm_region == _WITHIN_CHANNEL
        self.rectifies_bottom = False  # set by the net if this layer does the work of a ReLU before it

    def _response(self) -> _native.Response | None:
        """True for exponents that square roots can express; torch computes the others."""
        if self.beta not in _ROOTS:
            return None
        divisor, k = (self.size**2, 1.0) if self.is_within else (self.size, self.k)
        return _native.Response(self.size, self.alpha / divisor, self.beta, k, self.rectifies_bottom)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if kernels.takes(x) and (response := self._response()) is not None:
            return (kernels.respond(x, response, self.is_within),)
        if self.rectifies_bottom:
            x = torch.relu(x)
        if not self.is_within:
            return (F.local_response_norm(x, self.size, self.alpha, self.beta, self.k),)
        mean = F.avg_pool2d(x * x, self.size, 1, self.size // 2)
        return (x * (1 + self.alpha * mean) ** -self.beta,)


_MAX_SIZE = 65535
_ROOTS = (0.75, 0.5, 1.0)


class MVN(Layer):
    """y = (x - mean) / (sqrt(variance) + eps) over each channel of each sample, or (`across_channels`) each sample.
    With `normalize_variance: false` y = x - mean."""

    settings = ("mvn_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        settings, shape = spec.message.mvn_param, bottom_shapes[0]
        if not 1 <= len(shape) <= 4:
            raise spec.error(f"input has shape {text(shape)}; MVN takes 1 to 4 axes (N, C, H, W)", "bottom")
        self.num_lead = 1 if settings.across_channels else min(2, len(shape))
        self.normalizes_variance = settings.normalize_variance
        self.eps = spec.finite("mvn_param", "eps")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.reshape(prod(x.shape[: self.num_lead]), prod(x.shape[self.num_lead :]))
        if self.normalizes_variance:
            y, _, _ = _normalized(rows, (1,), self.eps, eps_in_root=False)
        else:
            y = rows - rows.mean(1, keepdim=True)
        return (y.reshape(x.shape),)


def _normalized(
    x: torch.Tensor, axes: tuple[int, ...], eps: float, eps_in_root: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x - mean) / deviation over `axes`, with mean and variance; the deviation is sqrt(v + eps) or sqrt(v) + eps.
    Error of mean and variance 2e-7 of their size; torch's own batch norm, on channels-last images, has up to 3e-5."""
    y, mean, variance = _Normalized.apply(x, axes, eps, eps_in_root)  # type: ignore[no-untyped-call]
    return y, mean, variance


class _Normalized(torch.autograd.Function):
    """In backward an eps outside of the root counts as 0, as in Caffe."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, axes: tuple[int, ...], eps: float, eps_in_root: bool
    ) -> tuple[torch.Tensor, ...]:
        mean = x.mean(axes, keepdim=True)
        y = x - mean
        variance = y.square().mean(axes, keepdim=True)
        deviation = (variance + eps).sqrt_() if eps_in_root else variance.sqrt().add_(eps)
        y.div_(deviation)
        ctx.axes = axes
        ctx.save_for_backward(y, deviation)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        y, deviation = ctx.saved_tensors
        dx = dy - dy.mean(ctx.axes, keepdim=True)
        dx.sub_(y * (dy * y).mean(ctx.axes, keepdim=True)).div_(deviation)
        return dx, None, None, None
