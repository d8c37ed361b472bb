"""Convolution, Deconvolution, and Im2col, the columns that Caffe makes from an image for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from samovar.frontends.caffe.layers.base import CHANNELS_LAST, PLAIN, Layer
from samovar.frontends.caffe.spec import MAX_VALUES, LayerSpec, Shape, checked, text
from samovar.model.direct import ConvolutionWindow, convolution
from samovar.model.half import stays_full

_Operation: TypeAlias = Callable[..., torch.Tensor]
_CONVOLUTIONS: dict[int, _Operation] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, _Operation] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """How a window moves over the spatial axes; a size for each of them."""

    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape

    def output_sizes(self, spec: LayerSpec, sizes: Shape) -> Shape:
        """The number of positions on each axis; InputError if the window does not fit once."""
        outputs = []
        axes = zip(sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        for size, k, stride, pad, dilation in axes:
            extent = dilation * (k - 1) + 1
            if extent > size + 2 * pad:
                raise spec.error(
                    f"kernel of {k} (dilation {dilation}) covers {extent}, more than the padded input's "
                    f"{size + 2 * pad}; make the kernel smaller or pad more",
                    "convolution_param",
                )
            outputs.append((size + 2 * pad - extent) // stride + 1)
        return tuple(outputs)


def window_settings(spec: LayerSpec, num_axes: int) -> WindowSettings:
    """From the layer's convolution_param; InputError if they do not fit `num_axes` spatial axes."""
    kernel, dilation = _kernel(spec, num_axes), _spatial(spec, "dilation", num_axes, default=1, least=1)
    return WindowSettings(
        kernel=kernel,
        stride=_spatial(spec, "stride", num_axes, default=1, least=1),
        padding=_spatial(spec, "pad", num_axes, default=0, least=0),
        # A kernel of 1 has no gaps. oneDNN (torch 2.13) ends the process if one in groups is dilated.
        dilation=tuple(1 if size == 1 else gap for size, gap in zip(kernel, dilation, strict=True)),
    )


class Convolution(Layer):
    """y = w * x + b over 1 to 3 spatial axes, several bottoms with the same weights.

    Weight (num_output, channels / group, kernel...), bias (num_output). Output size of an axis:
    floor((size + 2 pad - dilation (kernel - 1) - 1) / stride) + 1. Axes before the channels are batch.
    """

    num_bottoms = (1, 1 << 16)
    num_tops = (1, 1 << 16)
    forgets_output = True
    settings = ("convolution_param",)
    operations: ClassVar[dict[int, _Operation]] = _CONVOLUTIONS
    weight: nn.Parameter

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        settings, shape = spec.message.convolution_param, bottom_shapes[0]
        if len(spec.tops) != len(bottom_shapes):
            raise spec.error(f"{len(bottom_shapes)} bottoms but {len(spec.tops)} tops; give each its top", "top")
        if any(other != shape for other in bottom_shapes):
            shapes = ", ".join(map(text, bottom_shapes))
            raise spec.error(f"bottoms of shapes {shapes}; all must have the same shape", "bottom")
        self.channel_axis = spec.axis(shape, settings.axis, "convolution_param", "axis")
        sizes = shape[self.channel_axis + 1 :]
        if len(sizes) not in self.operations:
            raise spec.error(f"input {text(shape)} has {len(sizes)} spatial axes; supported are 1 to 3", "bottom")
        self.convolve = self.operations[len(sizes)]
        self.window = window = window_settings(spec, len(sizes))
        self.groups = settings.group
        self._images_window = ConvolutionWindow(window.stride, window.padding, window.dilation, settings.group)
        num_output = _num_output(spec, shape[self.channel_axis])
        outputs = self._output_sizes(sizes)
        padded = [size + 2 * pad for size, pad in zip(sizes, window.padding, strict=True)]
        checked(spec, (*shape[: self.channel_axis + 1], *padded), "the padded input")
        top_shape = (*shape[: self.channel_axis], num_output, *outputs)
        self.top_shapes = [checked(spec, top_shape, "the output")] * len(bottom_shapes)
        channels = self._weight_channels(shape[self.channel_axis], num_output)
        self.add_parameter("weight", (*channels, *window.kernel), "weight_filler")
        self.add_bias((num_output,), settings.bias_term)

    def _weight_channels(self, channels: int, num_output: int) -> Shape:
        return num_output, channels // self.groups

    def _output_sizes(self, sizes: Shape) -> Shape:
        return self.window.output_sizes(self.spec, sizes)

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([self._convolved(bottom) for bottom in bottoms])

    def _convolved(self, x: torch.Tensor) -> torch.Tensor:
        lead = x.shape[: self.channel_axis]
        if len(lead) != 1:
            x = x.reshape(prod(lead), *x.shape[self.channel_axis :])
        y = self._apply_to(x)
        return y if len(lead) == 1 else y.reshape(*lead, *y.shape[1:])

    @property
    def is_direct(self) -> bool:
        """Whether it works on channels-last images, and writes its gradients directly into the flat buffer."""
        is_used_once = not self.is_shared and len(self.top_shapes) == 1
        return is_used_once and len(self.window.kernel) == 2 and self.operations is _CONVOLUTIONS

    @property
    def takes_half(self) -> bool:  # type: ignore[override]
        return self.is_direct and not stays_full(self.weight)

    @property
    def memory_order(self) -> str:  # type: ignore[override]
        return CHANNELS_LAST if self.is_direct else PLAIN

    def _apply_to(self, x: torch.Tensor) -> torch.Tensor:
        w = self.window
        if self.is_direct:
            return convolution(x, self.weight, self.bias, self._images_window)
        return self.convolve(x, self.weight, self.bias, w.stride, w.padding, w.dilation, self.groups)


