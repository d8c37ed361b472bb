"""Ranks that work for our launcher: each has a pipe for records and a log file, and signals reach it over the board."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from samovar.core.errors import InputError
from samovar.launch.watch import EndPolicy, Inbox, RankEnd, RankProcess, RankWatch
from samovar.transports.shm import BoardWord, RunBoard

__all__ = ["DEFAULT_EFFECTS", "Launch", "RankEnd", "SignalEffect", "Signals"]

# Without this cuBLAS has no deterministic products; it is read when a rank first uses a GPU.
_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
_NUM_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class SignalEffect(Enum):
    """The effect of a signal: stop after the step, write a snapshot, end at once, or nothing."""

    STOP = "stop"
    SNAPSHOT = "snapshot"
    END = "end"
    NONE = "none"


DEFAULT_EFFECTS: Mapping[int, SignalEffect] = {signal.SIGHUP: SignalEffect.SNAPSHOT}


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


class Launch:
    """Runs one process for each of `log_paths` until all are done or one fails, as `policy` says; then none is left.

    `command(rank, pipe)` gives the arguments of a rank that writes to descriptor `pipe`; `inherited` descriptors keep
    their numbers. `on_output(rank, data)` gets the bytes that a rank wrote to its pipe.
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
    ) -> None:
        self._command = command
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

        self._watch = RankWatch(self._start, list(log_paths), _SIGNALS, act, policy or EndPolicy(), inbox=inbox)

    def run(self) -> list[RankEnd]:
        """How each rank ended, in the order of their ends; the first failure ended the others.

        Raises InputError if a process cannot be started.
        """
        return self._watch.run()

    def _start(self, rank: int) -> RankProcess:
        read_end, write_end = os.pipe()
        try:
            with self._log_paths[rank].open("ab") as log:
                process = subprocess.Popen(
                    list(self._command(rank, write_end)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[*self._inherited, *filter(None, [self._own.get(rank)]), write_end],
                    env=_CUBLAS | os.environ | dict.fromkeys(_NUM_THREADS, str(self._threads_per_worker)),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(read_end)
            raise InputError(f"rank {rank} cannot be started: {error}") from error
        finally:
            os.close(write_end)
        return RankProcess(rank, process, {read_end: partial(self._on_output, rank)})
