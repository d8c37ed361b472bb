"""Rank processes of this machine: their output, their ends, and signals; at the end none is left.

Each rank leads a session of its own. So a terminal's Ctrl-C reaches only the launcher, and the launcher can kill a rank
with all processes that it started.
"""

import contextlib
import math
import os
import select
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from samovar.core.clock import Deadline

EXIT_PREEMPTED: Final = 75  # with something to go on from: EX_TEMPFAIL of sysexits.h
_PIPE_READ_BYTES = 1 << 16
# How long a launcher waits for a rank to disappear after SIGKILL.
_REAP_WAIT_S = 10.0
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank ended: its exit code, or minus the number of the signal that killed it."""

    rank: int
    return_code: int


class ForkedProcess:
    """A child of this process that another one forked, with that of Popen which a launcher needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """The exit code, or minus the signal that killed it. Raises TimeoutExpired if it still runs after `timeout`."""
        if self.returncode is None:
            pidfd = os.pidfd_open(self.pid)
            has_ended = readable(pidfd, timeout)
            os.close(pidfd)
            if not has_ended:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


@dataclass(slots=True)
class RankProcess:
    """A started rank; `pipes` are the read ends of its output, each with a function that takes the bytes."""

    rank: int
    process: "subprocess.Popen[bytes] | ForkedProcess"
    pipes: dict[int, Callable[[bytes], None]]
    pidfd: int = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.pidfd = os.pidfd_open(self.process.pid)
        except OSError:  # too many open files: nobody else would end it
            kill_session(self.process.pid)
            raise
        for pipe in self.pipes:
            os.set_blocking(pipe, False)


class Outlet(Protocol):
    """Where the output of ranks continues to, if that may be slow."""

    def blocked(self) -> Sequence[int]:
        """Descriptors that must become writable before more is read from the ranks."""

    def pump(self) -> None:
        """Write what can be written without waiting."""


@dataclass(frozen=True, slots=True)
class Consequence:
    """The effects of a rank's end: whether it counts (not if the rank comes back), which ranks end or start."""

    counts: bool = True
    ended: Sequence[int] = ()
    started: Sequence[int] = ()


class EndPolicy:
    """The effect of a rank's end on the others. With this policy the first failure ends them all, at once."""

    stopped_s: float = math.inf  # one that a signal has stopped for so long is ended

    def consequence(self, _end: RankEnd) -> Consequence:
        """Called once, when the rank has ended."""
        return Consequence()

    def patience_s(self, _end: RankEnd) -> float:
        """How long others may take to end by themselves after the first failure; called again at every event."""
        return 0.0

    def patience_asked_s(self) -> float:
        """How long ranks may take to end after they were asked to; called again at every event."""
        return math.inf

    def starts_again(self, _ends: Sequence[RankEnd]) -> bool:
        """Called when no rank is left: whether all ranks are started once more. `_ends` are as `run` gives them."""
        return False

    def stood_still(self, rank: int) -> None:
        """The rank was stopped for `stopped_s`, and is about to be ended."""


class Inbox(Protocol):
    """Where messages of other hosts arrive, and where these learn of the ranks here."""

    def fileno(self) -> int:
        """A descriptor that is readable when there are some."""

    def pump(self) -> None:
        """Act on them without waiting."""

    def signalled(self) -> None:
        """A signal came to this launcher, and was acted on."""

    def rank_ended(self, end: RankEnd) -> None:
        """A rank here has ended, and does not come back."""

    def patience_s(self, policy: EndPolicy) -> float:
        """How long ranks here may continue after what became of those of other hosts; asked again at every event."""

    def lingers(self) -> bool:
        """Whether to wait for other hosts when no rank is left here; asked again at every event."""


