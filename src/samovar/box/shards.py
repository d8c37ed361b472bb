"""A center made of centers: one in each of several boxes, so that each host's link carries its part."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Final, TypeVar

import numpy as np

from samovar.box.base import Push, SeatCenter, Versions
from samovar.box.board import Member, MemberProgress, Row, Rows
from samovar.box.buffers import BufferShape
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.transports.base import Array

# Of the words that all members share.
PART_WORDS: Final = (12, 13)
_SET_WORD, _PLACE_WORD = PART_WORDS
_COUNT_SHIFT: Final = 32
_LINE_ELEMENTS: Final = 16  # 64 bytes


@dataclass(frozen=True, slots=True)
class Part:
    """Part `index` of `count`, from 0 on; `set_number` is common to the parts of one center, and to no other's."""

    index: int
    count: int
    set_number: int

    def __str__(self) -> str:
        return f"part {self.index + 1} of {self.count}"

    @classmethod
    def on(cls, board: Rows) -> "Part | None":
        """What the board says; None where the buffer is a whole center, or has not been said to be a part yet."""
        place = board.word(_PLACE_WORD)
        return cls._of(place, board.word(_SET_WORD))

    @classmethod
    def among(cls, words: Sequence[int]) -> "Part | None":
        """The same of a copy of the board's words."""
        return cls._of(int(words[_PLACE_WORD]), int(words[_SET_WORD]))

    @classmethod
    def _of(cls, place: int, set_number: int) -> "Part | None":
        if place == 0:
            return None
        return cls((place & (2**_COUNT_SHIFT - 1)) - 1, place >> _COUNT_SHIFT, set_number)

    def say(self, board: Rows) -> int:
        """Write it on a new part's board; the number of its set, which an earlier try may have said already."""
        set_number = board.claim_word(_SET_WORD, self.set_number)
        board.claim_word(_PLACE_WORD, self.count << _COUNT_SHIFT | self.index + 1)
        return set_number


def cut(whole: BufferShape, num_parts: int) -> list[BufferShape]:
    """The parts of a center of N elements, in their order; a pure function, the same for all who train there.

    Each of K parts has q = ceil(N / (K C)) chunks, C being the most elements of a chunk (`whole.chunk_elements`), and
    each chunk ceil(N / (K q)) elements, in whole lines of 64 bytes where every part still gets some; what is missing
    is missing in the last part. So parts differ by less than 16 q elements, or K q where N is small. Raises InputError
    where a part would be empty.
    """
    if num_parts == 1:
        return [whole]
    size = whole.num_elements
    num_chunks = -(-size // (num_parts * whole.chunk_elements))
    chunk = -(-size // (num_parts * num_chunks))
    in_lines = min(-(-chunk // _LINE_ELEMENTS) * _LINE_ELEMENTS, whole.chunk_elements)
    if in_lines * num_chunks * (num_parts - 1) < size:
        chunk = in_lines
    step = chunk * num_chunks
    if step * (num_parts - 1) >= size:
        raise InputError(f"{size:,} elements cannot be cut over {num_parts} boxes; give fewer boxes")
    starts = range(0, step * num_parts, step)
    return [replace(whole, num_elements=min(step, size - start), chunk_elements=chunk) for start in starts]


def whole_of(parts: Sequence[BufferShape]) -> BufferShape:
    """The center that these are parts of; `chunk_elements` are those of a part."""
    return replace(parts[0], num_elements=sum(part.num_elements for part in parts))


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

    def post(self, member: Member, progress: MemberProgress) -> None:
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
