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
    x: Array,
    gradients: Gradients,
    num_steps: int,
    rate: float,
    period: int,
    outer_rate: float,
    outer_momentum: float,
    dues: list[tuple[int, slice]],
    delay: int,
    mixing: float,
) -> Traces:
    """`dues`: for each fragment, the number of steps into a period after which it is exchanged, and its elements."""
    weights, centers = [], []
    center, velocity, x = x[0].copy(), np.zeros_like(x[0]), x.copy()
    deltas: dict[int, Array] = {}

    def moved(part: slice, delta: Array) -> tuple[Array, Array]:
        ahead = outer_momentum * velocity[part] + delta
        return ahead, center[part] - outer_rate * (delta + outer_momentum * ahead)

    for step in range(num_steps):
        x = x - rate * gradients(step, x)
        fresh = set()
        for number, (due, part) in enumerate(dues):
            if (step + 1) % period == due % period:
                deltas[number] = center[part] - x[:, part].mean(axis=0)
            if (step - delay + 1) % period == due % period and number in deltas:
                velocity[part], center[part] = moved(part, deltas.pop(number))
                x[:, part] = mixing * x[:, part] + (1 - mixing) * center[part]
                fresh |= set() if delay else {number}
        evaluated = center.copy()
        for number, (_, part) in enumerate(dues):
            if number not in fresh:
                delta = deltas.get(number, center[part] - x[:, part].mean(axis=0))
                evaluated[part] = moved(part, delta)[1]
        weights.append(x)
        centers.append(evaluated)
    return weights, centers


def sync_easgd(
    x: Array, gradients: Gradients, num_steps: int, rate: float, period: int, moving_rate: float, own: float
) -> Traces:
    weights, centers = [], []
    center = x[0]
    for step in range(num_steps):
        x = x - rate * gradients(step, x)
        if (step + 1) % period == 0:
            differences = moving_rate * (x - center)
            x, center = x - own * (x - center), center + differences.sum(axis=0)
        weights.append(x)
        centers.append(center)
    return weights, centers
