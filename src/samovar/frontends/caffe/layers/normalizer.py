"""What a loss is divided by."""

from dataclasses import dataclass

import torch

from samovar.frontends.caffe.spec import LayerSpec

FULL, VALID, BATCH_SIZE, NONE = 0, 1, 2, 3  # LossParameter.NormalizationMode


@dataclass(frozen=True, slots=True)
class LossNormalizer:
    """VALID: the number of labels that are not `ignore_label`; FULL: of all; BATCH_SIZE: of samples; NONE: 1.

    Never less than 1. The older field `normalize` stands for VALID (true) or BATCH_SIZE (false).
    """

    mode: int
    ignore_label: int | None

    @classmethod
    def of(cls, spec: LayerSpec, default: int) -> "LossNormalizer":
        settings = spec.message.loss_param
        mode = default
        if settings.HasField("normalization"):
            mode = settings.normalization
        elif settings.HasField("normalize"):
            mode = VALID if settings.normalize else BATCH_SIZE
        return cls(mode, settings.ignore_label if settings.HasField("ignore_label") else None)

    def valid(self, labels: torch.Tensor) -> torch.Tensor | None:
        """Which labels count; None for all of them."""
        return None if self.ignore_label is None else labels != self.ignore_label

    def of_labels(self, num_samples: int, num_labels: int, valid: torch.Tensor | None) -> float:
        num_valid = num_labels if valid is None or self.mode != VALID else int(valid.sum())
        return self.of_counts(num_samples, num_labels, num_valid)

    def of_counts(self, num_samples: int, num_labels: int, num_valid: int) -> float:
        if self.mode == VALID:
            return max(1.0, float(num_valid))
        if self.mode == FULL:
            return float(num_labels)
        return float(num_samples) if self.mode == BATCH_SIZE else 1.0
