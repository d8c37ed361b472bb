"""Starting ranks as processes of this machine, watching them, and ending them.

Ranks are fresh processes with inherited descriptors, in sessions of their
own: a terminal's Ctrl-C reaches the launcher alone, which passes it on over the board.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from samovar.core.board import BoardWord
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.transports.shm import Board

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PIPE_READ_BYTES = 1 << 16
# How long a launcher waits for a rank to disappear after SIGKILL.
_REAP_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank ended: its exit code, or minus the number of the signal that killed it."""

    rank: int
    return_code: int


@dataclass(slots=True)
class _Rank:
    number: int
    process: "subprocess.Popen[bytes]"
    pidfd: int
    pipe: int
    pipe_open: bool = True


@dataclass(slots=True)
class Signals:
    """What has been asked by signals so far."""

    stop_signal: int = 0
    kill_signal: int = 0
    num_snapshots: int = 0
    waiting: list[int] = field(default_factory=list)

    def take(self, board: Board) -> None:
        """Act on the signals that came: the first asks ranks to stop, another one ends them."""
        while self.waiting:
            number = self.waiting.pop(0)
            if number == signal.SIGHUP:
                self.num_snapshots += 1
            elif self.stop_signal == 0:
                self.stop_signal = number
            else:
                self.kill_signal = number
        board.post(board.launcher_row, BoardWord.STOP_SIGNAL, self.stop_signal)
        board.post(board.launcher_row, BoardWord.SNAPSHOT_REQUESTS, self.num_snapshots)


class Launch:
    """Runs one process per rank until all are done or one fails; then none is left.

    `command(rank, pipe)` gives the argument vector of a rank that writes to descriptor `pipe`; `inherited`
    descriptors are passed on under their numbers. `on_output(rank, data)` gets what a rank wrote to its pipe.
    `patience_s(end)` tells, when a first rank has failed, how long the others may take to end by themselves.
    """

    def __init__(
        self,
        command: Callable[[int, int], Sequence[str]],
        world_size: int,
        board: Board,
        inherited: Sequence[int],
        log_paths: Sequence[Path],
        threads_per_worker: int,
        on_output: Callable[[int, bytes], None],
        patience_s: Callable[[RankEnd], float] = lambda _end: 0.0,
    ) -> None:
        self._command = command
        self._world_size = world_size
        self._board = board
        self._inherited = inherited
        self._log_paths = log_paths
        self._threads_per_worker = threads_per_worker
        self._on_output = on_output
        self._patience_s = patience_s
        self._selector = selectors.DefaultSelector()
        self._ranks: list[_Rank] = []
        self.signals = Signals()

    def run(self) -> list[RankEnd]:
        """How each rank ended, in the order of their ends; the first one that failed ended the others.

        Raises InputError where a process cannot be started.
        """
        with self._selector, _wakeup_on_signals(self.signals) as wakeup:
            self._selector.register(wakeup, selectors.EVENT_READ, None)
            try:
                for rank in range(self._world_size):
                    self._start(rank)
                return self._watch(wakeup)
            finally:
                self._end_all()

    def _start(self, rank: int) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        try:
            with self._log_paths[rank].open("ab") as log:
                process = subprocess.Popen(
                    list(self._command(rank, write_end)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[*self._inherited, write_end],
                    env=os.environ | _thread_variables(self._threads_per_worker),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(read_end)
            raise InputError(f"rank {rank} cannot be started: {error}") from error
        finally:
            os.close(write_end)
        started = _Rank(rank, process, os.pidfd_open(process.pid), read_end)
        self._ranks.append(started)
        self._selector.register(started.pidfd, selectors.EVENT_READ, started)
        self._selector.register(read_end, selectors.EVENT_READ, started)

    def _watch(self, wakeup: socket.socket) -> list[RankEnd]:
        ends: list[RankEnd] = []
        deadline: Deadline | None = None
        while len(ends) < self._world_size and not self.signals.kill_signal:
            ends += self._next_ends(wakeup, deadline)
            failed = next((end for end in ends if end.return_code != 0), None)
            if failed is not None:
                deadline = deadline or Deadline.after(self._patience_s(failed))
                if deadline.remaining_s() <= 0:
                    break
        return sorted(ends, key=lambda end: end.return_code == 0)

    def _next_ends(self, wakeup: socket.socket, deadline: Deadline | None) -> list[RankEnd]:
        """Wait for news and take it in; the ranks that have ended."""
        ends = []
        for key, _ in self._selector.select(None if deadline is None else deadline.remaining_s()):
            if key.data is None:
                wakeup.recv(_PIPE_READ_BYTES)
                self.signals.take(self._board)
            elif key.fd == key.data.pipe:
                self._read(key.data)
            else:
                ends.append(self._reap(key.data))
        return ends

    def _read(self, rank: _Rank) -> bool:
        try:
            data = os.read(rank.pipe, _PIPE_READ_BYTES)
        except BlockingIOError:  # the rank is gone, but somebody it started still holds the pipe
            return False
        if data:
            self._on_output(rank.number, data)
        elif rank.pipe_open:
            rank.pipe_open = False
            self._selector.unregister(rank.pipe)
        return bool(data)

    def _reap(self, rank: _Rank) -> RankEnd:
        self._selector.unregister(rank.pidfd)
        _kill_session(rank.process.pid)
        while rank.pipe_open and self._read(rank):
            pass  # what it wrote last tells why it ended
        return RankEnd(rank.number, rank.process.wait(_REAP_WAIT_S))

    def _end_all(self) -> None:
        for rank in self._ranks:
            if rank.process.returncode is None:
                _kill_session(rank.process.pid)
        for rank in self._ranks:
            rank.process.wait(_REAP_WAIT_S)
            os.close(rank.pidfd)
            os.close(rank.pipe)
        self._ranks.clear()


def _kill_session(pid: int) -> None:
    """Kill the rank and whatever it started: it leads a process group of its own.

    To be called before the rank is waited for: until then its number is nobody else's.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _thread_variables(threads: int) -> dict[str, str]:
    return {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


@contextlib.contextmanager
def _wakeup_on_signals(signals: Signals) -> Iterator[socket.socket]:
    """Handlers that only note the signal; the socket becomes readable so that the watching loop sees it."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)

    def note(number: int, _frame: FrameType | None) -> None:
        signals.waiting.append(number)

    old_wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    old_handlers = {number: signal.signal(number, note) for number in (*_STOP_SIGNALS, signal.SIGHUP)}
    try:
        yield reader
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_wakeup)
        reader.close()
        writer.close()
