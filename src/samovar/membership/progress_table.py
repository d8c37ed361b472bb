"""The progress that asynchronous workers see of each other: numbers on a board, written by each, read by all."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samovar.box.board import MemberProgress
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded
from samovar.membership.members import Members, still_lagging
from samovar.transports.base import Region, Transport

STALENESS_BINS = 16  # updates that came in between: 0, 1, ...; the last bin counts all that are more
_END_POLL_S = 0.02
_LOOK_FAR_EVERY_S = 0.1
# A worker's row: numbers that it alone writes, then its staleness.
_IS_READY, _BEGUN_S, _IS_FINISHED, _HAS_TOLD, _STOP, _STEPS, _SPEED, _LOSS, _DISTANCE = range(9)
# Samples, updates, seconds lost to others and refused updates count over all its lives, as staleness does.
_COUNTS = slice(9, 13)
_FIRST_STALENESS = 13


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The progress of a worker. `loss` is that of its last step; nan before.

    `staleness[k]` counts its updates that found k updates of others that it had not seen. It lost `lock_wait_s` to
    others at the center. The center refused `num_refused` of its updates, which were not finite. `distance` is
    ||x - c|| / ||c||, measured now and then. `is_gone`: it died and does not come back.
    """

    steps_done: int
    num_samples: int = 0
    samples_per_second: float = 0.0
    loss: float = float("nan")
    num_updates: int = 0
    num_refused: int = 0
    staleness: tuple[int, ...] = (0,) * STALENESS_BINS
    lock_wait_s: float = 0.0
    distance: float = float("nan")
    is_finished: bool = False
    is_gone: bool = False


