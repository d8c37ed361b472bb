"""Long work of a rank while others wait for it: their waits continue as long as its heart beats."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from samovar.core.clock import Deadline, Prolonged, polled
from samovar.core.errors import SamovarError
from samovar.transports.rendezvous import Rendezvous

_NUM_BUSY, _BEATS = "busy", "beats"  # keys of the job's store
_BEAT_S = 1.0
_SILENCE_S = 5.0  # without a beat; on a full machine beats come late
_ANSWER_S = 5.0
_POLL_S = 0.1


class Heartbeats:
    """The beats of all ranks of a job that are busy with something else, counted in the job's `store`.

    A wait that has come to its deadline looks for beats. If the last one is younger than `timeout_s`, the wait
    continues. A single process needs no store. A store that does not answer counts as silence.

    Cost: a message to the store each second while this rank is busy; one or more whenever a wait comes to its deadline.
    """

    def __init__(self, store: Rendezvous | None = None) -> None:
        self.store = store
        self._depth = 0  # of busy() on this rank
        self._num_own = 0
        self._num_heard = 0
        self._heard_s = -math.inf

    def deadline(self, timeout_s: float) -> Deadline:
        """The end of a wait for other ranks that begins now."""
        return Deadline.after(timeout_s) if self.store is None else Prolonged(timeout_s, self._silence_s)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While this is open, waits of the other ranks continue. This rank's own do not: it would prolong them."""
        self._depth += 1
        self._count(_NUM_BUSY, 1)
        try:
            with beating(self._beat):
                yield
        finally:
            self._depth -= 1
            self._count(_NUM_BUSY, -1)

    def close(self) -> None:
        """Let go of the store. Beats are counted nowhere any more."""
        self.store = None

    def _beat(self) -> None:
        self._num_own += self._count(_BEATS, 1) is not None

    def _silence_s(self) -> float:
        """The seconds since the last beat of another rank. Waits for one if a rank should send it."""
        if not self._hears() and not self._depth and self._count(_NUM_BUSY, 0):
            polled(self._hears, Deadline.after(_SILENCE_S), _POLL_S)
        return math.inf if self._depth else time.monotonic() - self._heard_s

    def _hears(self) -> bool:
        """Whether there were beats of other ranks since the last look."""
        beats = self._count(_BEATS, 0)
        if beats is None or beats - self._num_own == self._num_heard:
            return False
        self._num_heard, self._heard_s = beats - self._num_own, time.monotonic()
        return True

    def _count(self, what: str, amount: int) -> int | None:
        """Add to a number in the store, and give it; None if there is none any more."""
        store = self.store
        with suppress(SamovarError):
            return None if store is None else store.count(what, amount, Deadline.after(_ANSWER_S))
        return None


@contextmanager
def beating(beat: Callable[[], None]) -> Iterator[None]:
    """While this is open, a thread calls `beat` each second: at once first, and last at the end.

    From then on, those that wait for this rank give it its whole time to come.
    """
    ended = threading.Event()

    def work() -> None:
        beat()
        while not ended.wait(_BEAT_S):
            beat()
        beat()

    thread = threading.Thread(target=work, name="samovar-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
