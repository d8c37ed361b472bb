"""A small net that learns scikit-learn's digits, in NumPy: what `samovar predict --learn` teaches."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from samovar.core.layout import Layout, ParameterSpec
from samovar.data.digits import NUM_TEST, load
from samovar.predict.learning import Learner
from samovar.predict.runs import Workplace
from samovar.strategies.defaults import MomentumShares
from samovar.transports.base import Array

NUM_HIDDEN, NUM_CLASSES, NUM_PIXELS = 64, 10, 64
BATCH, RATE, MOMENTUM, EPOCHS = 64, 0.02, 0.9, 30
_LAYOUT = Layout.pack(
    [ParameterSpec("hidden", (NUM_PIXELS + 1, NUM_HIDDEN)), ParameterSpec("scores", (NUM_HIDDEN + 1, NUM_CLASSES))]
)


@dataclass(frozen=True)
class Digits:
    """`num_epochs` over 1,437 digits; a step of all workers together has `batch_size` of them.

    The net has 64 hidden units. Its solver is SGD with rate 0.02 and momentum 0.9.
    """

    batch_size: int = BATCH
    num_epochs: int = EPOCHS
    layout: Layout = _LAYOUT
    momentum: float = MOMENTUM

    @property
    def num_steps(self) -> int:
        return max(1, self.num_epochs * len(_digits()[1]) // self.batch_size)

    def start(self, weights: Array, seed: int) -> None:
        """Gaussian, of variance 2 / inputs; biases zero."""
        draw = np.random.default_rng([seed, 4711])
        for matrix in _matrices(weights):
            matrix[:-1] = draw.standard_normal(matrix[:-1].shape) * math.sqrt(2 / (len(matrix) - 1))

    def learner(self, place: Workplace, shares: MomentumShares, rate: float, seed: int) -> Learner:
        return _DigitsLearner(place, self.batch_size, shares, RATE * rate, seed)

    def tested(self, weights: Array) -> tuple[float, float]:
        images, labels = _digits()[2:]
        with np.errstate(all="ignore"):  # training that diverges is one of the outcomes
            scores = _forward(weights, images)[1]
            own = scores[np.arange(len(labels)), labels]
            highest = scores.max(axis=1)
            loss = np.mean(np.log(np.exp(scores - highest[:, None]).sum(axis=1)) + highest - own)
        return float(loss), float((scores.argmax(axis=1) == labels).mean())


class _DigitsLearner:
    """A worker's samples, and SGD with its share of the momentum."""

    def __init__(self, place: Workplace, batch_size: int, shares: MomentumShares, rate: float, seed: int) -> None:
        group = place.transport.group
        images, labels = _digits()[:2]
        self._batch = batch_size // group.world_size
        self._images, self._labels = images[group.rank :: group.world_size], labels[group.rank :: group.world_size]
        self._order = np.random.default_rng([seed, group.rank])
        self._place, self._history = place, np.zeros_like(place.weights)
        self._left: list[int] = []
        self._momentum, self._rate, self._looks_ahead = np.float32(shares.worker), rate, shares.is_nesterov

    def backward(self) -> None:
        if len(self._left) < self._batch:
            self._left = self._order.permutation(len(self._labels)).tolist()
        rows, self._left = self._left[: self._batch], self._left[self._batch :]
        _write_gradient(self._place.gradients, self._place.weights, self._images[rows], self._labels[rows])

    def update(self, scale: float) -> None:
        with np.errstate(all="ignore"):
            self._history *= self._momentum
            step = np.float32(self._rate * scale) * self._place.gradients
            self._history += step
            self._place.weights -= self._momentum * self._history + step if self._looks_ahead else self._history


_MOST_IN_A_STEP = 1_024  # of 1,437


def digits_for(num_workers: int, shares_batch: bool) -> Digits | None:
    """Workers share a batch of 64, or have one each; None if that is less than a sample, or most of the digits."""
    batch_size = BATCH - BATCH % num_workers if shares_batch else BATCH * num_workers
    return Digits(batch_size) if num_workers <= batch_size <= _MOST_IN_A_STEP else None


@cache
def _digits() -> tuple[Array, Array, Array, Array]:
    """Images and labels to learn from, and to test with."""
    images_N88, labels_N = load()
    order = np.random.default_rng(1797).permutation(len(labels_N))
    images, labels = (images_N88.reshape(-1, NUM_PIXELS)[order] / 16.0).astype(np.float32), labels_N[order]
    return images[NUM_TEST:], labels[NUM_TEST:], images[:NUM_TEST], labels[:NUM_TEST]


def _matrices(flat: Array) -> list[Array]:
    """Views of both layers' weights; the last row is the bias."""
    return [flat[entry.offset : entry.stop].reshape(entry.spec.shape) for entry in _LAYOUT.entries]


def _forward(weights: Array, images: Array) -> tuple[Array, Array]:
    hidden, scores = _matrices(weights)
    active = np.maximum(images @ hidden[:-1] + hidden[-1], 0)
    return active, active @ scores[:-1] + scores[-1]


def _write_gradient(gradients: Array, weights: Array, images: Array, labels: Array) -> None:
    """Of the mean cross entropy."""
    with np.errstate(all="ignore"):
        active, found = _forward(weights, images)
        wrong = np.exp(found - found.max(axis=1, keepdims=True))
        wrong /= wrong.sum(axis=1, keepdims=True)
        wrong[np.arange(len(labels)), labels] -= 1
        wrong /= len(labels)
        hidden, scores = _matrices(gradients)
        scores[:-1], scores[-1] = active.T @ wrong, wrong.sum(axis=0)
        back = (wrong @ _matrices(weights)[1][:-1].T) * (active > 0)
        hidden[:-1], hidden[-1] = images.T @ back, back.sum(axis=0)