class ProgressTable:
    """The progress of the workers of one launch, as worker `rank` sees it; `members` share its center.

    Each worker has a row of numbers in a window of `transport`. Others read it at any time without waiting.
    `is_gone(rank)` says whether the launcher has given up a rank. This life of the worker begins at `first_step`. Ranks
    of `own_host` have the clock of this one; None: all have.
    """

    def __init__(
        self,
        transport: Transport,
        members: Members,
        is_gone: Callable[[int], bool],
        first_step: int,
        own_host: Sequence[int] | None = None,
    ) -> None:
        self.rank, self.world_size = transport.group.rank, transport.group.world_size
        self._own_host = range(self.world_size) if own_host is None else own_host
        self._members, self._is_gone, self._first_step = members, is_gone, first_step
        num_words = _FIRST_STALENESS + STALENESS_BINS
        self._window = transport.open_window("workers", 8 * num_words, 0)
        self._row = Region.of(self._window, 0, num_words, np.float64).array
        self._far: dict[int, tuple[float, npt.NDArray[np.float64]]] = {}
        self._earlier, self._looked_s = self._row.copy(), 0.0
        for word in (_IS_FINISHED, _HAS_TOLD):
            self._note(word, 0.0)

    @property
    def is_first(self) -> bool:
        """Whether this worker reports, tests and saves for its launch: it is the first that is not gone."""
        return self._first == self.rank

    @property
    def _first(self) -> int:
        return next((rank for rank in range(self.rank) if not self._is_gone(rank)), self.rank)

    def is_alone(self, group_size: int) -> bool:
        """Whether all other workers of the launch, outside this worker's group, are gone."""
        own = self.rank // group_size
        return all(rank // group_size == own or self._is_gone(rank) for rank in range(self.world_size))

    @property
    def leads(self) -> bool:
        """Whether this launch tests and saves during the run, for all."""
        return self._members.leads

    def earlier_steps(self, group_size: int = 1) -> int:
        """The steps that an earlier life of this worker did; without one, the step where this life starts.

        Workers of a group of `group_size` start from one step, the most that any of them did.
        """
        first = self.rank // group_size * group_size
        earlier = (self._words(rank)[_STEPS] for rank in range(first, first + group_size) if rank != self.rank)
        return max(int(self._earlier[_STEPS]), self._first_step, *map(int, earlier))

    def begin(self) -> float:
        """The moment when the first worker of this host began to train, on this host's clock; now, if none has."""
        begun_s = [words[_BEGUN_S] for words in map(self._words, self._own_host) if words[_BEGUN_S] > 0]
        if self._row[_BEGUN_S] == 0:
            self._note(_BEGUN_S, time.monotonic())
            begun_s.append(self._row[_BEGUN_S])
        return float(min(begun_s))

    @property
    def has_begun(self) -> bool:
        """Whether any worker of the launch has begun to train."""
        return any(self._words(rank)[_BEGUN_S] > 0 for rank in range(self.world_size))

    def is_ready(self) -> None:
        """Show that this worker can begin. An earlier life may have shown it already."""
        self._note(_IS_READY)

    def wait_for_all(self, patience_s: float) -> None:
        """Wait until every worker that is not gone is ready. Raises DeadlineExceeded, naming the others."""
        self._wait(_IS_READY, patience_s, "is not ready to train")

    def wait_for_ends(self, patience_s: float, *, with_others: bool) -> str:
        """Wait until every worker that is not gone has finished; `with_others`: also those of launches that end now.

        Returns the missing workers of other launches. Raises DeadlineExceeded, naming the workers of this launch that
        make no progress.
        """
        self._wait(_IS_FINISHED, patience_s, "does not finish")
        return self._members.wait_for_others(Deadline.after(patience_s)) if with_others else ""

    def asked_to_stop(self, own: int) -> int:
        """The signal that stops this launch: this worker's `own`, which others see, or that of another one; 0: none.

        The first worker looks at all. Others look at those of their host and at the first: one read from far.
        """
        if not own and (now_s := time.monotonic()) - self._looked_s >= _LOOK_FAR_EVERY_S:
            self._looked_s = now_s
            ranks = range(self.world_size) if self.is_first else {self._first, *self._own_host}
            own = int(max(self._words(rank)[_STOP] for rank in ranks))
        if own:
            self._note(_STOP, float(own))
        return own

    def has_told(self) -> None:
        """Note that this worker has reported the result of its launch."""
        self._note(_HAS_TOLD)

    def wait_until_told(self, deadline: Deadline) -> bool:
        """Whether another worker reports the result; False if all workers before this one are gone."""
        is_over = polled(lambda: self.is_first or self._is_told, deadline, _END_POLL_S)
        return not is_over or self._is_told

    @property
    def _is_told(self) -> bool:
        return any(self._words(rank)[_HAS_TOLD] for rank in range(self.world_size))

    def show(self, state: WorkerState, distance: float | None = None) -> None:
        """Show this worker's progress to the others; the counts are those of this process."""
        row, earlier, bins = self._row.copy(), self._earlier, np.arange(STALENESS_BINS)
        if distance is not None:
            row[_DISTANCE] = distance
        row[[_STEPS, _SPEED, _LOSS]] = state.steps_done, state.samples_per_second, state.loss
        row[_COUNTS] = earlier[_COUNTS] + (state.num_samples, state.num_updates, state.lock_wait_s, state.num_refused)
        row[_FIRST_STALENESS:] = staleness = earlier[_FIRST_STALENESS:] + state.staleness
        # In one go: a killed worker has shown all of a step, or nothing of it.
        self._window.put(self.rank, row.itemsize * _STEPS, row[_STEPS:])
        samples, updates, lock_wait_s, _num_refused = row[_COUNTS].tolist()
        progress = MemberProgress(
            steps=state.steps_done,
            samples=int(samples),
            samples_per_s=state.samples_per_second,
            loss=state.loss,
            staleness_mean=float(bins @ staleness / max(1.0, staleness.sum())),
            staleness_max=int(bins[staleness > 0].max(initial=0)),
            updates=int(updates),
            lock_wait_s=lock_wait_s,
            finished=state.is_finished,
        )
        self._members.post(progress)
        if state.is_finished:
            self._note(_IS_FINISHED)

    def states(self) -> tuple[WorkerState, ...]:
        """The states of all workers, by rank; one that has not begun is at the start of the run."""
        return tuple(self._state(rank) for rank in range(self.world_size))

    def run_steps(self) -> int:
        """The steps of the run as a whole, by the stop rule."""
        return self._members.run_steps()

    def _state(self, rank: int) -> WorkerState:
        words = self._words(rank)
        samples, updates, lock_wait_s, refused = words[_COUNTS].tolist()
        has_begun = bool(words[_BEGUN_S])
        return WorkerState(
            steps_done=int(words[_STEPS]) or self._first_step,
            num_samples=int(samples),
            samples_per_second=float(words[_SPEED]),
            loss=float(words[_LOSS]) if has_begun else float("nan"),
            num_updates=int(updates),
            num_refused=int(refused),
            staleness=tuple(int(count) for count in words[_FIRST_STALENESS:]),
            lock_wait_s=lock_wait_s,
            distance=float(words[_DISTANCE]) if samples else float("nan"),
            is_finished=bool(words[_IS_FINISHED]),
            is_gone=self._is_gone(rank),
        )

    def _note(self, word: int, value: float = 1.0) -> None:
        self._window.put(self.rank, self._row.itemsize * word, np.array([value]))

    def _words(self, rank: int) -> npt.NDArray[np.float64]:
        """Those of another host as they were a moment ago."""
        now_s = time.monotonic()
        if rank in self._far and now_s - self._far[rank][0] < _LOOK_FAR_EVERY_S:
            return self._far[rank][1]
        words = np.empty_like(self._row)
        self._window.get(rank, 0, words)
        if rank not in self._own_host:
            self._far[rank] = (now_s, words)
        return words

    def _wait(self, word: int, patience_s: float, what: str) -> None:
        def lagging() -> dict[int, int]:
            rows = {rank: self._words(rank) for rank in range(self.world_size) if not self._is_gone(rank)}
            return {rank: int(row[_STEPS]) for rank, row in rows.items() if not row[word]}

        if missing := still_lagging(lagging, lambda: Deadline.after(patience_s)):
            raise DeadlineExceeded(
                f"rank {', '.join(map(str, missing))} {what} within {patience_s:.0f} s; is it stopped or much slower? "
                "See its log, or raise --timeout"
            )


def binned(histogram: Mapping[int, int]) -> tuple[int, ...]:
    """Counts by staleness in `STALENESS_BINS` bins."""
    counts = [0] * STALENESS_BINS
    for staleness, count in histogram.items():
        counts[min(staleness, STALENESS_BINS - 1)] += count
    return tuple(counts)