class RankWatch:
    """Runs one process per rank until all are done or one fails, as `policy` says; then none is left.

    `start(ranks)` starts them one after another. `on_signal(number)` acts on a signal to the launcher, and returns
    whether to end the ranks at once. Only the main thread gets signals. Messages of other hosts come to `inbox`.
    """

    def __init__(
        self,
        start: Callable[[Sequence[int]], Iterable[RankProcess]],
        numbers: Sequence[int],
        signals: Sequence[int],
        on_signal: Callable[[int], bool],
        policy: EndPolicy,
        outlet: Outlet | None = None,
        inbox: Inbox | None = None,
    ) -> None:
        self._start = start
        self._numbers = numbers
        self._inbox = inbox
        self._signals = signals
        self._on_signal = on_signal
        self._policy = policy
        self._outlet = outlet
        self._stopped = StoppedRanks(policy.stopped_s)
        self._selector = selectors.DefaultSelector()
        self._blocked: set[int] = set()
        self._waiting: list[int] = []
        self.ranks: list[RankProcess] = []

    def run(self) -> list[RankEnd]:
        """How each rank ended by itself, in the order of their ends, failed ones first.

        A missing rank was ended by the launcher. An exception of `start` ends all.
        """
        with self._selector, _wakeup_on_signals(self._signals, self._waiting) as wakeup:
            self._selector.register(wakeup, selectors.EVENT_READ, wakeup)
            if self._inbox is not None:
                self._selector.register(self._inbox.fileno(), selectors.EVENT_READ, self._inbox)
            while True:
                try:
                    for rank in self._start(self._numbers):
                        self._add(rank)
                    ends = self._watch()
                finally:
                    self._end_all()
                if not self._policy.starts_again(ends):
                    return ends

    def is_disturbed(self) -> bool:
        """Whether a signal has come that is not acted on yet, or has stopped a rank."""
        return bool(self._waiting) or any(is_stopped(rank.process.pid) for rank in self.ranks)

    def _add(self, rank: RankProcess) -> None:
        self.ranks.append(rank)
        for descriptor in (rank.pidfd, *(() if self._blocked else rank.pipes)):
            self._selector.register(descriptor, selectors.EVENT_READ, rank)

    def _watch(self) -> list[RankEnd]:
        ends: list[RankEnd] = []
        waiting_for: Deadline | None = None
        to_end = False
        inbox = self._inbox
        while (len(ends) < len(self._numbers) or (inbox is not None and inbox.lingers())) and not to_end:
            self._hold_back()
            ends += self._next_ends(self._stopped.next_look_s(waiting_for))
            for rank in self._stopped.too_long(self.ranks):
                self._policy.stood_still(rank)
                self._kill([rank])
            to_end = any([self._on_signal(self._waiting.pop(0)) for _ in range(len(self._waiting))])
            failed = next((end for end in ends if end.return_code != 0), None)
            patience_s = math.inf if inbox is None else inbox.patience_s(self._policy)
            patience_s = min(patience_s, self._policy.patience_asked_s())
            patience_s = patience_s if failed is None else min(patience_s, self._policy.patience_s(failed))
            if math.isfinite(patience_s) and (waiting_for is None or patience_s < waiting_for.remaining_s()):
                waiting_for = Deadline.after(patience_s)
            to_end = to_end or (waiting_for is not None and waiting_for.passed())
        return sorted(ends, key=lambda end: end.return_code == 0)

    def _next_ends(self, timeout_s: float | None) -> list[RankEnd]:
        """Wait for events and handle them; return the ranks that have ended."""
        ends = []
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, socket.socket):
                key.data.recv(_PIPE_READ_BYTES)
            elif key.data is self._inbox and self._inbox is not None:
                self._inbox.pump()
            elif key.data is None:
                assert self._outlet is not None
                self._outlet.pump()
            elif key.fd == key.data.pidfd:
                end = self._reap(key.data)
                what = self._policy.consequence(end)
                self._kill(what.ended)
                ends += [end] if what.counts else []
                if what.counts and self._inbox is not None:
                    self._inbox.rank_ended(end)
                for number in what.started:  # one by one: this loop does not wait for the first one's imports
                    self._add(*self._start([number]))
            elif key.fd in key.data.pipes:  # not so where its rank was reaped a moment ago
                self._read(key.data, key.fd)
        return ends

    def _hold_back(self) -> None:
        """While the outlet is blocked, wait for it and let ranks wait, so that memory stays bounded."""
        blocked = set() if self._outlet is None else set(self._outlet.blocked())
        for descriptor in self._blocked - blocked:
            self._selector.unregister(descriptor)
        for descriptor in blocked - self._blocked:
            self._selector.register(descriptor, selectors.EVENT_WRITE, None)
        if bool(blocked) != bool(self._blocked):
            for rank in self.ranks:
                for pipe in rank.pipes:
                    if blocked:
                        self._selector.unregister(pipe)
                    else:
                        self._selector.register(pipe, selectors.EVENT_READ, rank)
        self._blocked = blocked

    def _read(self, rank: RankProcess, pipe: int) -> bool:
        try:
            data = os.read(pipe, _PIPE_READ_BYTES)
        except BlockingIOError:  # the rank is gone, but somebody it started still holds the pipe
            return False
        if data:
            rank.pipes[pipe](data)
        else:
            self._close_pipe(rank, pipe)
        return bool(data)

    def _close_pipe(self, rank: RankProcess, pipe: int) -> None:
        del rank.pipes[pipe]
        if not self._blocked:
            self._selector.unregister(pipe)
        os.close(pipe)

    def _reap(self, rank: RankProcess) -> RankEnd:
        self._selector.unregister(rank.pidfd)
        kill_session(rank.process.pid)
        self._drain(rank)
        return RankEnd(rank.rank, rank.process.wait(_REAP_WAIT_S))

    def _kill(self, ranks: Sequence[int]) -> None:
        for rank in self.ranks:
            if rank.rank in ranks and rank.process.returncode is None:
                kill_session(rank.process.pid)

    def _drain(self, rank: RankProcess) -> None:
        for pipe in list(rank.pipes):
            while pipe in rank.pipes and self._read(rank, pipe):
                pass  # what it wrote last tells why it ended
        for pipe in list(rank.pipes):
            self._close_pipe(rank, pipe)

    def _end_all(self) -> None:
        self._kill([rank.rank for rank in self.ranks])
        for rank in self.ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):  # a GPU's memory, say, takes long to free
                rank.process.wait(_REAP_WAIT_S)
            for descriptor in (rank.pidfd, *rank.pipes):
                if descriptor in self._selector.get_map():
                    self._selector.unregister(descriptor)
                os.close(descriptor)
        self.ranks.clear()


