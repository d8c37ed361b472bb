"""The ranks of one launch: which member of the center each of them is, and what of them is waited for."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from samovar.box.board import Member
from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline, polled
from samovar.transports.base import Region, Transport

_POLL_S = 0.02


class Ranks(Protocol):
    """What a session asks of them."""

    @property
    def rank(self) -> int: ...
    @property
    def own(self) -> Member | None:
        """The member that this rank is, or an earlier life of it was."""
        ...

    def begins_again(self) -> bool:
        """Rank 0 is about to make the center; whether an earlier life was already."""
        ...

    def await_first(self, deadline: Deadline) -> bool:
        """Wait until rank 0 has made the center, or is gone for good; whether the time was enough."""
        ...

    @property
    def is_first_there(self) -> bool:
        """Whether rank 0 has made the center, where all have waited for that."""
        ...

    def take(self, member: Member, first_step: int) -> None:
        """This rank is that member now, and trains from `first_step` on."""
        ...

    def is_gone(self, rank: int, /) -> bool:
        """Whether it is known to be gone for good."""
        ...

    def first_left(self) -> int:
        """The first rank that is not gone, which acts for all; this one where all are."""
        ...


class LaunchRanks:
    """The workers of `samovar train`, over all their lives: a row of each in a window of `transport`.

    `is_gone` tells what the launcher knows. Nobody waits for another to read; a rank that waits for the first `sleep`s.
    All ranks must make this at the same place of their lives.
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
        return self.of(self.rank)

    @property
    def first_step(self) -> int:
        """Where this rank's first life began."""
        return int(self._own[self._FIRST_STEP])

    def begins_again(self) -> bool:
        was_maker, self._own[self._IS_MAKER] = self._own[self._IS_MAKER] > 0, 1.0
        return bool(was_maker)

    def await_first(self, deadline: Deadline) -> bool:
        return polled(lambda: self.is_first_there or self.is_gone(0), deadline, _POLL_S, self._sleep)

    @property
    def is_first_there(self) -> bool:
        return self.rank == 0 or self.of(0) is not None

    def take(self, member: Member, first_step: int) -> None:
        if self.own is None:
            self._own[self._FIRST_STEP] = first_step
        self._own[self._INDEX] = member.index
        self._own[self._INCARNATION] = member.incarnation

    def of(self, rank: int) -> Member | None:
        """None where that rank has not taken a seat yet."""
        words = np.empty_like(self._own)
        self._window.get(rank, 0, words)
        incarnation = int(words[self._INCARNATION])
        return Member(int(words[self._INDEX]), incarnation) if incarnation else None

    def all(self) -> list[Member]:
        """Those of the launch so far."""
        return [member for rank in range(self.world_size) if (member := self.of(rank)) is not None]

    def first_left(self) -> int:
        return next((rank for rank in range(self.world_size) if not self.is_gone(rank)), self.rank)


class JobRanks:
    """The ranks of a user's job, which live once: they show each other rows of numbers, all waiting for all."""

    _NUM_FIELDS = 4
    own: Member | None = None
    is_first_there = True

    def __init__(self, collectives: Collectives, deadline: Callable[[], Deadline]) -> None:
        self.rank, self.world_size = collectives.group.rank, collectives.group.world_size
        self.deadline = deadline
        self._records = collectives.records(self._NUM_FIELDS)
        self._members: Sequence[Member] = ()

    def show(self, *row: float) -> npt.NDArray[np.float64]:
        """Every rank's row, filled up with zeros."""
        self._records.post([*row, *(0.0,) * (self._NUM_FIELDS - len(row))])
        return self._records.collect(self.deadline())

    def bytes_of_first(self) -> bytes:
        """What rank 0 shows as the record of a digest."""
        return np.array(self.show()[0], dtype=">u4").tobytes()

    def begins_again(self) -> bool:
        return False

    def await_first(self, _deadline: Deadline) -> bool:
        self.show()
        return True

    def take(self, member: Member, _first_step: int) -> None:
        self._members = [Member(int(index), int(life)) for index, life, *_ in self.show(*_row_of(member))]

    def is_gone(self, _rank: int, /) -> bool:
        return False

    def first_left(self) -> int:
        return 0

    def all(self) -> list[Member]:
        """By rank, once all have their seats."""
        return list(self._members)


def _row_of(member: Member) -> tuple[int, int]:
    return member.index, member.incarnation
