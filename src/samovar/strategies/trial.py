"""Whether compression makes a step shorter: the first steps go both ways in turn, and the faster way stays."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.core.stateful import State, StateValue

# Two steps that are not timed, then five of each kind, in turn.
NUM_UNTIMED_STEPS, NUM_TRIAL_STEPS = 2, 12


@dataclass(frozen=True, slots=True)
class TrialCallback:
    """`clock` gives seconds; `tell` is given a sentence for the user, on every rank."""

    clock: Callable[[], float] = time.monotonic
    tell: Callable[[str], None] = lambda _sentence: None


class Trial:
    """Steps 0, 2, 4, ..., 10 are compressed, steps 1, 3, 5, ..., 11 are not; from step 12 on all are, or none.

    A step is timed from the end of the one before to its own end. Ranks agree: the slowest rank's median of each kind
    counts. The first steps do not depend on time. The decision for the others is made once, and is part of the state.
    `is_always` tries nothing.
    """

    def __init__(
        self,
        collectives: Collectives,
        what: str,
        is_always: bool,
        deadline: Callable[[], Deadline],
        callback: TrialCallback,
    ) -> None:
        self._records = None if is_always else collectives.records(2)
        self._what = what
        self._deadline = deadline
        self.callback = callback
        self._helps = True if is_always else None
        self._step = 0
        self._seconds = np.full(NUM_TRIAL_STEPS, math.nan)
        self._last_end_s: float | None = None

    @property
    def is_compressed(self) -> bool:
        """Whether the next step is."""
        return self._step % 2 == 0 if self._helps is None else self._helps

    def stepped(self) -> bool:
        """A step has ended. True if it was the last of the trial, and the others continue without compression."""
        if self._helps is not None:
            return False
        now_s = self.callback.clock()
        if self._last_end_s is not None and self._step >= NUM_UNTIMED_STEPS:
            self._seconds[self._step] = now_s - self._last_end_s
        self._step, self._last_end_s = self._step + 1, now_s
        if self._step < NUM_TRIAL_STEPS:
            return False
        self._helps = self._agreed()
        return not self._helps

    def state_dict(self) -> State:
        """Equal on all ranks, except the seconds."""
        helps = -1 if self._helps is None else int(self._helps)
        return {"trial/helps": helps, "trial/step": self._step, "trial/seconds": self._seconds.copy()}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """A decision stays; but `is_always` is one too. An empty state begins again."""
        self._last_end_s = None
        if self._records is None:
            return
        helps = int(state.get("trial/helps", -1))
        self._helps = None if helps < 0 else bool(helps)
        self._step = int(state.get("trial/step", 0))
        self._seconds[:] = np.asarray(state.get("trial/seconds", math.nan))

    def _agreed(self) -> bool:
        assert self._records is not None
        own = [_median(self._seconds[0::2]), _median(self._seconds[1::2])]
        compressed_s, plain_s = self._records.gather(own, self._deadline()).max(axis=0).tolist()
        helps = bool(compressed_s < plain_s)
        took = f"a step takes {_written(compressed_s)} with it and {_written(plain_s)} without"
        self.callback.tell(
            f"{self._what} stays on: {took}"
            if helps
            else f"{self._what} is switched off, since it does not help here: {took} (to keep it: --compress-always)"
        )
        return helps


def _median(seconds: npt.NDArray[np.float64]) -> float:
    """Of the timed ones; infinite without any."""
    timed = seconds[~np.isnan(seconds)]
    return float(np.median(timed)) if len(timed) else math.inf


def _written(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if seconds < 1 else f"{seconds:.3g} s"
