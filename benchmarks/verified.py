"""Whether sides computed the same."""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch


def relative_distance(pairs: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]]) -> float:
    """norm(a - b) / norm(b) over all pairs of arrays, in float64."""
    difference = size = 0.0
    for ours, theirs in pairs:
        expected = np.asarray(theirs)
        difference += float(np.square(np.asarray(ours) - expected, dtype=np.float64).sum())
        size += float(np.square(expected, dtype=np.float64).sum())
    return float((difference / size) ** 0.5)


def digest(weights: Iterable[torch.Tensor]) -> str:
    """Equal for equal bits."""
    found = hashlib.sha256()
    for weight in weights:
        found.update(weight.detach().contiguous().numpy().tobytes())
    return found.hexdigest()
