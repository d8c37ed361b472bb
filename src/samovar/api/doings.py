"""What a rank has done so far, for those who train at the same center to see."""

import torch

from samovar.core.clock import Pace


class Doings:
    """Samples that were taken from its shards, how fast, and the loss of its last backward pass."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._loss: torch.Tensor | None = None
        self._pace = Pace()

    def lost(self, loss: torch.Tensor) -> None:
        """Keep it where it is: it is brought from a GPU when it is told."""
        self._loss = loss.detach()

    @property
    def loss(self) -> float:
        """NaN before the first backward pass."""
        return float("nan") if self._loss is None else float(self._loss)

    def samples_per_s(self) -> float:
        """Over the last times that this was asked; 0 where loaders do not tell their batch size."""
        return self._pace.take(self.num_samples)
