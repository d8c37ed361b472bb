"""What a net gives back for one batch."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class NetOutput:
    """`loss` is the weighted sum of the net's losses (a scalar with its graph), None for a net without any.

    `scalars` are the net's outputs by name, detached: losses before weighting, accuracies. An output that is
    no single number is among them with its shape.
    """

    loss: torch.Tensor | None
    scalars: dict[str, torch.Tensor]
