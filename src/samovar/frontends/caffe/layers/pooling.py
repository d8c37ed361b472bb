"""Pooling (MAX, AVE, STOCHASTIC), and SPP, a pyramid of it."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F

from samovar import _native
from samovar.formats.caffe.schema import message_class
from samovar.frontends.caffe.layers import kernels
from samovar.frontends.caffe.layers.base import KEPT, RandomLayer
from samovar.frontends.caffe.spec import MAX_VALUES, LayerSpec, Shape, checked, text

_MAX, _AVE, _STOCHASTIC = 0, 1, 2  # PoolingParameter.PoolMethod
_FLOOR = 1  # PoolingParameter.RoundMode
_LOWEST = torch.finfo(torch.float32).min  # what Caffe's maximum starts from


class Pooling(RandomLayer):
    """Maximum or mean over windows of (N, C, H, W), or a value drawn from them.

    Output size: ceil((size + 2 pad - kernel) / stride) + 1 (floor with round_mode FLOOR), one less if with pad the
    last window would start at or after size + pad. AVE divides by the window's part inside the padded image. MAX takes
    the first of equal values in row-major order; its second top is the index in the plane. STOCHASTIC (inputs of at
    least 0, no pad) draws a value in training, with probability in proportion to it; in test it takes the mean by the
    same weights.
    """

    num_tops = (1, 2)
    forgets_output = True
    memory_order = KEPT
    settings = ("pooling_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        super().build(spec, bottom_shapes)
        settings, shape = spec.message.pooling_param, bottom_shapes[0]
        if len(shape) != 4:
            raise spec.error(f"input has shape {text(shape)}; pooling takes 4 axes (N, C, H, W)", "bottom")
        if len(spec.tops) == 2 and settings.pool != _MAX:
            raise spec.error("a second top (the index of the maximum) needs pool: MAX", "top")
        self.is_max, self.is_stochastic = settings.pool == _MAX, settings.pool == _STOCHASTIC
        self.is_random = self.is_stochastic and spec.is_training
        self.with_index = len(spec.tops) == 2
        self.kernel = _kernel(spec, shape)
        self.pad = _pair(spec, "pad")
        self.stride = _pair(spec, "stride")
        self.is_global = settings.global_pooling
        self.ceil = settings.round_mode != _FLOOR
        self._check(spec)
        outputs = tuple(self._output_size(spec, shape[2 + axis], axis) for axis in (0, 1))
        self.top_shapes = [checked(spec, (*shape[:2], *outputs), "the output")] * len(spec.tops)
        # torch pads at most half a kernel; a wider pad is put around the image first.
        self.pads_in_torch = all(2 * pad <= kernel for pad, kernel in zip(self.pad, self.kernel, strict=True))
        above, below = self._margins(shape[2], outputs[0], 0)
        left, right = self._margins(shape[3], outputs[1], 1)
        self.margins = (left, right, above, below)
        checked(spec, (*shape[:2], shape[2] + above + below, shape[3] + left + right), "the padded input")
        self.rectifies_bottom = False  # set by the net if this layer (MAX) does the work of a ReLU before it
        self._rows, self._columns = zip(shape[2:], outputs, self.kernel, self.stride, self.pad, strict=True)

    def _check(self, spec: LayerSpec) -> None:
        if self.is_stochastic and self.pad != (0, 0):
            raise spec.error("pool: STOCHASTIC takes no pad; remove it, or use MAX or AVE", "pooling_param.pad")
        if self.is_global and (self.pad != (0, 0) or self.stride != (1, 1)):
            raise spec.error("global_pooling takes no pad and stride 1; remove pad and stride", "pooling_param")
        for pad, kernel, stride in zip(self.pad, self.kernel, self.stride, strict=True):
            if not (1 <= kernel <= MAX_VALUES and 1 <= stride <= MAX_VALUES and pad < kernel):
                raise spec.error(
                    f"kernel {kernel}, stride {stride}, pad {pad}; kernel and stride must be 1 to {MAX_VALUES} "
                    "and pad smaller than the kernel",
                    "pooling_param",
                )

    def _output_size(self, spec: LayerSpec, size: int, axis: int) -> int:
        kernel, stride, pad = self.kernel[axis], self.stride[axis], self.pad[axis]
        room = size + 2 * pad - kernel
        output = (-(-room // stride) if self.ceil else room // stride) + 1
        if self.pad != (0, 0) and (output - 1) * stride >= size + pad:
            output -= 1
        if (output - 1) * stride >= size + pad:
            raise spec.error(
                f"kernel {kernel} with stride {stride} puts the last window outside of the image ({size}); "
                "use round_mode: FLOOR or a smaller stride",
                "pooling_param",
            )
        return output

    def _margins(self, size: int, output: int, axis: int) -> tuple[int, int]:
        kernel, stride, pad = self.kernel[axis], self.stride[axis], self.pad[axis]
        return pad, max(0, (output - 1) * stride + kernel - size - pad)

    def work_as(self, is_training: bool) -> None:
        self.is_random = self.is_stochastic and is_training

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.is_stochastic:
            return (self._stochastic(x),)
        if not self.is_max:
            return (self._mean(x),)
        is_planned = x.shape[2:] == (self._rows[0], self._columns[0])
        if is_planned and not self.with_index and kernels.takes_channels_last(x):
            pool = _native.MaxPool(self._rows, self._columns, self.rectifies_bottom)
            return (kernels.max_pool(x, pool, (self._rows[1], self._columns[1])),)
        return self._torch_maxima(torch.relu(x) if self.rectifies_bottom else x)

    def _torch_maxima(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kernel, stride, pad, ceil = self.kernel, self.stride, self.pad, self.ceil
        if not self.pads_in_torch:
            x = F.pad(x, self.margins, value=_LOWEST)
            pad, ceil = (0, 0), False
        if not self.with_index:
            return (F.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil),)
        y, index = F.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil, return_indices=True)
        return y, self._plane_index(index, x.shape[3]).to(y.dtype)

    def _stochastic(self, x: torch.Tensor) -> torch.Tensor:
        height, width = self.top_shapes[0][2:]
        windows = windows_of(x, self.kernel, self.stride, (height, width))
        shape = (len(x), x.shape[1], height * width)
        y = drawn(windows, self.uniforms(shape, x)) if self.is_random else expected(windows)
        return y.reshape(len(x), x.shape[1], height, width)

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_global:
            return x.mean((2, 3), keepdim=True)
        if self.pads_in_torch:
            return F.avg_pool2d(x, self.kernel, self.stride, self.pad, ceil_mode=self.ceil)
        pad_h, pad_w = self.pad
        y = F.avg_pool2d(F.pad(x, (pad_w, pad_w, pad_h, pad_h)), self.kernel, self.stride, ceil_mode=self.ceil)
        return y[:, :, : self.top_shapes[0][2], : self.top_shapes[0][3]]

    def _plane_index(self, index: torch.Tensor, width: int) -> torch.Tensor:
        """Indices into the bottom's plane, from those into the pooled plane (`width` wide)."""
        if self.pads_in_torch:
            return index
        left, right, above, _ = self.margins
        rows, columns = index // width - above, index % width - left
        return rows * (width - left - right) + columns


