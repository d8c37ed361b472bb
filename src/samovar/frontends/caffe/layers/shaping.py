"""Layers that move values without change: Concat, Slice, Crop, Flatten, Reshape, Tile, Split, BatchReindex, Filter."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch

from samovar.frontends.caffe.layers.base import KEPT, Layer
from samovar.frontends.caffe.spec import LayerSpec, Shape, checked, text

_MANY = 1 << 16


class Concat(Layer):
    """The bottoms one after the other along `axis`; all other axes must agree."""

    num_bottoms = (1, _MANY)
    memory_order = KEPT
    takes_half = True
    settings = ("concat_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        first = bottom_shapes[0]
        self.axis = axis = _axis(spec, first, "concat_param", "concat_dim")
        self.mixes_samples = axis == 0
        for shape in bottom_shapes[1:]:
            if len(shape) != len(first) or _without(shape, axis) != _without(first, axis):
                raise spec.error(
                    f"bottoms of shapes {text(first)} and {text(shape)} may differ on axis {axis} only", "bottom"
                )
        total = sum(shape[axis] for shape in bottom_shapes)
        self.top_shapes = [checked(spec, (*first[:axis], total, *first[axis + 1 :]), "the output")]

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.cat(bottoms, self.axis),)


class Slice(Layer):
    """The bottom cut along `axis` at `slice_point`, or into equal parts; one top a part.
    On the axis of samples the last part is what is left of a batch."""

    num_tops = (1, _MANY)
    memory_order = KEPT
    takes_half = True
    settings = ("slice_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        shape = bottom_shapes[0]
        self.axis = axis = _axis(spec, shape, "slice_param", "slice_dim")
        self.mixes_samples = axis == 0
        self.points = points = list(spec.message.slice_param.slice_point)
        self.sizes = self._at_points(shape[axis], points) if points else self._even(shape[axis])
        self.top_shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in self.sizes]

    def _at_points(self, size: int, points: list[int]) -> list[int]:
        spec, num_tops = self.spec, len(self.spec.tops)
        if len(points) != num_tops - 1:
            raise spec.error(
                f"{len(points)} slice_points for {num_tops} tops; give one less than tops", "slice_param.slice_point"
            )
        edges = [0, *points, size]
        sizes = [after - before for before, after in pairwise(edges)]
        if min(sizes) < 1:
            raise spec.error(
                f"slice_points {', '.join(map(str, points))} must rise and be between 1 and {size - 1}",
                "slice_param.slice_point",
            )
        return sizes

    def _even(self, size: int) -> list[int]:
        num_tops = len(self.spec.tops)
        if size % num_tops:
            raise self.spec.error(
                f"{size} values on axis {self.axis} cannot be shared evenly by {num_tops} tops; give slice_point", "top"
            )
        return [size // num_tops] * num_tops

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        size, points = x.shape[self.axis], self.points
        if points and size <= points[-1]:
            reason = f"slice_point: {points[-1]}, but axis {self.axis} has {size} values; give a larger batch"
            raise self.spec.error(reason, "slice_param.slice_point")
        return torch.tensor_split(x, points or len(self.sizes), self.axis)


class Crop(Layer):
    """The part of the first bottom that has the second's size on the axes from `axis` on, starting at `offset`.
    `offset` is given once, or once for each of these axes. The second bottom gets no gradient."""

    num_bottoms = (2, 2)
    memory_order = KEPT
    takes_half = True
    settings = ("crop_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        shape, wanted = bottom_shapes
        if len(shape) != len(wanted):
            raise spec.error(f"bottoms of shapes {text(shape)} and {text(wanted)}; both need as many axes", "bottom")
        self.axis = spec.axis(shape, spec.message.crop_param.axis, "crop_param", "axis")
        self.mixes_samples = self.axis == 0
        offsets, axes = [*spec.message.crop_param.offset] or [0], f"axis from {self.axis} on"
        self.offsets = spec.one_each(offsets, len(shape) - self.axis, "offset", axes, "crop_param.offset")
        for axis, offset in enumerate(self.offsets, self.axis):
            if offset + wanted[axis] > shape[axis]:
                raise spec.error(
                    f"{wanted[axis]} values from {offset} on are more than the {shape[axis]} of axis {axis}",
                    "crop_param.offset",
                )
        self.top_shapes = [(*shape[: self.axis], *wanted[self.axis :])]

    def forward(self, x: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for axis, offset in enumerate(self.offsets, self.axis):
            x = x.narrow(axis, offset, like.shape[axis])
        return (x,)


class Flatten(Layer):
    """The axes from `axis` to `end_axis` as one."""

    takes_integers = True
    takes_half = True
    settings = ("flatten_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        shape, settings = bottom_shapes[0], spec.message.flatten_param
        self.first = spec.axis(shape, settings.axis, "flatten_param", "axis")
        self.mixes_samples = self.first == 0
        self.last = spec.axis(shape, settings.end_axis, "flatten_param", "end_axis")
        if self.last < self.first:
            raise spec.error(f"end_axis {self.last} is before axis {self.first}", "flatten_param.end_axis")
        middle = prod(shape[self.first : self.last + 1])
        self.top_shapes = [(*shape[: self.first], middle, *shape[self.last + 1 :])]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.flatten(self.first, self.last),)


class Reshape(Layer):
    """The same values with other sizes on `num_axes` axes from `axis` on (-1: to the last).

    A size of 0 keeps that of the bottom, and one of -1 follows from the others. A negative `axis` counts from the end;
    -1 is behind the last axis.
    """

    takes_integers = True
    takes_half = True
    settings = ("reshape_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        shape, settings = bottom_shapes[0], spec.message.reshape_param
        self.sizes = tuple(settings.shape.dim)
        if min(self.sizes, default=0) < -1 or self.sizes.count(-1) > 1:
            raise spec.error("sizes may be above 0, 0 (keep), and once -1 (what is left)", "reshape_param.shape")
        num_axes = len(shape)
        self.start = settings.axis if settings.axis >= 0 else num_axes + settings.axis + 1
        if not 0 <= self.start <= num_axes:
            raise spec.error(
                f"axis {settings.axis} of an input of shape {text(shape)}; allowed are {-num_axes - 1} to {num_axes}",
                "reshape_param.axis",
            )
        self.end = num_axes if settings.num_axes == -1 else self.start + settings.num_axes
        if settings.num_axes < -1 or self.end > num_axes:
            raise spec.error(
                f"num_axes: {settings.num_axes} from axis {self.start} of an input of shape {text(shape)}; allowed are "
                f"-1 (to the last) to {num_axes - self.start}",
                "reshape_param.num_axes",
            )
        self.top_shapes = [checked(spec, self._target(shape), "the output")]
        self.mixes_samples = self.top_shapes[0][:1] != shape[:1]

    def _target(self, shape: Shape) -> Shape:
        sizes = list(self.sizes)
        for index, size in enumerate(sizes):
            if size == 0:
                if self.start + index >= len(shape):
                    raise self.spec.error(
                        f"size {index} is 0 (keep), but an input of shape {text(shape)} has no axis "
                        f"{self.start + index}",
                        "reshape_param.shape",
                    )
                sizes[index] = shape[self.start + index]
        before, after = shape[: self.start], shape[self.end :]
        if -1 in sizes:
            rest = -prod((*before, *sizes, *after))
            sizes[sizes.index(-1)] = prod(shape) // rest if rest and prod(shape) % rest == 0 else 0
        target = (*before, *sizes, *after)
        if prod(target) != prod(shape) or 0 in target:
            wanted = text((*before, *self.sizes, *after))
            raise self.spec.error(
                f"input of shape {text(shape)} has {prod(shape)} values, which do not fit {wanted}",
                "reshape_param.shape",
            )
        return target

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.reshape(self._target(tuple(x.shape))),)


class Tile(Layer):
    """`tiles` copies of the bottom one after the other along `axis`."""

    settings = ("tile_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        shape, settings = bottom_shapes[0], spec.message.tile_param
        self.axis = spec.axis(shape, settings.axis, "tile_param", "axis")
        self.mixes_samples = self.axis == 0
        if settings.tiles < 1:
            raise spec.error(f"tiles: {settings.tiles}; give the number of copies, at least 1", "tile_param.tiles")
        self.repeats = [settings.tiles if axis == self.axis else 1 for axis in range(len(shape))]
        sizes = tuple(size * count for size, count in zip(shape, self.repeats, strict=True))
        self.top_shapes = [checked(spec, sizes, "the output")]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.repeat(self.repeats),)


class Split(Layer):
    """The bottom as every top; their gradients add."""

    takes_integers = True
    num_tops = (1, _MANY)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        self.top_shapes = [bottom_shapes[0]] * len(spec.tops)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x,) * len(self.top_shapes)


class Silence(Layer):
    """Takes blobs that nothing needs, so that they are not outputs of the net."""

    takes_integers = True
    num_bottoms = (1, _MANY)
    num_tops = (0, 0)

    def build(self, _spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        self.top_shapes = []

    def forward(self, *_bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ()


def _axis(spec: LayerSpec, shape: Shape, owner: str, old_field: str) -> int:
    """`axis`, or the field of older files for the same."""
    settings = getattr(spec.message, owner)
    if settings.HasField(old_field):
        if settings.HasField("axis"):
            raise spec.error(f"axis and {old_field} are both given; keep axis", owner, old_field)
        return spec.axis(shape, getattr(settings, old_field), owner, old_field)
    return spec.axis(shape, settings.axis, owner, "axis")


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


class BatchReindex(Layer):
    """y[i] = x[index[i]]; x is the first bottom and index (M) the second, which gets no gradient."""

    num_bottoms = (2, 2)
    takes_integers = True
    mixes_samples = True

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        x, index = bottom_shapes
        if not x or len(index) != 1:
            raise spec.error(
                f"bottoms of shapes {text(x)} and {text(index)}; the second is a list of numbers", "bottom"
            )
        self.top_shapes = [(index[0], *x[1:])]

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        index = index.long()
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(x):
            raise self.spec.error(
                f"indices are {int(index.min())} to {int(index.max())}, but there are {len(x)} samples, counted from 0"
            )
        return (x.index_select(0, index),)


class Filter(Layer):
    """The samples of all bottoms except the last at which the last, (N), is not 0; one top for each bottom.
    Dropped samples get gradient 0. The number of samples left is known in forward only."""

    num_bottoms = (2, 1 << 16)
    mixes_samples = True
    num_tops = (1, 1 << 16)
    takes_integers = True

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
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
