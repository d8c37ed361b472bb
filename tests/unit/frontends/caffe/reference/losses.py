"""Losses and Accuracy."""

import numpy as np

from tests.unit.frontends.caffe.reference.case import Array, Case, Draw

_MODES = (
    "",
    "normalization: FULL",
    "normalization: VALID",
    "normalization: BATCH_SIZE",
    "normalization: NONE",
    "normalize: true",
    "normalize: false",
    "normalize: false normalization: FULL",
)


def _normalizer(text: str, default: str, num_samples: int, num_labels: int, num_valid: int) -> float:
    names = {"normalize: true": "VALID", "normalize: false": "BATCH_SIZE", "": default}
    mode = names.get(text, text.rsplit("normalization: ", maxsplit=1)[-1])
    return max(1, {"FULL": num_labels, "VALID": num_valid, "BATCH_SIZE": num_samples, "NONE": 1}[mode])


class _Labelled:
    """Scores with classes on one axis, labels for all other positions, some of them perhaps ignored."""

    def __init__(self, draw: Draw) -> None:
        lead, self.classes, tail = draw.shape(1, 2), draw.size(2, 4), draw.shape(0, 2)
        self.axis, self.outer = len(lead), int(np.prod(lead))
        self.scores = draw.values(*lead, self.classes, *tail, scale=2)
        self.labels = draw.labels(*lead, *tail, classes=self.classes)
        self.ignored = draw.one_of(None, None, 0, 1, -1)
        if self.ignored == -1:
            self.labels.flat[0] = -1
        self.mode = draw.one_of(*_MODES)
        ignore = "" if self.ignored is None else f"ignore_label: {self.ignored}"
        self.settings = f"loss_param {{ {self.mode} {ignore} }}"

    def rows(self, x: Array) -> Array:
        return np.moveaxis(x, self.axis, -1).reshape(-1, self.classes)

    def divisor(self) -> float:
        valid = int((self.labels != self.ignored).sum()) if self.ignored is not None else self.labels.size
        return _normalizer(self.mode, "VALID", self.outer, self.labels.size, valid)

    def pairs(self, x: Array, labels: Array) -> list[tuple[Array, int]]:
        """Row of log probabilities and label, of the positions that count."""
        rows = self.rows(x)
        rows = rows - rows.max(1, keepdims=True)
        rows = rows - np.log(np.exp(rows).sum(1, keepdims=True))
        return [(row, int(label)) for row, label in zip(rows, labels.ravel(), strict=True) if label != self.ignored]


def softmax_with_loss(draw: Draw) -> Case:
    it = _Labelled(draw)

    def reference(x: Array, labels: Array) -> list[Array]:
        return [np.array(-sum(row[label] for row, label in it.pairs(x, labels)) / it.divisor())]

    settings = f"softmax_param {{ axis: {it.axis} }} {it.settings}"
    return Case("SoftmaxWithLoss", settings, [it.scores, it.labels], reference, fixed=frozenset([1]))


def infogain_loss(draw: Draw) -> Case:
    it = _Labelled(draw)
    matrix = draw.values(it.classes, it.classes)

    def reference(x: Array, labels: Array, h: Array) -> list[Array]:
        return [np.array(-sum((h[label] * row).sum() for row, label in it.pairs(x, labels)) / it.divisor())]

    settings = f"infogain_loss_param {{ axis: {it.axis} }} {it.settings}"
    return Case("InfogainLoss", settings, [it.scores, it.labels, matrix], reference, fixed=frozenset([1, 2]))


def accuracy(draw: Draw) -> Case:
    it = _Labelled(draw)
    top_k, per_class = draw.integer(1, it.classes), draw.one_of(True, False)
    scores = np.round(it.scores)  # with ties

    def reference(x: Array, labels: Array) -> list[Array]:
        right, count = np.zeros(it.classes), np.zeros(it.classes)
        for row, label in zip(it.rows(x), labels.ravel().astype(int), strict=True):
            if label != it.ignored:
                count[label] += 1
                right[label] += sum(row[c] >= row[label] for c in range(it.classes) if c != label) < top_k
        shares = right / np.maximum(count, 1)
        return [np.array(right.sum() / max(count.sum(), 1)), shares][: 1 + per_class]

    ignore = "" if it.ignored is None else f"ignore_label: {it.ignored}"
    settings = f"accuracy_param {{ top_k: {top_k} axis: {it.axis} {ignore} }}"
    tops = 1 + per_class
    return Case("Accuracy", settings, [scores, it.labels], reference, num_tops=tops, has_gradient=False, phase="TEST")


