"""Ranks that work for our launcher: each has a pipe for records and a log file, and signals reach it over the board."""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.launch.watch import EndPolicy, ForkedProcess, Inbox, RankEnd, RankProcess, RankWatch, readable
from samovar.transports.shm import BoardWord, RunBoard

__all__ = ["AT_ONCE", "DEFAULT_EFFECTS", "Launch", "RankEnd", "SignalEffect", "Signals"]

# Without this cuBLAS has no deterministic products; it is read when a rank first uses a GPU.
_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
_NUM_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# How long the first rank may import before the others do so themselves, and how long a fork may take.
_IMPORT_S = 600.0
_FORK_S = 60.0
_LOOK_S = 0.1
_ANSWER_BYTES = 64
_one_adopts = threading.Lock()


class SignalEffect(Enum):
    """The effect of a signal: stop after the step, write a snapshot, end at once, or nothing."""

    STOP = "stop"
    SNAPSHOT = "snapshot"
    END = "end"
    NONE = "none"


DEFAULT_EFFECTS: Mapping[int, SignalEffect] = {signal.SIGHUP: SignalEffect.SNAPSHOT}
AT_ONCE: Mapping[int, SignalEffect] = dict.fromkeys(_SIGNALS, SignalEffect.END)  # where there is nothing to save


@dataclass(slots=True)
class Signals:
    """The requests of signals so far; a signal that is not in `effects` stops the job."""

    effects: Mapping[int, SignalEffect] = field(default_factory=lambda: DEFAULT_EFFECTS)
    stop_signal: int = 0
    kill_signal: int = 0
    num_snapshots: int = 0
    has_stopped: bool = False

    def take(self, number: int, board: RunBoard) -> bool:
        """Act on a signal: the first asks ranks to stop, another one ends them; True if they are to be ended."""
        effect = self.effects.get(number, SignalEffect.STOP)
        if effect is SignalEffect.NONE:
            return False
        if effect is SignalEffect.SNAPSHOT:
            self.num_snapshots += 1
        elif not self.has_stopped and effect is not SignalEffect.END:
            self.stop_signal, self.has_stopped = self.stop_signal or number, True
        else:
            self.kill_signal = number
        self._post(board)
        return self.kill_signal != 0

    def hear(self, stop_signal: int, num_snapshots: int, board: RunBoard) -> None:
        """Act on what other hosts ask for; it never ends ranks at once."""
        self.stop_signal = self.stop_signal or stop_signal
        self.num_snapshots = max(self.num_snapshots, num_snapshots)
        self._post(board)

    def _post(self, board: RunBoard) -> None:
        board.post(board.launcher_row, BoardWord.STOP_SIGNAL, self.stop_signal)
        board.post(board.launcher_row, BoardWord.SNAPSHOT_REQUESTS, self.num_snapshots)


class Forks:
    """Ranks that the first one of a host forks after its imports (see training/rank.py), so that these are done once.

    A process between the two forks them and ends. The launcher, which adopts orphans meanwhile, is then their parent.
    """

    def __init__(self, is_disturbed: Callable[[], bool]) -> None:
        self._is_disturbed = is_disturbed
        self._near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._between = -1
        self._deadline = Deadline.after(_IMPORT_S)

    def __enter__(self) -> "Forks":
        _one_adopts.acquire()
        self._adopted_before = _native.adopt_orphans(True)
        return self

    def __exit__(self, *_exception: object) -> None:
        self.far.close()
        self._near.shutdown(socket.SHUT_RDWR)  # a process that another thread has forked may hold a copy
        self._near.close()
        if self._between >= 0:
            readable(self._between, _FORK_S)
            with suppress(ChildProcessError):  # it is a child of this process if the first rank is gone
                os.waitid(os.P_PIDFD, self._between, os.WEXITED | os.WNOHANG)
            os.close(self._between)
        _native.adopt_orphans(self._adopted_before)
        _one_adopts.release()

    def fork(self, rank: int, descriptors: Sequence[int]) -> ForkedProcess | None:
        """A rank with this pipe and log; None if the first one is gone, not ready, or has no room."""
        self.far.close()
        if not self._is_ready():
            return None
        try:
            socket.send_fds(self._near, [str(rank).encode()], descriptors)
            if not readable(self._near.fileno(), _FORK_S):
                self._near.shutdown(socket.SHUT_RDWR)  # one that answers from now on gets an error, and ends
            answer = self._near.recv(_ANSWER_BYTES)
        except ConnectionError:  # it ended, perhaps with the request unread
            return None
        return ForkedProcess(int(answer)) if answer else None

    def _is_ready(self) -> bool:
        while self._between < 0:
            if self._is_disturbed() or self._deadline.passed():
                return False
            if readable(self._near.fileno(), _LOOK_S):
                answer = self._near.recv(_ANSWER_BYTES)
                if not answer:
                    return False
                self._between = os.pidfd_open(int(answer))
        return True


