"""Learning rate as a function of the step (Caffe's `lr_policy`)."""

import math
from dataclasses import dataclass

from samovar.core.errors import InputError

POLICIES = ("exp", "fixed", "inv", "multistep", "poly", "sigmoid", "step")
_WITH_STEPSIZE = ("sigmoid", "step")
_WITH_GAMMA = ("exp", "inv", "multistep", "sigmoid", "step")


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """One policy and its constants; steps count from 0.

        fixed:     base_lr
        step:      base_lr * gamma ^ floor(step / stepsize)
        multistep: base_lr * gamma ^ (number of stepvalues reached; at most one more at each step)
        exp:       base_lr * gamma ^ step
        inv:       base_lr * (1 + gamma * step) ^ (-power)
        poly:      base_lr * (1 - step / max_iter) ^ power
        sigmoid:   base_lr / (1 + exp(-gamma * (step - stepsize)))        (rises, for gamma >= 0)

    Over the first `warm_up_steps` the rate is (step + 1) / warm_up_steps of that.
    Raises InputError for an unknown policy, and for constants with which it has no meaning.

    Source: Caffe's solver definitions.
    """

    name: str
    base_lr: float
    gamma: float = 0.0
    power: float = 0.0
    stepsize: int = 0
    stepvalues: tuple[int, ...] = ()
    max_iter: int = 0
    warm_up_steps: int = 0

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise InputError(f"lr_policy: unknown policy '{self.name}'; supported are {', '.join(POLICIES)}")
        if not (math.isfinite(self.base_lr) and self.base_lr >= 0):
            raise InputError(f"base_lr: {self.base_lr:g}; it must be a finite number of at least 0")
        if self.name in _WITH_STEPSIZE and self.stepsize < 1:
            raise InputError(f"stepsize: {self.stepsize}; lr_policy '{self.name}' needs a stepsize of at least 1")
        if not math.isfinite(self.gamma) or (self.name in _WITH_GAMMA and self.gamma < 0):
            raise InputError(f"gamma: {self.gamma:g}; lr_policy '{self.name}' needs a finite gamma of at least 0")
        if not math.isfinite(self.power):
            raise InputError(f"power: {self.power:g}; it must be a finite number")
        if self.name == "poly" and self.max_iter < 1:
            raise InputError(f"max_iter: {self.max_iter}; lr_policy 'poly' needs a max_iter of at least 1")

    def rate(self, step: int) -> float:
        """The learning rate of step `step`; InputError where `poly` has come to its end before."""
        rate = self._settled(step)
        return rate * (step + 1) / self.warm_up_steps if step < self.warm_up_steps else rate

    def _settled(self, step: int) -> float:
        match self.name:
            case "step" | "multistep":
                return self.base_lr * _power(self.gamma, self.drops(step))
            case "exp":
                return self.base_lr * _power(self.gamma, step)
            case "inv":
                return self.base_lr * _power(1.0 + self.gamma * step, -self.power)
            case "poly":
                return self._poly(step)
            case "sigmoid":
                return self.base_lr * _sigmoid(self.gamma * (step - self.stepsize))
            case _:
                return self.base_lr

    def drops(self, step: int) -> int:
        """How often `step` or `multistep` has lowered the rate by then (Caffe's `current_step`); 0 for others."""
        if self.name == "step":
            return step // self.stepsize
        if self.name != "multistep":
            return 0
        drops, earliest = 0, 0
        for value in self.stepvalues:
            earliest = max(value, earliest)  # a stepvalue that is not above the one before waits for the next step
            if step < earliest:
                break
            drops, earliest = drops + 1, earliest + 1
        return drops

    def _poly(self, step: int) -> float:
        if step > self.max_iter:
            raise InputError(
                f"lr_policy 'poly' ends at max_iter {self.max_iter}, but the run goes on to step {step}; "
                "raise max_iter in the solver, or lower --iterations"
            )
        return self.base_lr * _power(1.0 - step / self.max_iter, self.power)


def _power(base: float, exponent: float) -> float:
    """As in C: infinite where it is too large for a number, or where 0 is divided by."""
    try:
        return float(base**exponent)
    except (OverflowError, ZeroDivisionError):
        return math.inf


def _sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    small = math.exp(-abs(x))
    return 1.0 / (1.0 + small) if x >= 0 else small / (1.0 + small)