class StoppedRanks:
    """The ranks that a signal has stopped (SIGSTOP, SIGTSTP) for `most_s`. A rank that computes, reads or waits is not
    one.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._since_s: dict[int, float] = {}

    def next_look_s(self, deadline: Deadline | None) -> float | None:
        """How long to wait for an event; None: without limit."""
        own_s = min(_LOOK_S, self._most_s) if math.isfinite(self._most_s) else math.inf
        wait_s = min(own_s, math.inf if deadline is None else deadline.remaining_s())
        return wait_s if math.isfinite(wait_s) else None

    def too_long(self, ranks: Sequence[RankProcess]) -> list[int]:
        if not math.isfinite(self._most_s):
            return []
        now_s = time.monotonic()
        stopped = {one.rank for one in ranks if one.process.returncode is None and is_stopped(one.process.pid)}
        self._since_s = {rank: self._since_s.get(rank, now_s) for rank in stopped}
        return [rank for rank, since_s in self._since_s.items() if now_s - since_s >= self._most_s]


def readable(descriptor: int, wait_s: float) -> bool:
    """Whether there is something to read, or an end, within `wait_s`."""
    look = select.poll()
    look.register(descriptor, select.POLLIN)
    return bool(look.poll(wait_s * 1000))


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process. A process that a debugger holds is not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] == "T"


def kill_session(pid: int) -> None:
    """Kill a rank and all processes of its group.

    Call it before the rank is waited for: until then no other process can get its number.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@contextlib.contextmanager
def _wakeup_on_signals(numbers: Sequence[int], waiting: list[int]) -> Iterator[socket.socket]:
    """Handlers that only note the signal; the socket becomes readable, so that the watching loop sees it.

    Python allows handlers only on the main thread; on another one nothing happens. A handler that is not Python's could
    not be restored, and stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    taken = [number for number in numbers if is_main and signal.getsignal(number) is not None]
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)

    def note(number: int, _frame: FrameType | None) -> None:
        waiting.append(number)

    old_wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False) if is_main else -1
    old_handlers = {number: signal.signal(number, note) for number in taken}
    if is_main and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # then no rank's end would have a code
        old_handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield reader
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        if is_main:
            signal.set_wakeup_fd(old_wakeup)
        reader.close()
        writer.close()
