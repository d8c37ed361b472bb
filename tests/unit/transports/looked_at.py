"""A deadline that a test can count on: it passes by being looked at, however slow the machine is."""

import time

from samovar.core.clock import Deadline


class LookedAt(Deadline):
    """A deadline that has passed after `looks` questions for the time; waits in between have `far_s`."""

    def __init__(self, looks: int, far_s: float = 30.0) -> None:
        super().__init__(time.monotonic() + far_s)
        object.__setattr__(self, "_left", iter([False] * looks))

    def passed(self) -> bool:
        return next(self._left, True)  # type: ignore[attr-defined]
