"""A center made of centers: one in each of several boxes, so that each host's link carries its part."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np

from samovar.box.base import Push, SeatCenter, Versions
from samovar.box.board import Member, Progress, Row, Rows
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError
from samovar.transports.base import Array

_Found = TypeVar("_Found")


class SplitCenter:
    """See `samovar.box.base.SeatCenter`; the elements of `parts`, one part after the other, each cut by its own chunks.

    Every operation runs on all parts at once, under one deadline. A part tries again by itself what was not answered,
    and leaves alone what it holds: an operation that failed for one of them may be tried again as a whole, with the
    same sequence and array, and counts once in each. An error is raised when no part is at work any more.

    Cost: that of the slowest part; a thread for each.
    """

    def __init__(self, parts: Sequence[SeatCenter]) -> None:
        edges = accumulate((part.num_elements for part in parts), initial=0)
        self._parts = [(part, slice(start, stop)) for part, (start, stop) in zip(parts, pairwise(edges), strict=True)]
        self._threads = ThreadPoolExecutor(len(parts), "samovar-part")

    @property
    def num_elements(self) -> int:
        return self._parts[-1][1].stop

    @property
    def chunk_elements(self) -> int:
        return self._parts[0][0].chunk_elements

    @property
    def lock_wait_s(self) -> float:
        """Parts wait at the same time: of the one that waited longest."""
        return max(part.lock_wait_s for part, _ in self._parts)

    def write(self, values: Array, deadline: Deadline) -> None:
        self._on_all(lambda part, own: part.write(values[own], deadline))

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        return np.concatenate(self._on_all(lambda part, own: part.read(destination[own], deadline)))

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        return np.concatenate(
            self._on_all(lambda part, own: part.accumulate(sequence, difference[own], deadline, momentum))
        )

    def accumulate_in_background(self, sequence: int, difference: Array) -> "SplitPush":
        return SplitPush([part.accumulate_in_background(sequence, difference[own]) for part, own in self._parts])

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        return np.concatenate(
            self._on_all(lambda part, own: part.exchange(sequence, weights[own], moving_rate, deadline))
        )

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> "SplitPush":
        return SplitPush(
            [part.exchange_in_background(sequence, weights[own], moving_rate) for part, own in self._parts]
        )

    def read_velocity(self, destination: Array, deadline: Deadline) -> None:
        self._on_all(lambda part, own: part.read_velocity(destination[own], deadline))

    def write_velocity(self, values: Array, deadline: Deadline) -> None:
        self._on_all(lambda part, own: part.write_velocity(values[own], deadline))

    def close(self) -> None:
        """End the threads; the parts are closed by whoever made them."""
        self._threads.shutdown()

    def _on_all(self, work: Callable[[SeatCenter, slice], _Found]) -> list[_Found]:
        futures = [self._threads.submit(work, part, own) for part, own in self._parts]
        wait(futures)
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise _gravest(errors)
        return [future.result() for future in futures]


class SplitPush:
    """See `samovar.box.base.Push`; an update under way to every part."""

    def __init__(self, pushes: Sequence[Push]) -> None:
        self._pushes = pushes

    @property
    def versions(self) -> Versions:
        return np.concatenate([push.versions for push in self._pushes])

    def wait(self, deadline: Deadline) -> None:
        """Raises when no part is at work any more, or the deadline has passed."""
        errors: list[BaseException] = []
        for push in self._pushes:
            try:
                push.wait(deadline)
            except SamovarError as error:
                errors.append(error)
        if errors:
            raise _gravest(errors)


class SplitBoard:
    """See `samovar.box.board.Rows`: the first box's board, which alone has words for all who train at the center.

    Posts are shown in every box, each in the member's row there.
    """

    def __init__(self, boards: Sequence[Rows], members: Sequence[Member]) -> None:
        self._first = boards[0]
        self._places = list(zip(boards, members, strict=True))

    @property
    def max_members(self) -> int:
        return self._first.max_members

    def row(self, index: int) -> Row:
        return self._first.row(index)

    def rows(self) -> list[Row]:
        return self._first.rows()

    def post(self, member: Member, progress: Progress) -> None:
        assert member == self._places[0][1], "a member posts for itself"
        for board, own in self._places:
            board.post(own, progress)

    def word(self, index: int) -> int:
        return self._first.word(index)

    def set_word(self, index: int, value: int) -> None:
        self._first.set_word(index, value)

    def claim_word(self, index: int, value: int) -> int:
        return self._first.claim_word(index, value)


def _gravest(errors: Sequence[BaseException]) -> BaseException:
    """After DeadlineExceeded an operation may be tried again; after anything else it need not."""
    return min(errors, key=lambda error: isinstance(error, DeadlineExceeded))
