"""Deadlines on the monotonic clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass


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

    def passed(self) -> bool:
        return time.monotonic() >= self.at_s


def polled(condition: Callable[[], bool], deadline: Deadline, pause_s: float) -> bool:
    """Whether the condition came true, asked anew every `pause_s`, before the deadline passed."""
    while not condition():
        if deadline.passed():
            return False
        time.sleep(pause_s)
    return True
