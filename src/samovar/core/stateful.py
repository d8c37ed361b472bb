"""The content of a snapshot: anything that gives its state as named arrays and numbers."""

from collections.abc import Mapping
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

StateValue: TypeAlias = npt.NDArray[np.generic] | int | float | str
State: TypeAlias = dict[str, StateValue]


class Stateful(Protocol):
    """A part whose state belongs into a snapshot."""

    def state_dict(self) -> State:
        """Named arrays (copied or never written again), numbers and short strings."""

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Load a `state_dict`. Raises InputError if it does not fit."""
