"""The strategies' rules as plain loops in float64: every rank's weights after each step, and the center's."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Traces = tuple[list[Array], list[Array]]  # per step: weights (P, N), center (N,)
Gradients = Callable[[int, Array], Array]  # (step, weights (P, N)) -> (P, N)


def sync(x: Array, gradients: Gradients, num_steps: int, rate: float) -> Traces:
    weights, centers = [], []
    for step in range(num_steps):
        x = x - rate * gradients(step, x).mean(axis=0)
        weights.append(x)
        centers.append(x.mean(axis=0))
    return weights, centers


def local_sgd(x: Array, gradients: Gradients, num_steps: int, rate: float, period: int) -> Traces:
    weights, centers = [], []
    for step in range(num_steps):
        x = x - rate * gradients(step, x)
        if (step + 1) % period == 0:
            x = np.broadcast_to(x.mean(axis=0), x.shape)
        weights.append(x)
        centers.append(x.mean(axis=0))
    return weights, centers


def diloco(
    x: Array, gradients: Gradients, num_steps: int, rate: float, period: int, outer_rate: float, outer_momentum: float
) -> Traces:
    weights, centers = [], []
    center, velocity = x[0], np.zeros_like(x[0])
    for step in range(num_steps):
        x = x - rate * gradients(step, x)
        delta = center - x.mean(axis=0)
        ahead = outer_momentum * velocity + delta
        moved = center - outer_rate * (delta + outer_momentum * ahead)
        if (step + 1) % period == 0:
            center, velocity = moved, ahead
            x = np.broadcast_to(center, x.shape)
        weights.append(x)
        centers.append(moved)
    return weights, centers


def sync_easgd(x: Array, gradients: Gradients, num_steps: int, rate: float, period: int, moving_rate: float) -> Traces:
    weights, centers = [], []
    center = x[0]
    for step in range(num_steps):
        x = x - rate * gradients(step, x)
        if (step + 1) % period == 0:
            differences = moving_rate * (x - center)
            x, center = x - differences, center + differences.sum(axis=0)
        weights.append(x)
        centers.append(center)
    return weights, centers
