"""How fast samples were trained on a moment ago."""

import time
from collections import deque

_RATE_STEPS = 50


class Pace:
    """Samples per second over the last 50 times that this was told."""

    def __init__(self) -> None:
        self._moments: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=_RATE_STEPS)

    def take(self, num_samples: int) -> float:
        """`num_samples` were trained on since the start; the speed now."""
        self._moments.append((time.monotonic(), num_samples))
        (first_s, first), (last_s, last) = self._moments[0], self._moments[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0
