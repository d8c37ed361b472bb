"""The large-batch recipe: the learning rate of a step with many more samples."""

from dataclasses import dataclass

from samovar.core.errors import InputError, require_choice

# By which power of the batch the rate grows.
RATE_SCALINGS = {"firecaffe": 0.6, "linear": 1.0, "sqrt": 0.5, "none": 0.0}


@dataclass(frozen=True, slots=True)
class LargeBatch:
    """Steps of `batch_size` samples of all workers together, in the place of a solver's own, smaller ones.

    With k times as many samples a step, the rate is base_lr k^a, a by `rate_scaling`: `firecaffe` 0.6, `linear` 1,
    `sqrt` 0.5, `none` 0. It rises to that over `warm_up_steps`, None: a tenth of all steps. Raises InputError
    naming the flag.

    Source: FireCaffe's GoogLeNet, batch 32 to 1,024 with rate 0.01 to 0.08; the warm-up is of later work.
    """

    batch_size: int
    rate_scaling: str = "firecaffe"
    warm_up_steps: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"--large-batch: got {self.batch_size}; give the samples of a step, at least 1")
        require_choice("--rate-scaling", self.rate_scaling, RATE_SCALINGS)
        if self.warm_up_steps is not None and self.warm_up_steps < 0:
            raise InputError(f"--warm-up-steps: got {self.warm_up_steps}; give at least 0")

    def rate_factor(self, times: float) -> float:
        """The factor of the rate if a step has `times` as many samples."""
        return float(times ** RATE_SCALINGS[self.rate_scaling])
