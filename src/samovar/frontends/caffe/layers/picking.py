"""BatchReindex and Filter: some of the samples. Legend: N samples (the first axis)."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F

from samovar.formats.caffe.schema import message_class
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.convolution import window_settings
from samovar.frontends.caffe.layers.pooling import Pooling
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape, checked, text


class BatchReindex(Layer):
    """y[i] = x[index[i]], x being the first bottom and index (M) the second, which gets no gradient."""

    num_bottoms = (2, 2)
    takes_integers = True
    mixes_samples = True

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        x, index = bottom_shapes
        if not x or len(index) != 1:
            raise spec.error(
                f"bottoms of shapes {text(x)} and {text(index)}; the second is a list of numbers", "bottom"
            )
        self.top_shapes = [(index[0], *x[1:])]

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, index = bottoms[0], bottoms[1].long()
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(x):
            raise self.spec.error(
                f"indices are {int(index.min())} to {int(index.max())}, but there are {len(x)} samples, counted from 0"
            )
        return (x.index_select(0, index),)


class Filter(Layer):
    """The samples of all bottoms but the last at which the last, (N), is not 0; one top for each of them.

    Dropped samples get gradient 0. How many are left is known in forward only.
    """

    num_bottoms = (2, 1 << 16)
    mixes_samples = True
    num_tops = (1, 1 << 16)
    takes_integers = True

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        *shapes, selector = bottom_shapes
        if len(spec.tops) != len(shapes):
            raise spec.error(
                f"{len(shapes)} bottoms before the selector but {len(spec.tops)} tops; give each its top", "top"
            )
        count = selector[0] if selector else 0
        if prod(selector) != count or any(not shape or shape[0] != count for shape in shapes):
            raise spec.error(
                f"bottoms of shapes {', '.join(map(text, bottom_shapes))}; the last holds one number a sample, and all "
                "have as many samples",
                "bottom",
            )
        self.top_shapes = shapes

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = bottoms[-1].reshape(-1).nonzero().flatten()
        return tuple(bottom.index_select(0, kept) for bottom in bottoms[:-1])


_MAX_HEIGHT = 16


class Im2col(Layer):
    """Each window of (N, C, H, W) as the C x kernel values at its position: (N, C kernel_h kernel_w, H', W')."""

    settings = ("convolution_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        shape = bottom_shapes[0]
        axis = spec.axis(shape, spec.message.convolution_param.axis, "convolution_param", "axis") if shape else 0
        if len(shape) != 4 or axis != 1:
            raise spec.error(f"input has shape {text(shape)}; Im2col takes 4 axes (N, C, H, W)", "bottom")
        self.window = window_settings(spec, 2)
        self.outputs = self.window.output_sizes(spec, shape[2:])
        channels = shape[1] * self.window.kernel[0] * self.window.kernel[1]
        self.top_shapes = [checked(spec, (shape[0], channels, *self.outputs), "the output")]

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w = self.window
        columns = F.unfold(bottoms[0], w.kernel, w.dilation, w.padding, w.stride)
        return (columns.reshape(*columns.shape[:2], *self.outputs),)


class SPP(Layer):
    """Spatial pyramid pooling: pooling into 1 x 1, 2 x 2, 4 x 4 ... bins (`pyramid_height` levels), side by side.

    Flattened to (N, values), except with a single level: (N, C, 1, 1).
    Level l has windows of ceil(size / 2^l), as many apart, and pads what is missing on the near side.
    Reference: He et al., Spatial pyramid pooling in deep convolutional networks, 2014.
    """

    settings = ("spp_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        settings, shape = spec.message.spp_param, bottom_shapes[0]
        if len(shape) != 4:
            raise spec.error(f"input has shape {text(shape)}; SPP takes 4 axes (N, C, H, W)", "bottom")
        if not 1 <= settings.pyramid_height <= _MAX_HEIGHT:
            raise spec.error(
                f"pyramid_height: {settings.pyramid_height}; it must be 1 to {_MAX_HEIGHT}",
                "spp_param",
                "pyramid_height",
            )
        self.levels = [self._level(level, shape, store) for level in range(settings.pyramid_height)]
        outputs = [pooling.top_shapes[0] for pooling in self.levels]
        size = sum(prod(output[1:]) for output in outputs)
        self.top_shapes = [checked(spec, (shape[0], size), "the output")] if len(outputs) > 1 else outputs

    def _level(self, level: int, shape: Shape, store: ParameterStore) -> Pooling:
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
                    "spp_param",
                    "pyramid_height",
                )
            for name, value in (("kernel", kernel), ("stride", kernel), ("pad", pad)):
                setattr(settings, f"{name}_{letter}", value)
        return Pooling(replace(self.spec, message=message), [shape], store)

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if len(self.levels) == 1:
            return self.levels[0](*bottoms)  # type: ignore[no-any-return]
        return (torch.cat([pooling(*bottoms)[0].flatten(1) for pooling in self.levels], 1),)
