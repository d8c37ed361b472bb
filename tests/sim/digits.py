"""Workers that learn the digits at a center, simulated: real gradients of a small net, and a virtual clock."""

import math
from dataclasses import dataclass
from functools import cache, partial
from random import Random

import numpy as np
from sklearn.datasets import load_digits

from samovar.box.window_center import WindowCenter
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import dissemination_barrier
from samovar.core.layout import Layout, ParameterSpec
from samovar.core.machine import Link, MachineModel
from samovar.strategies.base import Buffers
from samovar.strategies.build import build_strategy
from samovar.strategies.center_steps import CenterSeat
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import shared_momentum
from samovar.transports.base import Array, Region
from samovar.transports.sim.world import SimConfig, SimTransport, simulate

NUM_HIDDEN, NUM_CLASSES, NUM_PIXELS, NUM_TEST = 64, 10, 64, 360
LAYOUT = Layout.pack(
    [
        ParameterSpec("hidden", (NUM_PIXELS + 1, NUM_HIDDEN)),
        ParameterSpec("scores", (NUM_HIDDEN + 1, NUM_CLASSES)),
    ]
)
TOTAL_BATCH, RATE, MOMENTUM = 64, 0.02, 0.9
# A step takes 10 ms or up to twice that; an exchange about 3 ms, so that 16 workers at period 1 wait for the center.
STEP_S = 0.01
MACHINE = MachineModel(Link(1e-4, 1e8))


@dataclass(frozen=True)
class Training:
    """`num_epochs` over all digits, a step's batch shared by `num_workers`; no strategy: one worker alone."""

    num_workers: int
    strategy: StrategyConfig | None
    num_epochs: int = 30
    seed: int = 0


def accuracy(training: Training) -> float:
    """Of the center, or of the one worker, on the test digits."""
    weights = alone(training) if training.strategy is None else together(training)
    images, labels = digits()[2:]
    with np.errstate(all="ignore"):
        scores = forward(weights, images)[1]
    return float((scores.argmax(axis=1) == labels).mean())


def alone(training: Training) -> Array:
    learner = Learner(training, 0, MOMENTUM)
    weights = start(training.seed)
    for _ in range(learner.num_steps):
        learner.move(weights, learner.gradient(weights), 1.0)
    return weights


def together(training: Training) -> Array:
    program = partial(train, training)
    return simulate(program, training.num_workers, SimConfig(training.seed, MACHINE, check=False)).results[0]


def train(training: Training, transport: SimTransport) -> Array:
    rank, world_size = transport.group.rank, transport.group.world_size
    size = LAYOUT.num_elements
    window = transport.open_window("model", 2 * size * 4, 0)
    weights, gradients = (Region.of(window, half * size * 4, size, np.float32) for half in range(2))
    collectives = PlannedCollectives(transport, lambda _num_bytes: "tree")
    barrier = collectives.planned("barrier", dissemination_barrier(rank, world_size), weights.part(0, 0))
    forever = partial(transport.deadline, math.inf)
    shares = shared_momentum(training.strategy, MOMENTUM, world_size)
    locks, velocity = shares.config.traits.has_locks, shares.config.traits.has_velocity
    center = WindowCenter(transport, size, with_velocity=velocity, with_locks=locks)
    weights.array[:] = start(training.seed)
    buckets, buffers = LAYOUT.buckets(None), Buffers(weights, gradients)
    seat = CenterSeat(center, rank == 0)
    strategy = build_strategy(shares.config, collectives, buckets, buffers, forever, seat)
    barrier.run(forever())
    learner, pauses = Learner(training, rank, shares.worker), Random(training.seed * world_size + rank)

    def update(_bucket, scale: float) -> None:
        learner.move(weights.array, gradients.array, scale)

    for step in range(learner.num_steps):
        strategy.begin_step(step)
        transport.sleep(STEP_S * (1 + pauses.random() ** 3))
        gradients.array[:] = learner.gradient(weights.array)
        strategy.gradient_final(buckets[0])
        strategy.finish_step(step, update)
    strategy.drain()
    barrier.run(forever())
    return strategy.center().copy()


class Learner:
    """A worker's samples, and SGD with momentum."""

    def __init__(self, training: Training, rank: int, momentum: float) -> None:
        images, labels = digits()[:2]
        self.num_steps = training.num_epochs * len(labels) // TOTAL_BATCH
        self._batch = TOTAL_BATCH // training.num_workers
        self._images, self._labels = images[rank :: training.num_workers], labels[rank :: training.num_workers]
        self._order = np.random.default_rng([training.seed, rank])
        self._history = np.zeros(LAYOUT.num_elements, np.float32)
        self._left: list[int] = []
        self._momentum = np.float32(momentum)

    def gradient(self, weights: Array) -> Array:
        if len(self._left) < self._batch:
            self._left = self._order.permutation(len(self._labels)).tolist()
        rows, self._left = self._left[: self._batch], self._left[self._batch :]
        return loss_gradient(weights, self._images[rows], self._labels[rows])

    def move(self, weights: Array, gradients: Array, scale: float) -> None:
        with np.errstate(all="ignore"):
            self._history *= self._momentum
            self._history += np.float32(RATE * scale) * gradients
            weights -= self._history


@cache
def digits() -> tuple[Array, Array, Array, Array]:
    """Images and labels to learn from, and to test with."""
    found = load_digits()
    order = np.random.default_rng(1797).permutation(len(found.target))
    images, labels = (found.data[order] / 16.0).astype(np.float32), found.target[order]
    return images[NUM_TEST:], labels[NUM_TEST:], images[:NUM_TEST], labels[:NUM_TEST]


def start(seed: int) -> Array:
    """Gaussian, of variance 2 / inputs; biases zero."""
    weights, draw = np.zeros(LAYOUT.num_elements, np.float32), np.random.default_rng([seed, 4711])
    for matrix in matrices(weights):
        matrix[:-1] = draw.standard_normal(matrix[:-1].shape) * math.sqrt(2 / (len(matrix) - 1))
    return weights


def matrices(flat: Array) -> list[Array]:
    """Views of both layers' weights; the last row is the bias."""
    return [flat[entry.offset : entry.stop].reshape(entry.spec.shape) for entry in LAYOUT.entries]


def forward(weights: Array, images: Array) -> tuple[Array, Array]:
    hidden, scores = matrices(weights)
    active = np.maximum(images @ hidden[:-1] + hidden[-1], 0)
    return active, active @ scores[:-1] + scores[-1]


def loss_gradient(weights: Array, images: Array, labels: Array) -> Array:
    """Of the mean cross entropy."""
    with np.errstate(all="ignore"):  # training that diverges is one of the outcomes
        active, found = forward(weights, images)
        wrong = np.exp(found - found.max(axis=1, keepdims=True))
        wrong /= wrong.sum(axis=1, keepdims=True)
        wrong[np.arange(len(labels)), labels] -= 1
        wrong /= len(labels)
        gradient = np.zeros_like(weights)
        hidden, scores = matrices(gradient)
        scores[:-1], scores[-1] = active.T @ wrong, wrong.sum(axis=0)
        back = (wrong @ matrices(weights)[1][:-1].T) * (active > 0)
        hidden[:-1], hidden[-1] = images.T @ back, back.sum(axis=0)
    return gradient
