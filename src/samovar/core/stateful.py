"""The content of a snapshot: a part's state as named arrays (copies), numbers and short strings."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

StateValue: TypeAlias = npt.NDArray[np.generic] | int | float | str
State: TypeAlias = dict[str, StateValue]
