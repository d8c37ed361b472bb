"""Learning rate as a function of the step (Caffe's `lr_policy`)."""

from dataclasses import dataclass

from samovar.core.errors import InputError

POLICIES = ("fixed", "inv", "step")


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """One policy and its constants.

    fixed: base_lr
    step:  base_lr * gamma ^ floor(step / stepsize)
    inv:   base_lr * (1 + gamma * step) ^ (-power)
    """

    name: str
    base_lr: float
    gamma: float = 0.0
    power: float = 0.0
    stepsize: int = 0

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise InputError(f"lr_policy: got {self.name!r}; supported: {', '.join(POLICIES)}")
        if self.name == "step" and self.stepsize < 1:
            raise InputError(f"lr_policy 'step' needs a stepsize of at least 1, got {self.stepsize}")

    def rate(self, step: int) -> float:
        """The learning rate of step `step`, counted from 0."""
        match self.name:
            case "step":
                return self.base_lr * float(self.gamma ** (step // self.stepsize))
            case "inv":
                return self.base_lr * float((1.0 + self.gamma * step) ** -self.power)
            case _:
                return self.base_lr
