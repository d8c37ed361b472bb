"""SoftmaxWithLoss and Accuracy: class scores against labels; and the normalizer of a loss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from samovar.frontends.caffe.layers import kernels
from samovar.frontends.caffe.layers.base import Layer, integers
from samovar.frontends.caffe.spec import LayerSpec, Shape, text

FULL, VALID, BATCH_SIZE, NONE = 0, 1, 2, 3  # LossParameter.NormalizationMode


@dataclass(frozen=True, slots=True)
class LossNormalizer:
    """A loss is divided by the number of labels that are not `ignore_label` (VALID), of all labels (FULL), of samples
    (BATCH_SIZE), or by 1 (NONE), at least by 1. The older field `normalize` means VALID (true) or BATCH_SIZE (false).
    """

    mode: int
    ignore_label: int | None

    @classmethod
    def of(cls, spec: LayerSpec, default: int) -> "LossNormalizer":
        settings = spec.message.loss_param
        mode = default
        if settings.HasField("normalization"):
            mode = settings.normalization
        elif settings.HasField("normalize"):
            mode = VALID if settings.normalize else BATCH_SIZE
        return cls(mode, settings.ignore_label if settings.HasField("ignore_label") else None)

    @property
    def is_uneven(self) -> bool:
        return self.mode == NONE or (self.mode == VALID and self.ignore_label is not None)

    def valid(self, labels: torch.Tensor) -> torch.Tensor | None:
        """A mask of the labels that count; None for all of them."""
        return None if self.ignore_label is None else labels != self.ignore_label

    def split(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Labels with class 0 for those to ignore, and a mask of the valid ones (None for all of them)."""
        valid = self.valid(labels)
        return (labels, None) if valid is None else (labels.where(valid, torch.zeros_like(labels)), valid)

    def of_labels(self, num_samples: int, num_labels: int, valid: torch.Tensor | None) -> float:
        num_valid = num_labels if valid is None or self.mode != VALID else int(valid.sum())
        return self.of_counts(num_samples, num_labels, num_valid)

    def of_counts(self, num_samples: int, num_labels: int, num_valid: int) -> float:
        return float(max(1, {VALID: num_valid, FULL: num_labels, BATCH_SIZE: num_samples, NONE: 1}[self.mode]))


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
        shape, scores = scores.shape, scores.float() if not scores.is_floating_point() else scores
        outer, inner = prod(shape[: self.axis]), prod(shape[self.axis + 1 :])
        tail = () if inner == 1 else (inner,)
        if scores.dim() != 2 + len(tail):
            scores = scores.reshape(outer, shape[self.axis], *tail)
        return scores, integers(labels, outer, 1, *tail)

    def at_label(self, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The value of each label's class; InputError for a label that is not a class."""
        count = values.shape[1]
        return self.at_numbers(labels, count, lambda: values.gather(1, labels), _no_class(count))

    def check_range(self, labels: torch.Tensor, num_classes: int) -> None:
        """InputError if a label is not a class."""
        self.check_numbers(labels, num_classes, _no_class(num_classes))


def _no_class(num_classes: int) -> str:
    return (
        f"labels are {{least}} to {{most}}, but the scores have {num_classes} classes, counted from 0; num_output "
        "of the layer before it must be the number of classes"
    )


class SoftmaxWithLoss(Classification):
    """loss = -sum(log softmax(x)[label]) / normalizer, over labels that are not `ignore_label`.

    normalizer, at least 1: these labels (VALID), all labels (FULL), the sizes before `axis` (BATCH_SIZE), or 1 (NONE).
    The logarithm stops at that of the smallest normal float32; the gradient does not.
    """

    makes_own_top = True
    default_loss_weight = 1.0
    settings = ("softmax_param", "loss_param")

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        self.axis = spec.axis(bottom_shapes[0], spec.message.softmax_param.axis, "softmax_param", "axis")
        self.mixes_samples = self.axis == 0
        self.check_labels(spec, *bottom_shapes)
        self.normalizer = LossNormalizer.of(spec, default=VALID)
        self.is_uneven = self.normalizer.is_uneven
        self.top_shapes = [()]

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores, labels = self.split(scores, labels)
        if kernels.takes_scores(scores, labels):
            return (self._native_loss(scores, labels),)
        labels, valid = self.normalizer.split(labels)
        log_probabilities = torch.log_softmax(scores.detach(), 1)
        at_label = self.at_label(log_probabilities, labels).clamp_min(_LOG_FLOAT_MIN)
        if valid is not None:
            at_label = at_label * valid
        scale = 1.0 / self.normalizer.of_labels(len(labels), labels.numel(), valid)
        gradient = _gradient(log_probabilities, labels, valid) if scores.requires_grad else None
        loss: torch.Tensor = _KnownLoss.apply(scores, at_label.sum() * -scale, gradient, scale)  # type: ignore[no-untyped-call]
        return (loss,)

    def _native_loss(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found = kernels.softmax_loss(scores, labels, self.normalizer.ignore_label, _LOG_FLOAT_MIN)
        if found is None:
            self.check_range(self.normalizer.split(labels)[0], scores.shape[1])
            raise AssertionError("a label that is a class was refused")
        total, num_valid, gradient = found
        scale = 1.0 / self.normalizer.of_counts(len(labels), labels.numel(), num_valid)
        value = scores.new_full((), total * scale)
        loss: torch.Tensor = _KnownLoss.apply(scores, value, gradient, scale)  # type: ignore[no-untyped-call]
        return loss


def _gradient(log_probabilities: torch.Tensor, labels: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """softmax(x) - one_hot(label) at valid labels, else 0; overwrites the logarithms."""
    result = log_probabilities.exp_()
    result.scatter_add_(1, labels, result.new_full((), -1.0).expand(labels.shape))
    return result if valid is None else result.mul_(valid)


class _KnownLoss(torch.autograd.Function):
    """A loss whose gradient is known; backward gives it times `scale`."""

    @staticmethod
    def forward(ctx: Any, _scores: torch.Tensor, loss: torch.Tensor, gradient: torch.Tensor, scale: float) -> Any:
        ctx.gradient, ctx.scale = gradient, scale
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.gradient * (upstream * ctx.scale), None, None, None


class Accuracy(Classification):
    """The share of labels whose score is among the `top_k` best; ties count against the label.

    A label is right if fewer than `top_k` other classes have a score >= its own, and no score is NaN. (Caffe counts a
    label with NaN as right.) 0 if all labels are `ignore_label`. A second top holds the share of each class. No
    gradient.
    """

    num_tops = (1, 2)
    has_gradient = False
    settings = ("accuracy_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        settings, scores = spec.message.accuracy_param, bottom_shapes[0]
        self.axis = spec.axis(scores, settings.axis, "accuracy_param", "axis")
        self.top_k = settings.top_k
        if not 1 <= self.top_k <= scores[self.axis]:
            raise spec.error(
                f"top_k: {self.top_k} of {scores[self.axis]} classes; allowed are 1 to {scores[self.axis]}",
                "accuracy_param.top_k",
            )
        self.check_labels(spec, *bottom_shapes)
        self.ignore_label = settings.ignore_label if settings.HasField("ignore_label") else None
        self.per_class = len(spec.tops) == 2
        self.top_shapes = [(), (scores[self.axis],)][: len(spec.tops)]

    @torch.no_grad()
    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores, labels = self.split(scores, labels)
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
