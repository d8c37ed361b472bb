"""Whether numbers are numbers: neither infinite nor "not a number"."""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.layout import Entry

MAX_REFUSED_PUSHES: Final = 3  # in a row, of one worker; a default


def all_finite(values: npt.NDArray[np.float32]) -> bool:
    """Cost: one read of `values`, float32 (N,), contiguous."""
    return _native.all_finite(values)


def first_not_finite(entries: Iterable[Entry], values: npt.NDArray[np.float32]) -> str:
    """The name of the first parameter of `entries` that holds what is not finite in `values`; "" where none does."""
    return next((entry.spec.name for entry in entries if not all_finite(values[entry.offset : entry.stop])), "")
