"""The update rules, written down once more: for float32 with its roundings, or for float64."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samovar.solver.policy import SolverConfig

Arrays = dict[str, np.ndarray]


@dataclass
class Expected:
    """Named parameters under a rule; `number` is the type that everything is computed in."""

    config: SolverConfig
    weights: Arrays
    lr: dict[str, float]
    decay: dict[str, float]
    number: Any = np.float32
    histories: list[Arrays] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = {name: array.astype(self.number) for name, array in self.weights.items()}
        two = self.config.type in ("AdaDelta", "Adam")
        self.histories = [{n: np.zeros_like(w) for n, w in self.weights.items()} for _ in range(1 + two)]

    def constant(self, value: float) -> Any:
        """As the kernels have it: float32, whatever is computed with it."""
        return self.number(np.float32(value))

    def step(self, step: int, gradients: Arrays, scale: float) -> None:
        config = self.config
        scale *= self.clip_factor(gradients, scale)
        rate = config.policy.rate(step)
        if config.type == "Adam":
            b1, b2 = (float(np.float32(value)) for value in (config.momentum, config.momentum2))
            rate *= math.sqrt(1 - b2 ** (step + 1)) / (1 - b1 ** (step + 1))
        for name, weights in self.weights.items():
            decay = self.constant(self.decay[name] * config.weight_decay)
            penalty = weights if config.regularization_type == "L2" else np.sign(weights)
            g = self.constant(scale) * gradients[name].astype(self.number) + decay * penalty
            move = self.move(g, self.constant(self.lr[name] * rate), [history[name] for history in self.histories])
            self.weights[name] = weights - move

    def clip_factor(self, gradients: Arrays, scale: float) -> float:
        if self.config.clip_gradients is None:
            return 1.0
        squares = sum(float((gradient.astype(np.float64) ** 2).sum()) for gradient in gradients.values())
        norm = math.sqrt(squares) * scale * self.config.iter_size
        return min(1.0, self.config.clip_gradients / norm)

    def move(self, g: np.ndarray, rate: Any, histories: list[np.ndarray]) -> np.ndarray:
        """The update that is subtracted from the weights; the histories change in place."""
        config, one = self.config, self.number(1)
        mu, mu2, rho, delta = (
            self.constant(value) for value in (config.momentum, config.momentum2, config.rms_decay, config.delta)
        )
        h = histories[0]
        match config.type:
            case "SGD":
                h[...] = mu * h + rate * g
                return h
            case "Nesterov":
                before = h.copy()
                h[...] = mu * h + rate * g
                return (one + mu) * h - mu * before
            case "AdaGrad":
                h[...] = h + g * g
                return rate * (g / (np.sqrt(h) + delta))
            case "RMSProp":
                h[...] = rho * h + (one - rho) * (g * g)
                return rate * (g / (np.sqrt(h) + delta))
            case "AdaDelta":
                moves = histories[1]
                h[...] = mu * h + (one - mu) * (g * g)
                u = g * np.sqrt((delta + moves) / (delta + h))
                moves[...] = mu * moves + (one - mu) * (u * u)
                return rate * u
            case _:
                squares = histories[1]
                h[...] = mu * h + (one - mu) * g
                squares[...] = mu2 * squares + (one - mu2) * (g * g)
                return rate * (h / (np.sqrt(squares) + delta))
