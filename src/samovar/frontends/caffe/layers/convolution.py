"""Convolution."""

from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import nn

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import MAX_VALUES, LayerSpec, Shape, checked, text

_CONVOLUTIONS: dict[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Convolution(Layer):
    """y = w * x + b over 1 to 3 spatial axes, several bottoms with the same weights.

    Weight (num_output, channels / group, kernel...), bias (num_output). Output size of an axis:
    floor((size + 2 pad - dilation (kernel - 1) - 1) / stride) + 1. Axes before the channels are batch.
    """

    num_bottoms = (1, 1 << 16)
    num_tops = (1, 1 << 16)
    forgets_output = True
    settings = ("convolution_param",)

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        settings, shape = spec.message.convolution_param, bottom_shapes[0]
        if len(spec.tops) != len(bottom_shapes):
            raise spec.error(f"{len(bottom_shapes)} bottoms but {len(spec.tops)} tops; give each its top", "top")
        if any(other != shape for other in bottom_shapes):
            shapes = ", ".join(map(text, bottom_shapes))
            raise spec.error(f"bottoms of shapes {shapes}; all must have the same shape", "bottom")
        self.channel_axis = spec.axis(shape, settings.axis, "convolution_param", "axis")
        sizes = shape[self.channel_axis + 1 :]
        if len(sizes) not in _CONVOLUTIONS:
            raise spec.error(f"input {text(shape)} has {len(sizes)} spatial axes; supported are 1 to 3", "bottom")
        self.convolve = _CONVOLUTIONS[len(sizes)]
        kernel = _kernel(spec, len(sizes))
        self.stride = _spatial(spec, "stride", len(sizes), default=1, least=1)
        self.padding = _spatial(spec, "pad", len(sizes), default=0, least=0)
        self.dilation = _spatial(spec, "dilation", len(sizes), default=1, least=1)
        self.groups = settings.group
        num_output = _num_output(spec, shape[self.channel_axis])
        outputs = self._output_sizes(spec, sizes, kernel)
        padded = [size + 2 * pad for size, pad in zip(sizes, self.padding, strict=True)]
        checked(spec, (*shape[: self.channel_axis + 1], *padded), "the padded input")
        top_shape = (*shape[: self.channel_axis], num_output, *outputs)
        self.top_shapes = [checked(spec, top_shape, "the output")] * len(bottom_shapes)
        weight_shape = (num_output, shape[self.channel_axis] // self.groups, *kernel)
        self.add_parameter("weight", weight_shape, "weight_filler")
        self.register_parameter("bias", None)
        if settings.bias_term:
            self.add_parameter("bias", (num_output,), "bias_filler")

    def _output_sizes(self, spec: LayerSpec, sizes: Shape, kernel: Shape) -> Shape:
        axes = zip(sizes, kernel, self.stride, self.padding, self.dilation, strict=True)
        outputs = []
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

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([self._convolved(bottom) for bottom in bottoms])

    def _convolved(self, x: torch.Tensor) -> torch.Tensor:
        lead = x.shape[: self.channel_axis]
        if len(lead) != 1:
            x = x.reshape(prod(lead), *x.shape[self.channel_axis :])
        y = self.convolve(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        return y if len(lead) == 1 else y.reshape(*lead, *y.shape[1:])


def _num_output(spec: LayerSpec, channels: int) -> int:
    settings = spec.message.convolution_param
    num_output: int = settings.num_output
    if num_output < 1:
        raise spec.error("num_output is missing or 0; give the number of filters", "convolution_param")
    for what, count in (("input channels", channels), ("num_output", num_output)):
        if settings.group < 1 or count % settings.group:
            raise spec.error(
                f"group: {settings.group} does not divide {what}: {count}; both must be multiples of it",
                "convolution_param",
                "group",
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
    values = tuple(getattr(settings, repeated))
    pair = (f"{name}_h", f"{name}_w")
    if name != "dilation" and (settings.HasField(pair[0]) or settings.HasField(pair[1])):
        if values or num_axes != 2:
            raise spec.error(
                f"{pair[0]} and {pair[1]} need two spatial axes and exclude {repeated}; give one of both",
                "convolution_param",
            )
        values = (getattr(settings, pair[0]), getattr(settings, pair[1]))
    if len(values) not in (0, 1, num_axes):
        raise spec.error(
            f"{repeated} is given {len(values)} times; allowed are once or {num_axes} times, once for each "
            "spatial axis",
            "convolution_param",
            repeated,
        )
    values = values * num_axes if len(values) == 1 else values or (default,) * num_axes
    if not (least <= min(values) and max(values) <= MAX_VALUES):
        raise spec.error(
            f"{name}: {' '.join(map(str, values))}; allowed are {least} to {MAX_VALUES}", "convolution_param"
        )
    return values