def _kernel(spec: LayerSpec, shape: Shape) -> tuple[int, int]:
    settings = spec.message.pooling_param
    has_size, has_h, has_w = (settings.HasField(f) for f in ("kernel_size", "kernel_h", "kernel_w"))
    if settings.global_pooling:
        if has_size or has_h or has_w:
            raise spec.error("global_pooling takes the whole image; remove the kernel's size", "pooling_param")
        return shape[2], shape[3]
    if has_size == (has_h and has_w) or (has_size and (has_h or has_w)):
        raise spec.error("give either kernel_size, or both kernel_h and kernel_w", "pooling_param")
    return (settings.kernel_size,) * 2 if has_size else (settings.kernel_h, settings.kernel_w)


def _pair(spec: LayerSpec, name: str) -> tuple[int, int]:
    """`pad` or `stride`, or the two with `_h` and `_w`."""
    settings = spec.message.pooling_param
    has_h, has_w = settings.HasField(f"{name}_h"), settings.HasField(f"{name}_w")
    if has_h != has_w or (has_h and settings.HasField(name)):
        raise spec.error(f"give either {name}, or both {name}_h and {name}_w", "pooling_param")
    if has_h:
        return getattr(settings, f"{name}_h"), getattr(settings, f"{name}_w")
    return (getattr(settings, name),) * 2


