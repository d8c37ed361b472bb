"""A center made of centers: one in each of several boxes, so that each host's link carries its share."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, TypeVar

import numpy as np

from samovar.box.base import PendingPush, Push, SeatCenter, Versions
from samovar.box.board import Member, MemberProgress, Row, Rows
from samovar.box.buffers import BufferShape
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.transports.base import Array

# Of the words that all members share.
SHARD_WORDS: Final = (12, 13)
_SET_WORD, _PLACE_WORD = SHARD_WORDS
_COUNT_SHIFT: Final = 32
_LINE_ELEMENTS: Final = 16  # 64 bytes


@dataclass(frozen=True, slots=True)
class CenterShard:
    """Shard `index` of `count`, from 0 on; `set_number` is common to the shards of one center, and to no other's."""

    index: int
    count: int
    set_number: int

    def __str__(self) -> str:
        return f"part {self.index + 1} of {self.count}"

    @classmethod
    def on(cls, board: Rows) -> "CenterShard | None":
        """The shard that the board names; None for a whole center, or a shard that is not marked yet."""
        place = board.word(_PLACE_WORD)
        return cls._of(place, board.word(_SET_WORD))

    @classmethod
    def among(cls, words: Sequence[int]) -> "CenterShard | None":
        """The same of a copy of the board's words."""
        return cls._of(int(words[_PLACE_WORD]), int(words[_SET_WORD]))

    @classmethod
    def _of(cls, place: int, set_number: int) -> "CenterShard | None":
        if place == 0:
            return None
        return cls((place & (2**_COUNT_SHIFT - 1)) - 1, place >> _COUNT_SHIFT, set_number)

    def say(self, board: Rows) -> int:
        """Write it on a new shard's board; the number of its set, which an earlier try may have said already."""
        set_number = board.claim_word(_SET_WORD, self.set_number)
        board.claim_word(_PLACE_WORD, self.count << _COUNT_SHIFT | self.index + 1)
        return set_number


def cut(whole: BufferShape, num_shards: int) -> list[BufferShape]:
    """The shards of a center of N elements, in their order; a pure function, the same for all members.

    Each of K shards has q = ceil(N / (K C)) chunks; a chunk has at most C elements (`whole.chunk_elements`). Each chunk
    has ceil(N / (K q)) elements, rounded up to lines of 64 bytes if no shard becomes empty by that. The last shard may
    be smaller. So shards differ by less than 16 q elements, or K q if N is small. Raises InputError if a shard would be
    empty.
    """
    if num_shards == 1:
        return [whole]
    size = whole.num_elements
    num_chunks = -(-size // (num_shards * whole.chunk_elements))
    chunk = -(-size // (num_shards * num_chunks))
    in_lines = min(-(-chunk // _LINE_ELEMENTS) * _LINE_ELEMENTS, whole.chunk_elements)
    if in_lines * num_chunks * (num_shards - 1) < size:
        chunk = in_lines
    step = chunk * num_chunks
    if step * (num_shards - 1) >= size:
        raise InputError(f"{size:,} elements cannot be cut over {num_shards} boxes; give fewer boxes")
    starts = range(0, step * num_shards, step)
    return [replace(whole, num_elements=min(step, size - start), chunk_elements=chunk) for start in starts]


def whole_of(shards: Sequence[BufferShape]) -> BufferShape:
    """The center that these are shards of; `chunk_elements` are those of a shard."""
    return replace(shards[0], num_elements=sum(shard.num_elements for shard in shards))


_Found = TypeVar("_Found")


class ShardedCenter:
    """See `samovar.box.base.SeatCenter`; the elements of `shards`, one after the other, each cut by its own chunks.

    Every operation runs on all shards at once, under one deadline. A shard by itself repeats requests without an
    answer, and ignores updates that it holds. So an operation that failed for one of them may be tried again as a
    whole, with the same sequence and array, and counts once in each. An error is raised when no shard is at work.

    Cost: that of the slowest shard; a thread for each.
    """

    def __init__(self, shards: Sequence[SeatCenter]) -> None:
        edges = list(accumulate((shard.num_elements for shard in shards), initial=0))
        self.num_elements, self.chunk_elements = edges[-1], shards[0].chunk_elements
        self._shards = list(zip(shards, (slice(*pair) for pair in pairwise(edges)), strict=True))
        self._threads = ThreadPoolExecutor(len(shards), "samovar-shard")

    @property
    def lock_wait_s(self) -> float:
        """Shards wait at the same time: of the one that waited longest."""
        return max(shard.lock_wait_s for shard, _ in self._shards)

    def write(self, values: Array, deadline: Deadline) -> None:
        self._on_all(lambda shard, own: shard.write(values[own], deadline))

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        return np.concatenate(self._on_all(lambda shard, own: shard.read(destination[own], deadline)))

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        return np.concatenate(
            self._on_all(lambda shard, own: shard.accumulate(sequence, difference[own], deadline, momentum))
        )

    def accumulate_in_background(self, sequence: int, difference: Array) -> Push:
        return self._begin(lambda shard, own: shard.accumulate_in_background(sequence, difference[own]))

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        return np.concatenate(
            self._on_all(lambda shard, own: shard.exchange(sequence, weights[own], moving_rate, deadline))
        )

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> Push:
        return self._begin(lambda shard, own: shard.exchange_in_background(sequence, weights[own], moving_rate))

    def read_velocity(self, destination: Array, deadline: Deadline) -> Versions:
        return np.concatenate(self._on_all(lambda shard, own: shard.read_velocity(destination[own], deadline)))

    def write_velocity(self, values: Array, deadline: Deadline) -> None:
        self._on_all(lambda shard, own: shard.write_velocity(values[own], deadline))

    def close(self) -> None:
        """End the threads; the maker of the shards closes them."""
        self._threads.shutdown()

    def _begin(self, work: Callable[[SeatCenter, slice], Push]) -> Push:
        return PendingPush(partial(_all_landed, [work(shard, own) for shard, own in self._shards]))

    def _on_all(self, work: Callable[[SeatCenter, slice], _Found]) -> list[_Found]:
        futures = [self._threads.submit(work, shard, own) for shard, own in self._shards]
        wait(futures)
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise _gravest(errors)
        return [future.result() for future in futures]


class ShardedBoard:
    """See `samovar.box.board.Rows`: the first box's board, which alone has words for all members of the center.

    Posts are shown in every box, each in the member's row there.
    """

    def __init__(self, boards: Sequence[Rows], members: Sequence[Member]) -> None:
        self._first = boards[0]
        self.max_members = self._first.max_members
        self._places = list(zip(boards, members, strict=True))

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


def _all_landed(pushes: Sequence[Push], deadline: Deadline) -> Versions:
    """Raises when no shard is at work any more, or the deadline has passed."""
    errors: list[BaseException] = []
    for push in pushes:
        try:
            push.wait(deadline)
        except SamovarError as error:
            errors.append(error)
    if errors:
        raise _gravest(errors)
    return np.concatenate([push.versions for push in pushes])