def multinomial_logistic_loss(draw: Draw) -> Case:
    count, classes = draw.integer(1, 4), draw.size(1, 4)

    def reference(p: Array, labels: Array) -> list[Array]:
        return [np.array(-np.log(p[np.arange(count), labels.astype(int).ravel()]).sum() / count)]

    inputs = [draw.values(count, classes, least=0.1), draw.labels(count, classes=classes)]
    return Case("MultinomialLogisticLoss", "", inputs, reference, fixed=frozenset([1]))


def euclidean_loss(draw: Draw) -> Case:
    shape = draw.shape()
    inputs = [draw.values(*shape), draw.values(*shape)]
    return Case("EuclideanLoss", "", inputs, lambda a, b: [np.array(((a - b) ** 2).sum() / (2 * len(a)))])


def hinge_loss(draw: Draw) -> Case:
    count, classes, norm = draw.integer(1, 4), draw.size(1, 4), draw.one_of("L1", "L2")

    def reference(x: Array, labels: Array) -> list[Array]:
        signs = np.where(np.arange(classes) == labels.astype(int).reshape(-1, 1), -1, 1)
        margins = np.maximum(0, 1 + signs * x)
        return [np.array((margins if norm == "L1" else margins**2).sum() / count)]

    inputs = [draw.values(count, classes, away=[1, -1]), draw.labels(count, classes=classes)]
    return Case("HingeLoss", f"hinge_loss_param {{ norm: {norm} }}", inputs, reference, fixed=frozenset([1]))


def sigmoid_cross_entropy_loss(draw: Draw) -> Case:
    shape, mode, ignored = draw.shape(), draw.one_of(*_MODES), draw.one_of(None, -1)
    targets = draw.rng.uniform(0, 1, shape).astype(np.float32)
    if ignored is not None:
        targets.flat[0] = ignored

    def reference(x: Array, t: Array) -> list[Array]:
        counts = t != -1 if ignored is not None else np.ones(t.shape, bool)
        terms = t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)
        return [np.array((terms * counts).sum() / _normalizer(mode, "BATCH_SIZE", len(x), x.size, int(counts.sum())))]

    ignore = "" if ignored is None else f"ignore_label: {ignored}"
    settings = f"loss_param {{ {mode} {ignore} }}"
    inputs = [draw.values(*shape, scale=3), targets]
    return Case("SigmoidCrossEntropyLoss", settings, inputs, reference, fixed=frozenset([1]))


def contrastive_loss(draw: Draw) -> Case:
    """Distances of 30 and more: there the 1e-4 that Caffe adds to a distance is far below the tolerance."""
    count, legacy = draw.integer(1, 4), draw.one_of(True, False)
    a, b = draw.values(count, 3, scale=5), 30 + draw.values(count, 3, scale=5)
    squares = ((a - b).astype(np.float64) ** 2).sum(1)
    margin = round(float(np.median(squares if legacy else np.sqrt(squares))) + 7.03, 2)

    def reference(a: Array, b: Array, like: Array) -> list[Array]:
        squares = ((a - b) ** 2).sum(1)
        unlike = np.maximum(margin - squares, 0) if legacy else np.maximum(margin - np.sqrt(squares), 0) ** 2
        return [np.array(np.where(like != 0, squares, unlike).sum() / (2 * count))]

    settings = f"contrastive_loss_param {{ margin: {margin} legacy_version: {str(legacy).lower()} }}"
    inputs = [a, b, draw.labels(count, classes=2)]
    return Case("ContrastiveLoss", settings, inputs, reference, fixed=frozenset([2]))


CASES = {
    f.__name__: f
    for f in (
        *(softmax_with_loss, infogain_loss, accuracy, multinomial_logistic_loss, euclidean_loss, hinge_loss),
        *(sigmoid_cross_entropy_loss, contrastive_loss),
    )
}
