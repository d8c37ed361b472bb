"""Deadlines on the monotonic clock."""

import time
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
