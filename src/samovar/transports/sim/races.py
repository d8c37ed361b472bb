"""Finds unordered accesses to windows, also if this run's schedule hides them.

Every rank has a vector clock. A notification carries its sender's, and the receiver takes it over (happens-before).
Every access to a window is recorded with its rank's time. Two accesses of one byte, one of them a write, are a race if
neither happened before the other: in another schedule their order is reversed. A put counts as written from the call
on, because it may arrive at any time after. Atomics order the accesses around them and are not accesses themselves.

References: Mattern, Virtual time and global states, 1989; Flanagan and Freund, FastTrack, 2009.
Cost: O(P) per notification and wait, O(number of places) per access.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TypeAlias

VectorClock: TypeAlias = list[int]  # which is faster than an array for the few ranks of a checked run


class Race(AssertionError):
    """A read before the write was known to be complete, or a write before the last reader was known to be done."""


@dataclass(slots=True)
class Access:
    """An access: the rank, its time by its own clock, and the kind."""

    rank: int
    tick: int
    verb: str
    at_s: float

    def __str__(self) -> str:
        return f"rank {self.rank}'s {self.verb} at {self.at_s:.9f} s"


@dataclass(slots=True)
class _History:
    """Bytes that have the same history: the last write, and the readers since."""

    write: Access | None = None
    reads: dict[int, Access] = field(default_factory=dict)


class AccessLog:
    """The history of one rank's part of a window, cut into places where accesses begin and end."""

    def __init__(self, window: str, owner: int, num_bytes: int) -> None:
        self.window = window
        self.owner = owner
        self._starts = [0, num_bytes]
        self._places = [_History(), _History()]

    def places(self, start: int, stop: int) -> list[_History]:
        """The places that make up the bytes [start, stop)."""
        first = self._cut(start)
        return self._places[first : self._cut(stop)]

    def _cut(self, at: int) -> int:
        index = bisect_left(self._starts, at)
        if self._starts[index] != at:
            left = self._places[index - 1]
            self._starts.insert(index, at)
            self._places.insert(index, _History(left.write, dict(left.reads)))
        return index


class RaceFinder:
    """The vector clocks of all ranks."""

    def __init__(self, world_size: int) -> None:
        self._clocks: list[VectorClock] = [[0] * world_size for _ in range(world_size)]
        for rank, clock in enumerate(self._clocks):
            clock[rank] = 1

    def release(self, rank: int) -> VectorClock:
        """The clock of a notification that `rank` sends now, without the rank's later work."""
        clock = self._clocks[rank]
        carried = clock.copy()
        clock[rank] += 1
        return carried

    def acquire(self, rank: int, carried: VectorClock) -> None:
        """`rank` has awaited a notification that carried this."""
        self._clocks[rank] = list(map(max, self._clocks[rank], carried))

    def read(self, rank: int, log: AccessLog, start: int, stop: int, verb: str, now_s: float) -> None:
        """Note a read; Race where a write is not known to be complete."""
        clock = self._clocks[rank]
        access = Access(rank, clock[rank], verb, now_s)
        for place in log.places(start, stop):
            if (write := place.write) is not None and clock[write.rank] < write.tick:
                raise _race(write, access, log, start, stop, "read before write")
            place.reads[rank] = access

    def write(self, rank: int, log: AccessLog, start: int, stop: int, verb: str, now_s: float) -> None:
        """Note a write; Race where an earlier access is not known to be done."""
        clock = self._clocks[rank]
        access = Access(rank, clock[rank], verb, now_s)
        for place in log.places(start, stop):
            for earlier in (place.write, *place.reads.values()):
                if earlier is not None and clock[earlier.rank] < earlier.tick:
                    raise _race(earlier, access, log, start, stop, "overwrite before acknowledgement")
            place.write = access
            place.reads.clear()


def _race(earlier: Access, access: Access, log: AccessLog, start: int, stop: int, kind: str) -> Race:
    return Race(
        f"{kind}: {access} touches bytes {start} to {stop} of window {log.window!r} on rank {log.owner}, "
        f"and nothing orders it after {earlier}"
    )
