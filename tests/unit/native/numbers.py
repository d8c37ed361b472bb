"""Arrays that a kernel must get right to the last bit."""

from typing import Any

import numpy as np
import numpy.typing as npt


def wild(seed: int, size: int, dtype: type) -> npt.NDArray[Any]:
    """Numbers of all magnitudes; one in eight is a zero, a denormal or an infinity."""
    generator = np.random.default_rng([seed, size])
    info = np.finfo(dtype)
    special = np.array([0.0, -0.0, info.tiny / 4, -info.tiny / 2, np.inf, -np.inf, info.max, -info.max], dtype)
    values = generator.standard_normal(size) * 10.0 ** generator.integers(-6, 7, size)
    return np.where(generator.random(size) < 0.125, generator.choice(special, size), values).astype(dtype)
