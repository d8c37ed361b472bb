"""Threads that take one piece of work after the other."""

import queue
import threading
import time
from collections.abc import Callable

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError

_CLOSING_S = 1.0
_thread = threading.local()


class Job:
    """Work under way; `phase` is a text that says for what it waits."""

    def __init__(self, what: str, work: Callable[["Job"], None]) -> None:
        self.what = what
        self.phase = "waits for earlier work"
        self.ahead: Callable[[], Job | None] = lambda: None  # the one that others wait for
        self._work = work
        self._done = threading.Event()
        self._error: Exception | None = None
        self._submitted_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        return self._done.is_set()

    def run(self, earlier: Exception | None) -> Exception | None:
        """Do the work unless `earlier` work failed; return the error."""
        try:
            if earlier is not None:
                raise earlier
            self._work(self)
        except Exception as error:  # for the thread that waits
            self._error = error
        self._done.set()
        return self._error

    def wait(self, deadline: Deadline) -> None:
        """Return when it is done. Raises its error, or DeadlineExceeded."""
        while not self._done.wait(deadline.timeout_s()):
            if not deadline.passed():
                continue
            after_s = time.monotonic() - self._submitted_s
            raise DeadlineExceeded(f"{self.what}: not done within {after_s:.1f} s: it {self._cause()}; see their logs")
        if self._error is not None:
            raise self._error

    def _cause(self) -> str:
        first = self.ahead()
        return self.phase if first is None or first is self else f"waits for {first.what}, which {first.phase}"


class Background:
    """Threads, started as they are needed; they take jobs in the order of `submit`.

    After one failed, all fail, unless jobs are `independent`.

    Jobs of which each waits for its like on another rank end, however few threads there are, where all ranks submit
    them in one order. A job ends soon after `close` if it looks at `is_closed` every now and then.
    """

    def __init__(self, name: str, most_threads: int = 1, *, independent: bool = False) -> None:
        self.is_closed = False
        self._independent = independent
        self._name = name
        self._most_threads = most_threads
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way: list[Job] = []  # begun or not, in their order
        self._failed: Exception | None = None

    def submit(self, job: Job) -> Job:
        if self.is_closed:
            raise SamovarError(f"{job.what}: the group was closed before; join again")
        job.ahead = self._first
        self._under_way.append(job)
        if len(self._threads) < min(self._most_threads, len(self._under_way)):
            self._threads.append(threading.Thread(target=self._serve, name=self._name, daemon=True))
            self._threads[-1].start()
        self._jobs.put(job)
        return job

    def close(self, patience_s: float = _CLOSING_S) -> None:
        """End the threads, when their jobs are done; those that take longer are left behind."""
        self.is_closed = True
        closing = Deadline.after(patience_s)
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(closing.timeout_s())

    def _first(self) -> Job | None:
        return next(iter(self._under_way), None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            _thread.job = job
            failed = job.run(self._failed)
            self._failed = None if self._independent else failed or self._failed
            _thread.job = None
            self._under_way.remove(job)


def note_phase(phase: str) -> None:
    """Note the wait of the job that runs on this thread; elsewhere nothing happens."""
    job: Job | None = getattr(_thread, "job", None)
    if job is not None:
        job.phase = phase
