"""SoftmaxWithLoss and Accuracy: class scores against labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from samovar.frontends.caffe.layers import kernels
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.normalizer import VALID, LossNormalizer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape, text

_LOG_FLOAT_MIN = math.log(torch.finfo(torch.float32).tiny)  # Caffe takes no logarithm of anything smaller


class Classification(Layer):
    """Scores with classes along `axis`, and one label for each position of the other axes."""

    num_bottoms = (2, 2)
    takes_integers = True
    takes_scores = True
    axis: int

    def check_labels(self, spec: LayerSpec, scores: Shape, labels: Shape) -> None:
        num_scores = prod(scores) // scores[self.axis]
        if prod(labels) != num_scores:
            raise spec.error(
                f"labels of shape {text(labels)} are {prod(labels)}, but scores of shape {text(scores)} with "
                f"classes on axis {self.axis} need {num_scores}",
                "bottom",
            )

    def split(self, scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores as (outer, classes, inner), labels as int64 (outer, 1, inner); both 2-D where inner is 1."""
        shape = scores.shape
        outer, inner = prod(shape[: self.axis]), prod(shape[self.axis + 1 :])
        tail = () if inner == 1 else (inner,)
        if scores.dim() != 2 + len(tail):
            scores = scores.reshape(outer, shape[self.axis], *tail)
        return scores, labels.long().reshape(outer, 1, *tail)

    def at_label(self, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The value of each label's class; InputError for a label that is no class."""
        self.check_before(labels, values)
        try:
            return values.gather(1, labels)
        except RuntimeError:
            self.check_range(labels, values.shape[1])
            raise

    def check_before(self, labels: torch.Tensor, values: torch.Tensor) -> None:
        """`check_range` where torch would only say so by ending the process: on a GPU."""
        if values.device.type != "cpu":
            self.check_range(labels, values.shape[1])

    def check_range(self, labels: torch.Tensor, num_classes: int) -> None:
        """InputError where a label is no class."""
        least, most = int(labels.min()), int(labels.max())
        if not 0 <= least <= most < num_classes:
            raise self.spec.error(
                f"labels are {least} to {most}, but the scores have {num_classes} classes, counted from 0; num_output "
                "of the layer before it must be the number of classes"
            ) from None


class SoftmaxWithLoss(Classification):
    """loss = -sum(log softmax(x)[label]) / normalizer, over labels that are not `ignore_label`.

    normalizer: VALID the number of those, FULL all labels, BATCH_SIZE the sizes before `axis`, NONE 1; at
    least 1. The logarithm stops at that of the smallest normal float32; the gradient does not.
    """

    makes_own_top = True
    default_loss_weight = 1.0
    settings = ("softmax_param", "loss_param")

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.axis = spec.axis(bottom_shapes[0], spec.message.softmax_param.axis, "softmax_param", "axis")
        self.mixes_samples = self.axis == 0
        self.check_labels(spec, *bottom_shapes)
        self.normalizer = LossNormalizer.of(spec, default=VALID)
        self.top_shapes = [()]

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores, labels = self.split(*bottoms)
        if kernels.takes_scores(scores, labels):
            return (self._native_loss(scores, labels),)
        labels, valid = self._split_labels(labels)
        log_probabilities = torch.log_softmax(scores.detach(), 1)
        at_label = self.at_label(log_probabilities, labels).clamp_min(_LOG_FLOAT_MIN)
        if valid is not None:
            at_label = at_label * valid
        scale = -1.0 / self.normalizer.of_labels(len(labels), labels.numel(), valid)
        saved = _SavedLoss(log_probabilities, labels, valid, scale)
        loss: torch.Tensor = _SoftmaxLoss.apply(scores, at_label.sum() * scale, saved)  # type: ignore[no-untyped-call]
        return (loss,)

    def _split_labels(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Labels with class 0 for those to ignore, and which are valid (None for all of them)."""
        valid = self.normalizer.valid(labels)
        return (labels, None) if valid is None else (labels.where(valid, torch.zeros_like(labels)), valid)

    def _native_loss(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found = kernels.softmax_loss(scores, labels, self.normalizer.ignore_label, _LOG_FLOAT_MIN)
        if found is None:
            self.check_range(self._split_labels(labels)[0], scores.shape[1])
            raise AssertionError("a label that is a class was refused")
        total, num_valid, gradient = found
        scale = 1.0 / self.normalizer.of_counts(len(labels), labels.numel(), num_valid)
        loss: torch.Tensor = _KnownLoss.apply(scores, total * scale, gradient, scale)  # type: ignore[no-untyped-call]
        return loss


class _KnownLoss(torch.autograd.Function):
    """A loss whose gradient is known; backward gives it times `scale`."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, loss: float, gradient: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.gradient, ctx.scale = gradient, scale
        return scores.new_full((), loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.gradient * (upstream * ctx.scale), None, None, None


@dataclass(frozen=True, slots=True)
class _SavedLoss:
    log_probabilities: torch.Tensor
    labels: torch.Tensor
    valid: torch.Tensor | None
    scale: float  # -1 / normalizer


class _SoftmaxLoss(torch.autograd.Function):
    """Passes the loss on; backward gives (softmax(x) - one_hot(label)) / normalizer at valid labels."""

    @staticmethod
    def forward(ctx: Any, _scores: torch.Tensor, loss: torch.Tensor, saved: _SavedLoss) -> torch.Tensor:
        ctx.saved = saved
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved: _SavedLoss = ctx.saved
        result = saved.log_probabilities.exp()
        minus_one = result.new_full((), -1.0).expand(saved.labels.shape)
        result.scatter_add_(1, saved.labels, minus_one)
        if saved.valid is not None:
            result *= saved.valid
        return result.mul_(gradient * -saved.scale), None, None


class Accuracy(Classification):
    """The share of labels whose score is among the `top_k` best; ties count against the label.

    A label is right where fewer than `top_k` other classes have a score >= its own, and no score is NaN: Caffe, which
    compares with NaN, counts such a label as right. Without any label that is
    not `ignore_label`, 0. A second top holds the share of each class. No gradient.
    """

    num_tops = (1, 2)
    has_gradient = False
    settings = ("accuracy_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        settings, scores = spec.message.accuracy_param, bottom_shapes[0]
        self.axis = spec.axis(scores, settings.axis, "accuracy_param", "axis")
        self.top_k = settings.top_k
        if not 1 <= self.top_k <= scores[self.axis]:
            raise spec.error(
                f"top_k: {self.top_k} of {scores[self.axis]} classes; allowed are 1 to {scores[self.axis]}",
                "accuracy_param",
                "top_k",
            )
        self.check_labels(spec, *bottom_shapes)
        self.ignore_label = settings.ignore_label if settings.HasField("ignore_label") else None
        self.per_class = len(spec.tops) == 2
        self.top_shapes = [(), (scores[self.axis],)][: len(spec.tops)]

    @torch.no_grad()
    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores, labels = self.split(*bottoms)
        valid = torch.ones_like(labels, dtype=torch.bool)
        if self.ignore_label is not None:
            valid = labels != self.ignore_label
            labels = labels.where(valid, torch.zeros_like(labels))
        num_at_least = (scores >= self.at_label(scores, labels)).sum(1, keepdim=True)
        are_numbers = ~scores.isnan().any(1, keepdim=True)
        right = ((num_at_least <= self.top_k) & are_numbers & valid).to(scores.dtype)
        valid = valid.to(scores.dtype)
        total = right.sum() / valid.sum().clamp_min(1)
        if not self.per_class:
            return (total,)
        zeros = scores.new_zeros(scores.shape[1])
        right_of_class = zeros.index_add(0, labels.flatten(), right.flatten())
        num_of_class = zeros.index_add(0, labels.flatten(), valid.flatten())
        return total, right_of_class / num_of_class.clamp_min(1)