_MAX_HEIGHT = 16


class SPP(RandomLayer):
    """Spatial pyramid pooling: pooling into 1 x 1, 2 x 2, 4 x 4 ... bins (`pyramid_height` levels), side by side.

    Flattened to (N, values), except with a single level: (N, C, 1, 1).
    Level l has windows and a stride of ceil(size / 2^l), and pads the rest on the near side.
    Reference: He et al., Spatial pyramid pooling in deep convolutional networks, 2014.
    """

    settings = ("spp_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        super().build(spec, bottom_shapes)
        settings, shape = spec.message.spp_param, bottom_shapes[0]
        if len(shape) != 4:
            raise spec.error(f"input has shape {text(shape)}; SPP takes 4 axes (N, C, H, W)", "bottom")
        if not 1 <= settings.pyramid_height <= _MAX_HEIGHT:
            raise spec.error(
                f"pyramid_height: {settings.pyramid_height}; it must be 1 to {_MAX_HEIGHT}", "spp_param.pyramid_height"
            )
        self.levels = [self._level(level, shape) for level in range(settings.pyramid_height)]
        self.work_as(spec.is_training)
        outputs = [pooling.top_shapes[0] for pooling in self.levels]
        size = sum(prod(output[1:]) for output in outputs)
        self.top_shapes = [checked(spec, (shape[0], size), "the output")] if len(outputs) > 1 else outputs

    def _level(self, level: int, shape: Shape) -> Pooling:
        message = message_class("LayerParameter")(name=f"{self.spec.name} level {level}", top=["level"])
        settings, num_bins = message.pooling_param, 1 << level
        settings.pool = self.spec.message.spp_param.pool
        for letter, size in zip("hw", shape[2:], strict=True):
            kernel = -(-size // num_bins)
            pad = (kernel * num_bins - size + 1) // 2
            if pad >= kernel:
                raise self.spec.error(
                    f"level {level} would cut {size} values into {num_bins} bins, of which some are empty; make "
                    "pyramid_height smaller",
                    "spp_param.pyramid_height",
                )
            for name, value in (("kernel", kernel), ("stride", kernel), ("pad", pad)):
                setattr(settings, f"{name}_{letter}", value)
        return Pooling(replace(self.spec, message=message), [shape], self._store)

    def work_as(self, is_training: bool) -> None:
        for pooling in self.levels:
            pooling.work_as(is_training)
        self.is_random = any(pooling.is_random for pooling in self.levels)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for pooling in self.levels:
            pooling.sample_numbers = self.sample_numbers
        levels = [pooling.forward(x)[0] for pooling in self.levels]
        return (levels[0] if len(levels) == 1 else torch.cat([level.flatten(1) for level in levels], 1),)


_LEAST = torch.finfo(torch.float32).tiny


def windows_of(
    x: torch.Tensor, kernel: tuple[int, int], stride: tuple[int, int], output: tuple[int, int]
) -> torch.Tensor:
    """(N, C, K, L): the values of each window in row-major order, zeros outside the image (N, C, H, W)."""
    needed = [(out - 1) * step + size for out, step, size in zip(output, stride, kernel, strict=True)]
    below, right = (max(0, need - have) for need, have in zip(needed, x.shape[2:], strict=True))
    padded = F.pad(x, (0, right, 0, below))[:, :, : needed[0], : needed[1]]
    columns = F.unfold(padded, kernel, stride=stride)
    return columns.reshape(len(x), x.shape[1], kernel[0] * kernel[1], columns.shape[2])


def drawn(windows: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """(N, C, L): of each window the first value whose cumulative share reaches `uniforms` (N, C, L)."""
    sums = windows.detach().cumsum(2)
    index = (sums < uniforms[:, :, None] * sums[:, :, -1:]).sum(2, keepdim=True)
    return windows.gather(2, index.clamp_max(windows.shape[2] - 1)).squeeze(2)


def expected(windows: torch.Tensor) -> torch.Tensor:
    """(N, C, L): sum(v^2) / sum(v) of each window, the mean of training's draws; 0 for a window of zeros."""
    return windows.square().sum(2) / (windows.sum(2) + _LEAST)
