"""A thread that does one piece of work after the other."""

import queue
import threading
import time
from collections.abc import Callable

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError

_CLOSING_S = 1.0


class Job:
    """Work under way; `phase` says in words what it is waiting for."""

    def __init__(self, what: str, work: Callable[["Job"], None]) -> None:
        self.what = what
        self.phase = "waits for earlier work"
        self._work = work
        self._done = threading.Event()
        self._error: Exception | None = None
        self._submitted_s = time.monotonic()

    def run(self, earlier: Exception | None) -> Exception | None:
        """Do it, unless earlier work failed; what went wrong."""
        try:
            if earlier is not None:
                raise earlier
            self._work(self)
        except Exception as error:  # for whoever waits
            self._error = error
        self._done.set()
        return self._error

    def wait(self, deadline: Deadline) -> None:
        """Return when it is done. Raises what it raised, or DeadlineExceeded."""
        if not self._done.wait(deadline.remaining_s()):
            after_s = time.monotonic() - self._submitted_s
            raise DeadlineExceeded(f"{self.what}: not done within {after_s:.1f} s: it {self.phase}; see their logs")
        if self._error is not None:
            raise self._error


class Background:
    """One thread, started when it is first needed; jobs run in the order of `submit`. After one failed, all fail.

    A job must look at `is_closed` every now and then: a thread that still waits in native code when the
    interpreter ends takes the process down with it.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.is_closed = False

    def submit(self, job: Job) -> Job:
        if self.is_closed:
            raise SamovarError(f"{job.what}: the group was closed before; join again")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="samovar-between-hosts", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """End the thread; one that hangs in a job is left behind."""
        self.is_closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(_CLOSING_S)

    def _serve(self) -> None:
        failed: Exception | None = None
        while (job := self._jobs.get()) is not None:
            failed = job.run(failed)
