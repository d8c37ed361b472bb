"""How old what a worker knew of the center was when its update came there."""

from collections import deque

from samovar.box.base import Versions

NUM_RECENT = 64


class Staleness:
    """Of each update: how many updates of others its fullest chunk took between this worker's read and the update.

    `last` is that of the last update, `largest` of all so far, `histogram` how often each came.
    """

    def __init__(self) -> None:
        self.last = 0
        self.largest = 0
        self.histogram: dict[int, int] = {}
        self._recent: deque[int] = deque(maxlen=NUM_RECENT)

    @property
    def mean(self) -> float:
        """Over the last 64 updates; 0 before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def note(self, seen: Versions, updated: Versions) -> int:
        """An update whose chunks now have the versions `updated`, made from those that were read as `seen`."""
        self.last = max(0, int((updated - seen).max(initial=1)) - 1)
        self.largest = max(self.largest, self.last)
        self.histogram[self.last] = self.histogram.get(self.last, 0) + 1
        self._recent.append(self.last)
        return self.last
