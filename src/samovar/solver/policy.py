"""Learning rate as a function of the step (Caffe's `lr_policy`)."""

import math
from collections.abc import Iterator
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
        multistep: base_lr * gamma ^ (number of stepvalues reached, at most one a step)
        exp:       base_lr * gamma ^ step
        inv:       base_lr * (1 + gamma * step) ^ (-power)
        poly:      base_lr * (1 - step / max_iter) ^ power
        sigmoid:   base_lr / (1 + exp(-gamma * (step - stepsize)))        (rises, for gamma >= 0)

    During the first `warm_up_steps` the rate is multiplied by (step + 1) / warm_up_steps.
    Raises InputError for an unknown policy, and for constants that it cannot use.

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
        """The learning rate of step `step`. Raises InputError after the end of `poly`."""
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
        """How often `step` or `multistep` has lowered the rate before `step` (Caffe's `current_step`); 0 for others."""
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
                f"lr_policy 'poly' ends at max_iter {self.max_iter}, but the run continues to step {step}; "
                "raise max_iter in the solver, or lower --iterations"
            )
        return self.base_lr * _power(1.0 - step / self.max_iter, self.power)


def _power(base: float, exponent: float) -> float:
    """base ^ exponent as in C: infinite on overflow and on division by 0."""
    try:
        return float(base**exponent)
    except (OverflowError, ZeroDivisionError):
        return math.inf


def _sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    small = math.exp(-abs(x))
    return 1.0 / (1.0 + small) if x >= 0 else small / (1.0 + small)


PLAIN_TYPES = ("SGD", "Nesterov")  # the others divide their steps by the size of gradients
TYPES = (*PLAIN_TYPES, "AdaGrad", "RMSProp", "AdaDelta", "Adam")
REGULARIZATIONS = ("L1", "L2")
_WITHOUT_MOMENTUM = ("AdaGrad", "RMSProp")


@dataclass(frozen=True, slots=True)
class SolverConfig:
    """The settings of a solver, with Caffe's names and defaults; `clip_gradients` is None for no clipping.

    `iter_size` is the number of passes whose gradients are added for one step. Clipping uses the norm of the sum.
    Raises InputError "field: reason" for an unknown type or regularization, and for an unusable constant.
    """

    type: str
    policy: PolicyConfig
    momentum: float = 0.0
    momentum2: float = 0.999
    rms_decay: float = 0.99
    delta: float = 1e-8
    weight_decay: float = 0.0
    regularization_type: str = "L2"
    clip_gradients: float | None = None
    iter_size: int = 1

    def __post_init__(self) -> None:
        for field, reason in (*self._wrong_names(), *self._wrong_numbers()):
            raise InputError(f"{field}: {reason}")

    def _wrong_names(self) -> Iterator[tuple[str, str]]:
        if self.type not in TYPES:
            yield "type", f"unknown solver '{self.type}'; supported are {', '.join(TYPES)}"
        if self.regularization_type not in REGULARIZATIONS:
            yield "regularization_type", f"'{self.regularization_type}' is unknown; supported are L1 and L2"

    def _wrong_numbers(self) -> Iterator[tuple[str, str]]:
        decays = {"RMSProp": ("rms_decay",), "Adam": ("momentum2",)}.get(self.type, ())
        for field in ("momentum", *decays):
            value = getattr(self, field)
            if not 0 <= value < 1:
                yield field, f"{value:g}; it must be at least 0 and less than 1"
        if self.momentum and self.type in _WITHOUT_MOMENTUM:
            yield "momentum", f"{self.momentum:g}; a solver of type {self.type} has no momentum, remove the field"
        for field, value in (("delta", self.delta), ("weight_decay", self.weight_decay)):
            if not (math.isfinite(value) and value >= 0):
                yield field, f"{value:g}; it must be a finite number of at least 0"
        if self.clip_gradients is not None and not self.clip_gradients >= 0:
            yield "clip_gradients", f"{self.clip_gradients:g}; it must be at least 0, or left out"
        if self.iter_size < 1:
            yield "iter_size", f"{self.iter_size}; it must be at least 1"
