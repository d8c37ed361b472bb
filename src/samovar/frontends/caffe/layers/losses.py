"""Losses of values against values (EuclideanLoss, HingeLoss, ...) and of probabilities (InfogainLoss, ...).

Legend: N samples (the first axis). Without any, behind a Filter, a loss is 0.
"""

import math
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from samovar.formats.caffe.blob import read_blob
from samovar.frontends.caffe.layers.base import Layer, integers
from samovar.frontends.caffe.layers.classification import BATCH_SIZE, VALID, Classification, LossNormalizer
from samovar.frontends.caffe.spec import LayerSpec, Shape, find_named, text

_LEAST_PROBABILITY = 1e-20  # below it Caffe takes no logarithm


class MultinomialLogisticLoss(Classification):
    """loss = -sum(log max(p[label], 1e-20)) / N; p (N, classes) are probabilities."""

    makes_own_top = True
    default_loss_weight = 1.0

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        probabilities, labels = bottom_shapes
        if not probabilities or math.prod(labels) != probabilities[0]:
            raise spec.error(
                f"bottoms of shapes {text(probabilities)} and {text(labels)}; each sample has one label", "bottom"
            )
        self.top_shapes = [()]

    def forward(self, probabilities: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        probabilities = _rows(probabilities)
        at_label = self.at_label(probabilities, integers(labels, -1, 1))
        return (-_floored(at_label, _LEAST_PROBABILITY).log().sum() / max(1, len(probabilities)),)


class InfogainLoss(Classification):
    """loss = -sum over k of H[label, k] log(max(softmax(x)[k], 1e-20)) / normalizer.

    H (classes, classes) is the third bottom, or comes from the binaryproto `source`; it gets no gradient. Labels
    that are `ignore_label` do not count; normalizer as in SoftmaxWithLoss. The gradient ignores the floor. A second top
    holds softmax(x), without a gradient.
    """

    num_bottoms = (2, 3)
    num_tops = (1, 2)
    makes_own_top = True
    default_loss_weight = 1.0
    settings = ("infogain_loss_param", "softmax_param", "loss_param")

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        scores = bottom_shapes[0]
        self.axis = spec.axis(scores, spec.message.infogain_loss_param.axis, "infogain_loss_param", "axis")
        self.check_labels(spec, scores, bottom_shapes[1])
        self.normalizer = LossNormalizer.of(spec, default=VALID)
        self.is_uneven = self.normalizer.is_uneven
        weights = spec.message.loss_weight
        if len(spec.tops) == 2 and (len(weights) != 2 or weights[1]):
            raise spec.error("a second top (the probabilities) needs loss_weight: 1 loss_weight: 0; add both", "top")
        self.top_shapes = [(), scores][: max(1, len(spec.tops))]
        matrix = None if len(bottom_shapes) == 3 else self._read_matrix()
        shape = bottom_shapes[2] if matrix is None else tuple(matrix.shape)
        num_classes = scores[self.axis]
        if shape[-2:] != (num_classes, num_classes) or math.prod(shape) != num_classes**2:
            raise spec.error(
                f"infogain matrix has shape {text(shape)}; for {num_classes} classes it must be {num_classes} x "
                f"{num_classes}",
                "infogain_loss_param",
            )
        self.matrix = None if matrix is None else matrix.reshape(num_classes, num_classes)

    def _read_matrix(self) -> torch.Tensor:
        spec = self.spec
        if not spec.message.infogain_loss_param.HasField("source"):
            raise spec.error("no infogain matrix; give a third bottom, or source", "infogain_loss_param")
        where = f"{spec.where('infogain_loss_param.source')}: source"
        path = find_named(spec.message.infogain_loss_param.source, spec.path, where)
        return torch.from_numpy(read_blob(path, "infogain matrix"))

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores, labels = self.split(*bottoms[:2])
        matrix = bottoms[2].detach().reshape(scores.shape[1], -1) if self.matrix is None else self.matrix
        labels, valid = self.normalizer.split(labels)
        logarithms = _floored(torch.log_softmax(scores, 1), math.log(_LEAST_PROBABILITY))
        self.check_range(labels, scores.shape[1])
        weights = matrix.to(scores.device)[labels.squeeze(1)].movedim(-1, 1)
        terms = weights * logarithms
        if valid is not None:
            terms = terms * valid
        loss = -terms.sum() / self.normalizer.of_labels(len(labels), labels.numel(), valid)
        return (loss,) if len(self.top_shapes) == 1 else (loss, torch.softmax(bottoms[0].detach(), self.axis))


def _floored(values: torch.Tensor, least: float) -> torch.Tensor:
    """max(values, least), whose gradient passes everywhere."""
    return values + (values.clamp_min(least) - values).detach()


def _rows(values: torch.Tensor) -> torch.Tensor:
    """(N, values of a sample), also of (N) and where N is 0."""
    return values.reshape(len(values), prod(values.shape[1:]))


_L2 = 2  # HingeLossParameter.Norm
_DISTANCE_FLOOR = 1e-4  # added to a distance before the gradient is divided by it, as in Caffe


class _PairLoss(Layer):
    num_bottoms = (2, 2)
    makes_own_top = True
    default_loss_weight = 1.0
    takes_scores = True

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
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

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        super().build(spec, bottom_shapes)
        self.check_counts(bottom_shapes)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        difference = a - b.reshape(a.shape)
        return (difference.square().sum() / (2 * max(1, len(a))),)


class HingeLoss(_PairLoss):
    """loss = sum(max(0, 1 - t x)^p) / N, t = 1 at the label's class and -1 elsewhere; p = 1 (L1) or 2 (L2)."""

    takes_integers = True
    settings = ("hinge_loss_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        super().build(spec, bottom_shapes)
        scores, labels = bottom_shapes
        if prod(labels) != labels[0]:
            raise spec.error(f"labels of shape {text(labels)}; each of {scores[0]} samples has one", "bottom")
        self.is_squared = spec.message.hinge_loss_param.norm == _L2

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores, labels = _rows(scores if scores.is_floating_point() else scores.float()), integers(labels, -1, 1)
        count = scores.shape[1]
        no_class = f"labels are {{least}} to {{most}}, but there are {count} classes, counted from 0"
        signs = self.at_numbers(labels, count, lambda: torch.ones_like(scores).scatter_(1, labels, -1.0), no_class)
        margins = torch.relu(1 + signs * scores)
        if self.is_squared:
            margins = margins.square()
        return (margins.sum() / max(1, len(scores)),)


class SigmoidCrossEntropyLoss(_PairLoss):
    """loss = -sum(t log p + (1 - t) log(1 - p)) / normalizer, p = 1 / (1 + exp(-x)), without overflow.
    Targets t that are `ignore_label` do not count. The default normalizer is BATCH_SIZE (N)."""

    settings = ("sigmoid_param", "loss_param")

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        super().build(spec, bottom_shapes)
        self.check_counts(bottom_shapes)
        self.normalizer = LossNormalizer.of(spec, default=BATCH_SIZE)
        self.is_uneven = self.normalizer.is_uneven

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        targets = targets.detach().reshape(x.shape)
        valid = self.normalizer.valid(targets.int())
        terms = F.binary_cross_entropy_with_logits(x, targets, reduction="none")
        if valid is not None:
            terms = terms.where(valid, torch.zeros_like(terms))
        return (terms.sum() / self.normalizer.of_labels(len(x), x.numel(), valid),)


class ContrastiveLoss(_PairLoss):
    """loss = sum(y d^2 + (1 - y) max(margin - d, 0)^2) / (2 N), d = |a - b| of each sample, y = 1 for a similar pair.
    `legacy_version`: max(margin - d^2, 0) for other pairs. Reference: Hadsell, Chopra, LeCun, 2006."""

    num_bottoms = (3, 3)
    settings = ("contrastive_loss_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        super().build(spec, bottom_shapes)
        a, b, similar = bottom_shapes
        if a != b or prod(a[2:]) != 1 or prod(similar) != a[0]:
            raise spec.error(
                f"bottoms of shapes {text(a)}, {text(b)} and {text(similar)}; they must be N x C, N x C and N", "bottom"
            )
        self.margin = spec.finite("contrastive_loss_param", "margin")
        self.is_legacy = spec.message.contrastive_loss_param.legacy_version

    def forward(self, a: torch.Tensor, b: torch.Tensor, similar: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args = _rows(a - b), similar.reshape(-1) != 0, self.margin, self.is_legacy
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
        return terms.sum() / (2 * max(1, len(squares)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        difference, pull = ctx.saved_tensors
        return difference * (pull * (gradient / max(1, len(pull))))[:, None], None, None, None