class Deconvolution(Convolution):
    """The backward pass of Convolution as a layer: each value adds its kernel, times the value, to the output; + b.

    Weight (channels, num_output / group, kernel...), bias (num_output). Output size of an axis:
    stride (size - 1) + dilation (kernel - 1) + 1 - 2 pad.
    """

    operations = _TRANSPOSED

    def _weight_channels(self, channels: int, num_output: int) -> Shape:
        return channels, num_output // self.groups

    def _output_sizes(self, sizes: Shape) -> Shape:
        w = self.window
        axes = zip(sizes, w.kernel, w.stride, w.padding, w.dilation, strict=True)
        return tuple(s * (size - 1) + d * (k - 1) + 1 - 2 * pad for size, k, s, pad, d in axes)

    def _apply_to(self, x: torch.Tensor) -> torch.Tensor:
        w = self.window
        return self.convolve(x, self.weight, self.bias, w.stride, w.padding, 0, self.groups, w.dilation)


def _num_output(spec: LayerSpec, channels: int) -> int:
    settings = spec.message.convolution_param
    num_output: int = settings.num_output
    if num_output < 1:
        raise spec.error("num_output is missing or 0; give the number of filters", "convolution_param")
    for what, count in (("input channels", channels), ("num_output", num_output)):
        if settings.group < 1 or count % settings.group:
            raise spec.error(
                f"group: {settings.group} does not divide {what}: {count}; both must be multiples of it",
                "convolution_param.group",
            )
    return num_output


def _kernel(spec: LayerSpec, num_axes: int) -> Shape:
    kernel = _spatial(spec, "kernel", num_axes, default=0, least=0)
    if min(kernel) < 1:
        raise spec.error("kernel_size is missing or 0; each axis needs at least 1", "convolution_param")
    return kernel


def _spatial(spec: LayerSpec, name: str, num_axes: int, default: int, least: int) -> Shape:
    """A setting for each spatial axis: given once, once for each axis, or as `_h` and `_w`."""
    settings, repeated = spec.message.convolution_param, "kernel_size" if name == "kernel" else name
    values: Sequence[int] = tuple(getattr(settings, repeated))
    pair = (f"{name}_h", f"{name}_w")
    if name != "dilation" and (settings.HasField(pair[0]) or settings.HasField(pair[1])):
        if values or num_axes != 2:
            raise spec.error(
                f"{pair[0]} and {pair[1]} need two spatial axes and exclude {repeated}; give one of both",
                "convolution_param",
            )
        values = (getattr(settings, pair[0]), getattr(settings, pair[1]))
    values = spec.one_each(values or (default,), num_axes, repeated, "spatial axis", "convolution_param", repeated)
    if not (least <= min(values) and max(values) <= MAX_VALUES):
        raise spec.error(
            f"{name}: {' '.join(map(str, values))}; allowed are {least} to {MAX_VALUES}", "convolution_param"
        )
    return tuple(values)


class Im2col(Layer):
    """Each window of (N, C, H, W) as the C x kernel values at its position: (N, C kernel_h kernel_w, H', W')."""

    settings = ("convolution_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        shape = bottom_shapes[0]
        axis = spec.axis(shape, spec.message.convolution_param.axis, "convolution_param", "axis") if shape else 0
        if len(shape) != 4 or axis != 1:
            raise spec.error(f"input has shape {text(shape)}; Im2col takes 4 axes (N, C, H, W)", "bottom")
        self.window = window_settings(spec, 2)
        self.outputs = self.window.output_sizes(spec, shape[2:])
        channels = shape[1] * self.window.kernel[0] * self.window.kernel[1]
        self.top_shapes = [checked(spec, (shape[0], channels, *self.outputs), "the output")]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w = self.window
        columns = F.unfold(x, w.kernel, w.dilation, w.padding, w.stride)
        return (columns.reshape(*columns.shape[:2], *self.outputs),)
