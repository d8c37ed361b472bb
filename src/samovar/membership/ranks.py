"""The ranks of one launch: which member of the center each of them is, and the waits for them."""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from samovar.box.board import Member, Rows
from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline, polled
from samovar.transports.base import Region, Transport

_POLL_S = 0.02


class LaunchRanks:
    """The workers of `samovar train` over all their lives: each has a row in a window of `transport`.

    `is_gone` says which ranks the launcher has given up. Reading does not wait for other ranks. A rank that waits for
    the first one `sleep`s in between. All ranks must make this at the same place of their lives.
    """

    _NUM_WORDS = 4
    _INDEX, _INCARNATION, _FIRST_STEP, _IS_MAKER = range(_NUM_WORDS)

    def __init__(
        self,
        transport: Transport,
        is_gone: Callable[[int], bool] = lambda _rank: False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._window = transport.open_window("seats", 8 * self._NUM_WORDS, 0)
        self._own = Region.of(self._window, 0, self._NUM_WORDS, np.float64).array
        self.rank, self.world_size = transport.group.rank, transport.group.world_size
        self.is_gone = is_gone
        self._sleep = sleep

    @property
    def own(self) -> Member | None:
        """The member that this rank is, or that its earlier life was."""
        return self.of(self.rank)

    @property
    def first_step(self) -> int:
        """The step at which this rank's first life began."""
        return int(self._own[self._FIRST_STEP])

    def begins_again(self) -> bool:
        """Note that rank 0 is about to make the center. Returns whether an earlier life noted it already."""
        was_maker, self._own[self._IS_MAKER] = self._own[self._IS_MAKER] > 0, 1.0
        return bool(was_maker)

    def await_first(self, deadline: Deadline) -> bool:
        """Wait until rank 0 has made the center, or is gone. Returns False if the deadline passed first."""
        return polled(lambda: self.is_first_there or self.is_gone(0), deadline, _POLL_S, self._sleep)

    @property
    def is_first_there(self) -> bool:
        """Whether rank 0 has made the center; asked after `await_first`."""
        return self.rank == 0 or self.of(0) is not None

    def take(self, member: Member, first_step: int) -> None:
        """Note that this rank is this member now, and trains from `first_step`."""
        row = self._own.copy()
        if self.own is None:
            row[self._FIRST_STEP] = first_step
        row[[self._INDEX, self._INCARNATION]] = member.index, member.incarnation
        self._window.put(self.rank, 0, row)

    def of(self, rank: int) -> Member | None:
        """The member that a rank is; None if it has not taken a seat yet."""
        words = np.empty_like(self._own)
        self._window.get(rank, 0, words)
        incarnation = int(words[self._INCARNATION])
        return Member(int(words[self._INDEX]), incarnation) if incarnation else None

    def all(self) -> list[Member]:
        """The members of the launch so far."""
        return [member for rank in range(self.world_size) if (member := self.of(rank)) is not None]

    def first_left(self) -> int:
        """The first rank that is not gone, which acts for all; this one if all are gone."""
        return next((rank for rank in range(self.world_size) if not self.is_gone(rank)), self.rank)


class JobRanks:
    """The ranks of a user's job, which are not started again: they exchange rows of numbers, all waiting for all."""

    _NUM_FIELDS = 4
    own: Member | None = None
    is_first_there = True

    def __init__(self, collectives: Collectives, deadline: Callable[[], Deadline]) -> None:
        self.rank, self.world_size = collectives.group.rank, collectives.group.world_size
        self.deadline = deadline
        self._records = collectives.records(self._NUM_FIELDS)
        self._members: Sequence[Member] = ()

    def show(self, *row: float) -> npt.NDArray[np.float64]:
        """Show `row`, and return every rank's row, filled up with zeros."""
        self._records.post([*row, *(0.0,) * (self._NUM_FIELDS - len(row))])
        return self._records.collect(self.deadline())

    def bytes_of_first(self) -> bytes:
        """The bytes that rank 0 shows as the record of a digest."""
        return np.array(self.show()[0], dtype=">u4").tobytes()

    def begins_again(self) -> bool:
        return False

    def await_first(self, _deadline: Deadline) -> bool:
        self.show()
        return True

    def take(self, member: Member, _first_step: int) -> None:
        rows = self.show(member.index, member.incarnation)
        self._members = [Member(int(index), int(life)) for index, life, *_ in rows]

    def is_gone(self, _rank: int, /) -> bool:
        return False

    def first_left(self) -> int:
        return 0

    def all(self) -> list[Member]:
        """The members by rank, once all have their seats."""
        return list(self._members)


class KeptRanks(JobRanks):
    """The ranks of a job with `samovar run --keep-going`: each has the board's row of its number, over all its lives.

    At the start all wait for all. A rank that is started again is not awaited, and does not wait for others.
    """

    def __init__(self, collectives: Collectives, deadline: Callable[[], Deadline], life: int) -> None:
        super().__init__(collectives, deadline)
        self.board: Rows | None = None
        self._life = life

    def show(self, *row: float) -> npt.NDArray[np.float64]:
        return np.zeros((self.world_size, self._NUM_FIELDS)) if self._life else super().show(*row)

    def all(self) -> list[Member]:
        """The members that the ranks are now."""
        board = self.board
        return [] if board is None else [board.row(rank).member for rank in range(self.world_size)]


Ranks: TypeAlias = LaunchRanks | JobRanks  # of one launch, as a session needs them