class Launch:
    """Runs one process for each of `log_paths` until all are done or one fails, as `policy` says; then none is left.

    `command(rank, pipe)` gives the arguments of a rank that writes to descriptor `pipe`; `inherited` descriptors keep
    their numbers. `on_output(rank, data)` gets the bytes that a rank wrote to its pipe. With `may_fork` the first of
    several ranks forks the others, as training/rank.py does.
    """

    def __init__(
        self,
        command: Callable[[int, int], Sequence[str]],
        log_paths: Mapping[int, Path],
        board: RunBoard,
        inherited: Sequence[int],
        on_output: Callable[[int, bytes], None],
        threads_per_worker: int = 1,
        policy: EndPolicy | None = None,
        effects: Mapping[int, SignalEffect] = DEFAULT_EFFECTS,
        own: Mapping[int, int] | None = None,
        inbox: Inbox | None = None,
        *,
        may_fork: bool = False,
    ) -> None:
        self._command = command
        self._may_fork = may_fork
        self._own = own or {}
        self._inherited = inherited
        self._log_paths = log_paths
        self._threads_per_worker = threads_per_worker
        self._on_output = on_output
        self.signals = Signals(effects)

        def act(number: int) -> bool:
            is_end = self.signals.take(number, board)
            if inbox is not None:
                inbox.signalled()
            return is_end

        # Nohup, say, has a job live on.
        taken = [n for n in _SIGNALS if effects.get(n) is not SignalEffect.END or signal.getsignal(n) != signal.SIG_IGN]
        self._watch = RankWatch(self._start, list(log_paths), taken, act, policy or EndPolicy(), inbox=inbox)

    def run(self) -> list[RankEnd]:
        """How each rank ended, in the order of their ends; the first failure ended the others.

        Raises InputError if a process cannot be started.
        """
        return self._watch.run()

    def _start(self, ranks: Sequence[int]) -> Iterator[RankProcess]:
        # Where SIGCHLD is ignored, nobody can wait for a child.
        if not self._may_fork or len(ranks) < 2 or signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            yield from (self._opened(rank, self._execute) for rank in ranks)
            return
        with Forks(self._watch.is_disturbed) as forks:
            yield self._opened(ranks[0], partial(self._execute, stdin=forks.far.fileno()))
            for rank in ranks[1:]:
                yield self._opened(rank, partial(self._fork, forks))

    def _opened(
        self, rank: int, start: "Callable[[int, int, int], subprocess.Popen[bytes] | ForkedProcess]"
    ) -> RankProcess:
        read_end, write_end = os.pipe()
        try:
            with self._log_paths[rank].open("ab") as log:
                process = start(rank, write_end, log.fileno())
            return RankProcess(rank, process, {read_end: partial(self._on_output, rank)})
        except OSError as error:
            os.close(read_end)
            raise InputError(f"rank {rank} cannot be started: {error}; see the limits (`ulimit -a`)") from error
        finally:
            os.close(write_end)

    def _fork(self, forks: Forks, rank: int, pipe: int, log: int) -> "subprocess.Popen[bytes] | ForkedProcess":
        descriptors = [pipe, log, *filter(None, [self._own.get(rank)])]
        return forks.fork(rank, descriptors) or self._execute(rank, pipe, log)

    def _execute(self, rank: int, pipe: int, log: int, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            list(self._command(rank, pipe)),
            stdin=stdin,
            stdout=log,
            stderr=log,
            pass_fds=[*self._inherited, *filter(None, [self._own.get(rank)]), pipe],
            env=_CUBLAS | os.environ | dict.fromkeys(_NUM_THREADS, str(self._threads_per_worker)),
            start_new_session=True,
        )
