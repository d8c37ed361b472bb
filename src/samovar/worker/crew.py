"""What workers that wait for nobody see of each other: numbers on a board, written by each, read by all."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samovar.box.board import Board, Member, Progress
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.strategies.stop_rule import run_steps
from samovar.transports.base import Region, Transport

STALENESS_BINS = 16  # updates that came in between: 0, 1, ..., and the last for all that are more
_RATE_STEPS = 50
_POLL_S = 0.002
_BEGUN_WORD = 1  # of the board: when training began, in ns


@dataclass(frozen=True, slots=True)
class WorkerState:
    """How far a worker is. `loss` is that of its last step; nan before.

    `staleness[k]`: how many of its updates found k updates of others that it had not seen. `lock_wait_s` is lost to
    others at the center. `distance` is ||x - c|| / ||c||, measured now and then. `is_gone`: it died for good.
    """

    steps_done: int
    num_samples: int = 0
    samples_per_second: float = 0.0
    loss: float = float("nan")
    num_updates: int = 0
    staleness: tuple[int, ...] = (0,) * STALENESS_BINS
    lock_wait_s: float = 0.0
    distance: float = float("nan")
    is_finished: bool = False
    is_gone: bool = False


class Pace:
    """Samples per second over the last steps of a worker."""

    def __init__(self) -> None:
        self._moments: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=_RATE_STEPS)

    def take(self, num_samples: int) -> float:
        """`num_samples` were trained on since the start; the speed now."""
        self._moments.append((time.monotonic(), num_samples))
        (first_s, first), (last_s, last) = self._moments[0], self._moments[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


class Crew:
    """All workers of a run as worker `rank` of them sees them, who is `member` of the `board`, in the row of its rank.

    `is_gone(rank)` tells what the launcher knows of the others. Beside the board each worker has a row of numbers in a
    window of `transport`: whether it is ready, its distance from the center, its staleness, and `num_statistics` values
    that its layers count (BatchNorm). All of it may be read at any time; nobody waits for it. `earlier` is what the
    row told before this process joined: that of the worker's earlier life, whose counts go on.
    """

    def __init__(
        self,
        transport: Transport,
        board: Board,
        member: Member,
        is_gone: Callable[[int], bool],
        rule: str,
        first_step: int,
        num_statistics: int,
        earlier: Progress,
    ) -> None:
        self.rank, self.world_size = transport.group.rank, transport.group.world_size
        self._board, self._member, self._is_gone = board, member, is_gone
        self._rule, self._first_step, self._earlier = rule, first_step, earlier
        num_words = 2 + STALENESS_BINS
        self._window = transport.open_window("workers", 8 * num_words + 4 * num_statistics, 0)
        self._row = Region.of(self._window, 0, num_words, np.float64).array
        self.own_statistics = Region.of(self._window, 8 * num_words, num_statistics, np.float32).array
        self._statistics_offset = 8 * num_words
        self._earlier_staleness = self._row[2:].copy()

    @property
    def master(self) -> int:
        """The worker that shows, tests and saves for all: the first one that is not gone."""
        return next((rank for rank in range(self.world_size) if not self._is_gone(rank)), self.rank)

    @property
    def is_master(self) -> bool:
        return self.master == self.rank

    def earlier_steps(self) -> int:
        """The steps that an earlier life of this worker did; where there was none, those that the run starts from."""
        return max(self._earlier.steps, self._first_step)

    def begin(self) -> float:
        """The moment when the first worker began to train, on the clock of this host; now, where none has."""
        return self._board.claim_word(_BEGUN_WORD, time.monotonic_ns()) / 1e9

    def is_ready(self) -> None:
        """This worker can begin; as far as the others see, it may have before."""
        self._row[0] = 1.0

    def wait_for_all(self, deadline: Deadline) -> None:
        """Return when every worker that is not gone is ready. Raises DeadlineExceeded, naming those that are not."""
        self._wait(lambda rank: bool(self._words(rank)[0]), deadline, "is not ready to train")

    def wait_for_ends(self, deadline: Deadline) -> None:
        """Return when every worker that is not gone has finished."""
        self._wait(lambda rank: self.states()[rank].is_finished, deadline, "does not finish")

    def show(self, state: WorkerState, distance: float | None = None) -> None:
        """Tell the others how far this worker is; counts are those of this process."""
        if distance is not None:
            self._row[1] = distance
        staleness, bins = self._earlier_staleness + state.staleness, np.arange(STALENESS_BINS)
        self._row[2:] = staleness
        progress = Progress(
            steps=state.steps_done,
            samples=self._earlier.samples + state.num_samples,
            samples_per_s=state.samples_per_second,
            loss=state.loss,
            staleness_mean=float(bins @ staleness / max(1.0, staleness.sum())),
            staleness_max=int(bins[staleness > 0].max(initial=0)),
            updates=self._earlier.updates + state.num_updates,
            lock_wait_s=self._earlier.lock_wait_s + state.lock_wait_s,
            finished=state.is_finished,
        )
        self._board.post(self._member, progress)

    def states(self) -> tuple[WorkerState, ...]:
        """Every worker's, by rank; one that has not begun stands where the run starts."""
        return tuple(self._state(rank) for rank in range(self.world_size))

    def run_steps(self, states: Sequence[WorkerState] | None = None) -> int:
        """The steps of the run as a whole, by the stop rule."""
        if states is None:  # asked before each step: nothing but what is needed
            progresses = (self._board.row(rank).progress for rank in range(self.world_size))
            steps = [max(progress.steps, self._first_step) for progress in progresses]
        else:
            steps = [state.steps_done for state in states]
        return run_steps(self._rule, steps, self.master)

    def mean_statistics(self) -> npt.NDArray[np.float32]:
        """The mean of what the layers of all workers that have begun count, float32 (num_statistics,)."""
        total = np.zeros(len(self.own_statistics), np.float32)
        own, count = np.empty_like(total), 0
        for rank in range(self.world_size):
            if self._words(rank)[0]:
                self._window.get(rank, self._statistics_offset, own)
                total += own
                count += 1
        return total / np.float32(max(1, count))

    def _state(self, rank: int) -> WorkerState:
        progress, words = self._board.row(rank).progress, self._words(rank)
        return WorkerState(
            steps_done=max(progress.steps, self._first_step),
            num_samples=progress.samples,
            samples_per_second=progress.samples_per_s,
            loss=progress.loss,
            num_updates=progress.updates,
            staleness=tuple(int(count) for count in words[2:]),
            lock_wait_s=progress.lock_wait_s,
            distance=float(words[1]) if progress.samples else float("nan"),
            is_finished=progress.finished,
            is_gone=self._is_gone(rank),
        )

    def _words(self, rank: int) -> npt.NDArray[np.float64]:
        words = np.empty_like(self._row)
        self._window.get(rank, 0, words)
        return words

    def _wait(self, condition: Callable[[int], bool], deadline: Deadline, what: str) -> None:
        """A poll: this happens once at either end of a run."""
        waiting_s = deadline.remaining_s()
        while missing := [rank for rank in range(self.world_size) if not (self._is_gone(rank) or condition(rank))]:
            if deadline.passed():
                raise DeadlineExceeded(
                    f"rank {', '.join(map(str, missing))} {what} within {waiting_s:.0f} s; is it stopped or much "
                    "slower? See its log, or raise --timeout"
                )
            time.sleep(_POLL_S)


def binned(histogram: Mapping[int, int]) -> tuple[int, ...]:
    """Counts by staleness in `STALENESS_BINS` bins."""
    counts = [0] * STALENESS_BINS
    for staleness, count in histogram.items():
        counts[min(staleness, STALENESS_BINS - 1)] += count
    return tuple(counts)
