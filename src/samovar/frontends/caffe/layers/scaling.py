"""Scale and Bias: a factor and a term for each position of some axes, learned or from a second bottom."""

from collections.abc import Sequence

import torch
from torch import nn

from samovar.frontends.caffe.layers.base import KEPT, Layer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape, text


class _Broadcast(Layer):
    """An operand of the shape of the first bottom's axes from `axis` on, `num_axes` of them (-1: to the end)."""

    num_bottoms = (1, 2)
    forgets_output = True

    def operand(self, shapes: Sequence[Shape]) -> Shape:
        """The operand's shape; also sets `view_shape`, in which it meets the first bottom."""
        owner, settings, x = self.settings[0], getattr(self.spec.message, self.settings[0]), shapes[0]
        if (len(shapes) == 2 and not shapes[1]) or (len(shapes) == 1 and settings.num_axes == 0):
            axis = 0
        else:
            axis = self.spec.axis(x, settings.axis, owner, "axis")
        if len(shapes) == 2:
            shape = shapes[1]
        elif settings.num_axes < -1 or axis + settings.num_axes > len(x):
            raise self.spec.error(
                f"num_axes: {settings.num_axes} from axis {axis} of an input of shape {text(x)}; allowed are -1 (to "
                f"the end) to {len(x) - axis}",
                owner,
                "num_axes",
            )
        else:
            shape = x[axis:] if settings.num_axes == -1 else x[axis : axis + settings.num_axes]
        if x[axis : axis + len(shape)] != shape:
            raise self.spec.error(
                f"second bottom of shape {text(shape)} does not fit the first, {text(x)}, from axis {axis} on", "bottom"
            )
        self.tail = len(x) - axis - len(shape)
        return shape

    def broadcast(self, operand: torch.Tensor) -> torch.Tensor:
        return operand.reshape(*operand.shape, *(1,) * self.tail)


class Scale(_Broadcast):
    """y = s x (+ b), s and b repeated over the axes they lack.

    s is the second bottom, or a parameter that starts at 1; with `bias_term`, b is a parameter of its shape.
    """

    memory_order = KEPT
    settings = ("scale_param",)

    scale: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        shape = self.operand(bottom_shapes)
        if len(bottom_shapes) == 1:
            self.add_parameter("scale", shape, "filler", default=1.0)
        self.register_parameter("bias", None)
        if spec.message.scale_param.bias_term:
            self.add_parameter("bias", shape, "bias_filler")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = self.broadcast(bottoms[1] if len(bottoms) == 2 else self.scale)
        if self.bias is None:
            return (bottoms[0] * scale,)
        return (torch.addcmul(self.broadcast(self.bias), bottoms[0], scale),)


class Bias(_Broadcast):
    """y = x + b, b repeated over the axes it lacks: the second bottom, or a parameter that starts at 0."""

    memory_order = KEPT
    settings = ("bias_param",)

    bias: nn.Parameter

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        shape = self.operand(bottom_shapes)
        if len(bottom_shapes) == 1:
            self.add_parameter("bias", shape, "filler")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (bottoms[0] + self.broadcast(bottoms[1] if len(bottoms) == 2 else self.bias),)
