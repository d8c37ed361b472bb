"""Dropout."""

from collections.abc import Sequence

import numpy as np
import torch

from samovar.frontends.caffe.layers.base import KEPT
from samovar.frontends.caffe.layers.random_layer import RandomLayer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape


class Dropout(RandomLayer):
    """In training each value is kept with probability 1 - ratio and then divided by it, else 0; elsewhere y = x.

    Reference: Srivastava et al., Dropout, 2014.
    """

    memory_order = KEPT
    takes_half = True
    settings = ("dropout_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        ratio = spec.finite("dropout_param", "dropout_ratio")
        if not 0 < ratio < 1:
            raise spec.error(
                f"dropout_ratio: {ratio:g}; it must lie between 0 and 1 (for 0 remove the layer)",
                "dropout_param",
                "dropout_ratio",
            )
        self.is_random = spec.is_training
        self.threshold = np.uint32(min(round(ratio * 2**32), 2**32 - 1))
        self.scale = 1 / (1 - ratio)

    def work_as(self, is_training: bool) -> None:
        self.is_random = is_training

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (x,) = bottoms
        if not self.is_random:
            return (x,)
        kept = self.words(tuple(x.shape)) >= self.threshold
        mask = torch.from_numpy(kept).to(x.device, x.dtype).mul_(self.scale)
        return (x * mask,)
