"""Losses of values against values: EuclideanLoss, HingeLoss, SigmoidCrossEntropyLoss, ContrastiveLoss.

Legend: N samples (the first axis).
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.normalizer import BATCH_SIZE, LossNormalizer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape, text

_L2 = 2  # HingeLossParameter.Norm
_DISTANCE_FLOOR = 1e-4  # added to a distance before the gradient is divided by it, as in Caffe


class _PairLoss(Layer):
    num_bottoms = (2, 2)
    makes_own_top = True
    default_loss_weight = 1.0
    takes_scores = True

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.top_shapes = [()]
        first = bottom_shapes[0]
        for shape in bottom_shapes:
            if not shape or shape[0] != first[0]:
                raise spec.error(
                    f"bottoms of shapes {text(first)} and {text(shape)}; the first axis is the samples' and must agree",
                    "bottom",
                )

    def check_counts(self, shapes: Sequence[Shape]) -> None:
        if prod(shapes[0]) != prod(shapes[1]):
            raise self.spec.error(
                f"bottoms of shapes {text(shapes[0])} and {text(shapes[1])} have {prod(shapes[0])} and "
                f"{prod(shapes[1])} values; both need as many",
                "bottom",
            )


class EuclideanLoss(_PairLoss):
    """loss = sum((a - b)^2) / (2 N), with a gradient for both."""

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.check_counts(bottom_shapes)

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = bottoms
        difference = a - b.reshape(a.shape)
        return (difference.square().sum() / (2 * len(a)),)


class HingeLoss(_PairLoss):
    """loss = sum(max(0, 1 - t x)^p) / N, t = 1 at the label's class and -1 elsewhere; p = 1 (L1) or 2 (L2)."""

    takes_integers = True
    settings = ("hinge_loss_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        scores, labels = bottom_shapes
        if prod(labels) != labels[0]:
            raise spec.error(f"labels of shape {text(labels)}; each of {scores[0]} samples has one", "bottom")
        self.is_squared = spec.message.hinge_loss_param.norm == _L2

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores, labels = bottoms[0].flatten(1), bottoms[1].long().reshape(-1, 1)
        signs = torch.ones_like(scores)
        if labels.device.type != "cpu":  # a GPU would end the process instead of raising RuntimeError
            self._check_range(labels, scores.shape[1])
        try:
            signs.scatter_(1, labels, -1.0)
        except RuntimeError:
            self._check_range(labels, scores.shape[1])
            raise
        margins = torch.relu(1 + signs * scores)
        if self.is_squared:
            margins = margins.square()
        return (margins.sum() / len(scores),)

    def _check_range(self, labels: torch.Tensor, num_classes: int) -> None:
        least, most = int(labels.min()), int(labels.max())
        if not 0 <= least <= most < num_classes:
            raise self.spec.error(
                f"labels are {least} to {most}, but there are {num_classes} classes, counted from 0"
            ) from None


class SigmoidCrossEntropyLoss(_PairLoss):
    """loss = -sum(t log p + (1 - t) log(1 - p)) / normalizer, p = 1 / (1 + exp(-x)), without overflow.

    Targets t that are `ignore_label` are left out. normalizer: BATCH_SIZE (N) unless told otherwise.
    """

    settings = ("sigmoid_param", "loss_param")

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.check_counts(bottom_shapes)
        self.normalizer = LossNormalizer.of(spec, default=BATCH_SIZE)

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, targets = bottoms[0], bottoms[1].detach().reshape(bottoms[0].shape)
        valid = self.normalizer.valid(targets.int())
        terms = F.binary_cross_entropy_with_logits(x, targets, reduction="none")
        if valid is not None:
            terms = terms.where(valid, torch.zeros_like(terms))
        return (terms.sum() / self.normalizer.of_labels(len(x), x.numel(), valid),)


class ContrastiveLoss(_PairLoss):
    """loss = sum(y d^2 + (1 - y) max(margin - d, 0)^2) / (2 N), d = |a - b| of each sample, y = 1 for a like pair.

    `legacy_version`: max(margin - d^2, 0) for unlike pairs. Reference: Hadsell, Chopra, LeCun, 2006.
    """

    num_bottoms = (3, 3)
    settings = ("contrastive_loss_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        a, b, similar = bottom_shapes
        if a != b or prod(a[2:]) != 1 or prod(similar) != a[0]:
            raise spec.error(
                f"bottoms of shapes {text(a)}, {text(b)} and {text(similar)}; they must be N x C, N x C and N", "bottom"
            )
        self.margin = spec.finite("contrastive_loss_param", "margin")
        self.is_legacy = spec.message.contrastive_loss_param.legacy_version

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        difference = (bottoms[0] - bottoms[1]).flatten(1)
        is_like = bottoms[2].reshape(-1) != 0
        args = difference, is_like, self.margin, self.is_legacy
        loss: torch.Tensor = _Contrast.apply(*args)  # type: ignore[no-untyped-call]
        return (loss,)


class _Contrast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, difference: torch.Tensor, is_like: torch.Tensor, margin: float, is_legacy: bool
    ) -> torch.Tensor:
        squares = difference.square().sum(1)
        distances = squares.sqrt()
        room = (margin - (squares if is_legacy else distances)).clamp_min(0)
        # The factor on the difference that is its gradient, before the division by N.
        pull = -(room > 0).to(room.dtype) if is_legacy else -room / (distances + _DISTANCE_FLOOR)
        ctx.save_for_backward(difference, torch.where(is_like, torch.ones_like(pull), pull))
        terms = torch.where(is_like, squares, room if is_legacy else room.square())
        return terms.sum() / (2 * len(squares))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        difference, pull = ctx.saved_tensors
        return difference * (pull * (gradient / len(pull)))[:, None], None, None, None
