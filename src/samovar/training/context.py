"""The context of a rank process, and its signals."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from samovar.config import RunConfig
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded
from samovar.core.group import Group
from samovar.core.host import PoliteThreads
from samovar.launch.rank_arguments import SNAPSHOT_SIGNAL, STOP_SIGNALS
from samovar.report.records import Notice, RecordWriter
from samovar.training.loop import Requests
from samovar.transports.base import Transport
from samovar.transports.shm import BoardWord, RunBoard

_PAUSE_S = 0.005
_CROWDED = (
    "rank {}: other programs compute on its cores, so its threads sleep while they wait for each other. The bits stay "
    "the same. One thread for each free core may be faster: --threads-per-worker"
)


@dataclass(frozen=True, slots=True)
class BoxDescriptors:
    """Descriptors of the memory of the run's own box."""

    board: int
    center: int


@dataclass(frozen=True, slots=True)
class RankContext:
    """A rank's settings, and its ways to the other ranks and to the launcher.

    Windows of `lasting` outlive their ranks. `is_gone(rank)` says whether the launcher has given up that rank.
    Strategies with a center have a `box`, on host 0. The rank computes on `device`; None: in the memory that ranks
    share. It was started again `life` times. `key` leads to the key of a run on several hosts. `meet(ranks, deadline)`
    waits for the windows of ranks that were started again together.
    """

    config: RunConfig
    transport: Transport
    lasting: Transport
    writer: RecordWriter
    at_boundary: Callable[[int], Requests]
    is_gone: Callable[[int], bool]
    box: BoxDescriptors | None = None
    device: torch.device | None = None
    life: int = 0
    key: Path | None = None
    meet: Callable[[Sequence[int], Deadline], None] = lambda _ranks, _deadline: None

    @property
    def is_first(self) -> bool:
        return self.transport.group.rank == 0

    def tell(self, level: str, text: str, topic: str = "") -> None:
        """Show a notice, on any rank."""
        self.writer.write(Notice(level=level, text=text, topic=topic))

    def inform(self, text: str) -> None:
        """Report a finding of all ranks once."""
        if self.is_first:
            self.tell("info", text)


class SignalRequests:
    """The requests of signals, which come to this rank directly, or through the launcher over the board.

    Handlers only set numbers; `at_boundary` reads them between two steps.
    """

    def __init__(self, board: RunBoard, group: Group) -> None:
        self._board = board
        self._rank = group.rank
        self._stop_signal = 0
        self._num_snapshots = board.read(group.rank, BoardWord.SNAPSHOT_REQUESTS)  # of an earlier life
        for number in STOP_SIGNALS:
            signal.signal(number, self._note_stop)
        signal.signal(SNAPSHOT_SIGNAL, self._note_snapshot)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, SNAPSHOT_SIGNAL))

    def at_boundary(self, steps_done: int) -> Requests:
        """Show the steps and requests of this rank. Returns the requests so far, of snapshots those of this host."""
        board, launcher = self._board, self._board.launcher_row
        board.post(self._rank, BoardWord.STEPS_DONE, steps_done)
        board.post(self._rank, BoardWord.SNAPSHOT_REQUESTS, self._num_snapshots)
        return Requests(
            self._stop_signal or board.read(launcher, BoardWord.STOP_SIGNAL),
            sum(board.read(row, BoardWord.SNAPSHOT_REQUESTS) for row in range(launcher + 1)),
        )

    def meet(self, life: int, ranks: Sequence[int], deadline: Deadline) -> None:
        """Wait until these ranks, which were started again together, have opened their windows.

        A rank that is back empties its windows as it opens them, so an earlier notification would be lost. Raises
        DeadlineExceeded.
        """
        self._board.post(self._rank, BoardWord.LIFE, life)
        if not polled(
            lambda: all(self._board.read(rank, BoardWord.LIFE) >= life for rank in ranks), deadline, _PAUSE_S
        ):
            raise DeadlineExceeded(
                f"rank {self._rank}: the ranks of its group that were started again did not all come"
            )

    def is_gone(self, rank: int) -> bool:
        """Whether the launcher has given up `rank`."""
        return self._board.read(rank, BoardWord.IS_GONE) != 0

    def _note_stop(self, number: int, _frame: FrameType | None) -> None:
        self._stop_signal = number

    def _note_snapshot(self, _number: int, _frame: FrameType | None) -> None:
        self._num_snapshots += 1


class Boundary:
    """The work of a rank between two steps, in every job."""

    def __init__(self, requests: SignalRequests, num_threads: int, writer: RecordWriter, rank: int) -> None:
        self._requests = requests
        self._threads = PoliteThreads(num_threads)
        self._writer = writer
        self._rank = rank
        self._is_told = False

    def at(self, steps_done: int) -> Requests:
        """Show the steps of this rank. Returns the requests so far."""
        if self._threads.look() and not self._is_told:
            self._is_told = True
            self._writer.write(Notice(level="info", text=_CROWDED.format(self._rank)))
        return self._requests.at_boundary(steps_done)
