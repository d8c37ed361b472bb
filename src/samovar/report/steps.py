"""The seconds of a step by kind, and the figures of a step of all ranks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

KINDS: Final = ("data", "forward", "backward", "exchange", "update")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step: waiting for data, forward, backward, waiting for the exchange, update."""

    data_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    exchange_s: float = 0.0
    update_s: float = 0.0

    def by_kind(self) -> dict[str, float]:
        return {kind: getattr(self, f"{kind}_s") for kind in KINDS}

    def plus(self, later: "StepTimes") -> "StepTimes":
        """The seconds of this step and a later one."""
        return StepTimes(**{f"{kind}_s": value + getattr(later, f"{kind}_s") for kind, value in self.by_kind().items()})


class Laps:
    """Add the time since the last call to a named part of the step. Cost: 0.2 us a call."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._last_s = 0.0
        self._seconds: dict[str, float] = {}

    def start(self) -> None:
        """A step begins."""
        self.clear()

    def clear(self) -> None:
        """Leave out all since the start."""
        self._seconds = {}
        self.skip()

    def skip(self) -> None:
        """Leave out the time since the last call."""
        self._last_s = self._clock_s()

    def lap(self, kind: str) -> None:
        now_s = self._clock_s()
        self._seconds[kind] = self._seconds.get(kind, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def times(self) -> StepTimes:
        return StepTimes(**self._seconds)


@dataclass(frozen=True, slots=True)
class StepDone:
    """All ranks' results of one step: mean loss over the global batch.

    `times` are this rank's own. `last_rank` waited least for the exchange, `late_s` less than the median of the others;
    it is None without an exchange or without others. `num_steps` were done since the last report.
    """

    steps_done: int
    loss: float
    num_samples: int
    seconds: float
    times: StepTimes
    last_rank: int | None = None
    late_s: float = 0.0
    num_steps: int = 1


def last_to_arrive(waits_s: npt.NDArray[np.float64]) -> tuple[int | None, float]:
    """The rank that waited least for the exchange, so came to it last, and how much longer the median of others waited.

    It needs no clock that ranks share. An exchange behind computing holds up only those who have to wait for it.
    """
    if len(waits_s) < 2 or np.isnan(waits_s).any():
        return None, 0.0
    last = int(waits_s.argmin())
    return last, float(np.median(np.delete(waits_s, last)) - waits_s[last])
