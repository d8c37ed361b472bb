"""What a solver is told: which rule, with which constants."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from samovar.core.errors import InputError
from samovar.solver.policy import PolicyConfig

TYPES = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")
REGULARIZATIONS = ("L1", "L2")
_WITHOUT_MOMENTUM = ("AdaGrad", "RMSProp")


@dataclass(frozen=True, slots=True)
class SolverConfig:
    """Names, meanings and defaults are Caffe's, except that `clip_gradients` is None for no clipping.

    `iter_size` is the number of parts whose gradients make a step: the norm that is clipped is of their sum.
    Raises InputError "field: reason" for a type, regularization or constant with which there is no update rule.
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
        for field in ("momentum", *self._decays()):
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

    def _decays(self) -> tuple[str, ...]:
        """Constants of this type that weigh old against new."""
        return {"RMSProp": ("rms_decay",), "Adam": ("momentum2",)}.get(self.type, ())
