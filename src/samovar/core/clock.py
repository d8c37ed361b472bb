"""Deadlines and speeds on the monotonic clock, and the time of day."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final


@dataclass(frozen=True, slots=True)
class Deadline:
    """A fixed moment on the monotonic clock, passed down through every call that may wait."""

    at_s: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    def remaining_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at_s - time.monotonic())

    def timeout_s(self) -> float:
        """The same for calls of the system's: more than nothing, which some take for no limit, and no infinity."""
        return min(max(self.remaining_s(), 0.001), 1e6)

    def passed(self) -> bool:
        return time.monotonic() >= self.at_s


FOR_EVER: Final = Deadline(math.inf)


class Prolonged(Deadline):
    """A deadline in `timeout_s`, which moves: it comes when there was silence for as long.

    `silence_s()` gives the seconds since the last sign of life. It is asked when the deadline comes, and may take a
    while.
    """

    __slots__ = ("_silence_s", "_timeout_s")
    _silence_s: Callable[[], float]
    _timeout_s: float

    def __init__(self, timeout_s: float, silence_s: Callable[[], float]) -> None:
        super().__init__(time.monotonic() + timeout_s)
        object.__setattr__(self, "_timeout_s", timeout_s)
        object.__setattr__(self, "_silence_s", silence_s)

    def remaining_s(self) -> float:
        left_s = self.at_s - time.monotonic()
        if left_s > 0:
            return left_s
        left_s = max(0.0, self._timeout_s - self._silence_s())
        object.__setattr__(self, "at_s", time.monotonic() + left_s)
        if not left_s:
            object.__setattr__(self, "_silence_s", lambda: math.inf)  # the deadline has come for good
        return left_s

    def passed(self) -> bool:
        return self.remaining_s() == 0.0


def polled(
    condition: Callable[[], bool], deadline: Deadline, pause_s: float, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Whether the condition, asked every `pause_s`, became true before the deadline."""
    while not condition():
        if deadline.passed():
            return False
        sleep(pause_s)
    return True


def local_now() -> datetime:
    """The time of day here, with its offset."""
    return datetime.now().astimezone()


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
