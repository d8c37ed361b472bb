"""BatchReindex and Filter: some of the samples. Legend: N samples (the first axis)."""

from collections.abc import Sequence
from math import prod

import torch

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape, text


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
