"""MultinomialLogisticLoss and InfogainLoss: probabilities of classes against labels."""

import math
from collections.abc import Sequence

import torch

from samovar.formats.caffe.blob import read_blob
from samovar.frontends.caffe.layers.classification import Classification
from samovar.frontends.caffe.layers.normalizer import VALID, LossNormalizer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.paths import find_named
from samovar.frontends.caffe.spec import LayerSpec, Shape, text

_LEAST_PROBABILITY = 1e-20  # below it Caffe takes no logarithm


class MultinomialLogisticLoss(Classification):
    """loss = -sum(log max(p[label], 1e-20)) / N, p (N, classes) being probabilities already."""

    makes_own_top = True
    default_loss_weight = 1.0

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        probabilities, labels = bottom_shapes
        if not probabilities or math.prod(labels) != probabilities[0]:
            raise spec.error(
                f"bottoms of shapes {text(probabilities)} and {text(labels)}; each sample has one label", "bottom"
            )
        self.top_shapes = [()]

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        probabilities = bottoms[0].flatten(1)
        at_label = self.at_label(probabilities, bottoms[1].long().reshape(-1, 1))
        return (-_floored(at_label, _LEAST_PROBABILITY).log().sum() / len(probabilities),)


class InfogainLoss(Classification):
    """loss = -sum over k of H[label, k] log(max(softmax(x)[k], 1e-20)) / normalizer.

    H (classes, classes) is the third bottom, or read from the binaryproto `source`; it gets no gradient. Labels
    that are `ignore_label` are left out; normalizer as in SoftmaxWithLoss. The gradient ignores the floor.
    """

    num_bottoms = (2, 3)
    makes_own_top = True
    default_loss_weight = 1.0
    settings = ("infogain_loss_param", "softmax_param", "loss_param")

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        scores = bottom_shapes[0]
        self.axis = spec.axis(scores, spec.message.infogain_loss_param.axis, "infogain_loss_param", "axis")
        self.check_labels(spec, scores, bottom_shapes[1])
        self.normalizer = LossNormalizer.of(spec, default=VALID)
        self.top_shapes = [()]
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
        where = f"{spec.where('infogain_loss_param', 'source')}: source"
        path = find_named(spec.message.infogain_loss_param.source, spec.path, where)
        return torch.from_numpy(read_blob(path, "infogain matrix"))

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores, labels = self.split(*bottoms[:2])
        matrix = bottoms[2].detach().reshape(scores.shape[1], -1) if self.matrix is None else self.matrix
        valid = self.normalizer.valid(labels)
        if valid is not None:
            labels = labels.where(valid, torch.zeros_like(labels))
        logarithms = _floored(torch.log_softmax(scores, 1), math.log(_LEAST_PROBABILITY))
        self.check_range(labels, scores.shape[1])
        weights = matrix.to(scores.device)[labels.squeeze(1)].movedim(-1, 1)
        terms = weights * logarithms
        if valid is not None:
            terms = terms * valid
        return (-terms.sum() / self.normalizer.of_labels(len(labels), labels.numel(), valid),)


def _floored(values: torch.Tensor, least: float) -> torch.Tensor:
    """max(values, least), whose gradient passes everywhere."""
    return values + (values.clamp_min(least) - values).detach()
