"""A center in memory that all members of one machine map: each works on it directly, without a server.

A member makes a chunk's next state in a spare chunk of its own and swaps it in by one compare-and-swap. If another was
faster, it repeats that chunk. There is no lock: a stopped or killed member never delays the others, and every chunk
holds whole updates only. (The scheme is read-copy-update with one spare per writer. An update reads and writes each
byte of c once.)
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from samovar import _native
from samovar.box.base import PendingPush, Versions
from samovar.box.board import MAX_MEMBERS, Board, Member
from samovar.core.clock import Deadline
from samovar.core.closing import Closing
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed
from samovar.core.host import create_empty, is_sealed, seal
from samovar.transports.base import Array

# 256 KiB: a chunk of the center, the spare and the member's own fit into a core's second-level cache of 1 MiB together;
# of 64 KiB, 15 % less is added in a second.
DEFAULT_CHUNK_ELEMENTS: Final = 65_536
_AT_ONCE_S: Final = 60.0


def create_center(
    num_elements: int,
    max_members: int = MAX_MEMBERS,
    with_velocity: bool = False,
    with_locks: bool = True,
    chunk_elements: int = DEFAULT_CHUNK_ELEMENTS,
    takes_any: bool = False,
) -> int:
    """A new center, all zeros; returns its descriptor, which the caller owns.

    Without locks (Hogwild; Recht, Re, Wright, Niu, 2011) members change chunks in place: elements are whole, but of
    two updates at once one may be lost in part. A chunk that would not be finite stays as it is, and its member gets
    NotFinite, unless the center `takes_any`. Cost: 4 bytes an element (8 with velocity), one chunk a member,
    and 32 bytes for each pair of a chunk and a member. Raises InputError if shared memory is short.
    """
    descriptor = create_empty()
    try:
        fill_center(descriptor, num_elements, max_members, with_velocity, with_locks, chunk_elements, takes_any)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def fill_center(
    descriptor: int,
    num_elements: int,
    max_members: int = MAX_MEMBERS,
    with_velocity: bool = False,
    with_locks: bool = True,
    chunk_elements: int = DEFAULT_CHUNK_ELEMENTS,
    takes_any: bool = False,
) -> None:
    """Make a center of a file by `create_empty`, also after another process died doing so; leave a center as it is.

    Only one process at a time may do so. The file is a center for others once `is_filled`.
    """
    if is_filled(descriptor):
        return
    try:
        os.ftruncate(descriptor, 0)
        flags = with_velocity, with_locks, takes_any
        _native.Center.create(descriptor, num_elements, chunk_elements, max_members, *flags)
        seal(descriptor)
    except (OSError, ValueError) as error:
        raise InputError(
            f"shared memory for a center of {num_elements:,} elements cannot be had: {error}; "
            "raise the memory limit or train a smaller net"
        ) from error


def is_filled(descriptor: int) -> bool:
    """Whether the file is a center by now."""
    return is_sealed(descriptor)


class MappedCenter(Closing):
    """The center behind `descriptor` as `member` sees it (see `samovar.box.base.Center`); without a member, read-only.

    The descriptor may be closed afterwards. One object is one member: its updates run one after the other, those in
    the background first. Raises InputError if the file is damaged or not a center, RankFailed if the member's row
    belongs to a newer incarnation or to a living process. With the buffer's `board`, operations raise RankFailed once
    its `box` has ended.
    """

    def __init__(
        self, descriptor: int, member: Member | None = None, board: Board | None = None, box: str = "the box"
    ) -> None:
        self._board, self._box = board, box
        self._name = "the box" if member is None else f"member {member.index} of the box"
        try:
            self._native = _native.Center(descriptor)
            if member is not None:
                self._native.attach(member.index, member.incarnation)
        except ValueError as error:
            raise InputError(f"{self._name}: {error}; start the box again") from error
        except (_native.Fenced, OSError) as error:
            raise RankFailed(f"{self._name} cannot take its place in the center: {error}; join again") from error
        native = self._native
        self.num_elements, self.chunk_elements = native.num_elements, native.chunk_elements
        self.num_chunks, self.max_members = native.num_chunks, native.max_members
        self.with_velocity, self.with_locks = native.has_velocity, native.has_locks
        self.takes_any = native.takes_any
        self.member = member
        self._pushed: dict[int, Array] = {}

    @property
    def lock_wait_s(self) -> float:
        """Seconds that this member lost to others so far: tries at chunks that another changed first."""
        return self._native.lost_s

    def close(self) -> None:
        """End the thread after the chunk at hand and give the row back."""
        self._native.close()
        self._pushed.clear()

    def write(self, values: Array, deadline: Deadline) -> None:
        self.write_chunks(0, values, deadline)

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        return self.read_chunks(0, destination, deadline)

    def write_velocity(self, values: Array, deadline: Deadline) -> None:
        self.write_velocity_chunks(0, values, deadline)

    def read_velocity(self, destination: Array, deadline: Deadline) -> Versions:
        return self.read_velocity_chunks(0, destination, deadline)

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        return self.accumulate_chunks(0, sequence, difference, deadline, momentum)

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        return self.exchange_chunks(0, sequence, weights, moving_rate, deadline)

    def write_chunks(self, first_chunk: int, values: Array, deadline: Deadline) -> None:
        """`write` for the chunks from `first_chunk` on that `values` has the elements of: whole chunks."""
        with self._refusing():
            done = self._native.write(first_chunk, values, False, deadline.remaining_s())
        self._check(done, "write the center")

    def read_chunks(self, first_chunk: int, destination: Array, deadline: Deadline) -> Versions:
        """`read` of as many chunks as `destination` has the elements of."""
        versions = self._versions(destination)
        done = self._native.read(first_chunk, destination, False, versions, deadline.remaining_s())
        self._check(done, "read the center")
        return versions

    def write_velocity_chunks(self, first_chunk: int, values: Array, deadline: Deadline) -> None:
        """`write_velocity` for a part of the chunks."""
        self._check_velocity("its velocity cannot be written")
        with self._refusing():
            done = self._native.write(first_chunk, values, True, deadline.remaining_s())
        self._check(done, "write the velocity")

    def read_velocity_chunks(self, first_chunk: int, destination: Array, deadline: Deadline) -> Versions:
        """`read_velocity` of a part of the chunks, and their versions."""
        self._check_velocity("its velocity cannot be read")
        versions = self._versions(destination)
        done = self._native.read(first_chunk, destination, True, versions, deadline.remaining_s())
        self._check(done, "read the velocity")
        return versions

    def accumulate_chunks(
        self, first_chunk: int, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0
    ) -> Versions:
        """`accumulate` into a part of the chunks; parts of one sequence may come in any order, and again."""
        self._check_momentum(momentum)
        versions, waiting_s = self._versions(difference), deadline.remaining_s()
        with self._refusing():
            done = self._native.accumulate(first_chunk, sequence, difference, momentum, versions, waiting_s)
        self._check(done, "add to the center")
        return versions

    def exchange_chunks(
        self,
        first_chunk: int,
        sequence: int,
        weights: Array,
        moving_rate: float,
        deadline: Deadline,
        moved: Array | None = None,
    ) -> Versions:
        """`exchange` with a part of the chunks; after DeadlineExceeded the same call continues with the other chunks.

        With `moved`, x - d is written there, and `weights` is only read. A chunk's part of `moved` is complete before c
        shows the change, so it survives this process if its memory does. Chunks that hold the sequence already leave
        `moved` as it is.
        """
        versions, waiting_s = self._versions(weights), deadline.remaining_s()
        with self._refusing():
            if moved is None:
                done = self._native.exchange(first_chunk, sequence, weights, moving_rate, versions, waiting_s)
            else:
                arrays = (weights, moved)
                done = self._native.exchange_into(first_chunk, sequence, *arrays, moving_rate, versions, waiting_s)
        self._check(done, "exchange with the center")
        return versions

    def accumulate_in_background(self, sequence: int, difference: Array, momentum: float = 0.0) -> PendingPush:
        self._check_momentum(momentum)
        ticket = self._native.submit(sequence, difference, momentum)
        self._pushed[ticket] = difference  # the thread reads it, even if no caller waits
        return PendingPush(lambda deadline: self._landed(ticket, deadline))

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> PendingPush:
        """It is over when the call returns: in mapped memory that takes no longer than the copy that a thread needs."""
        push = PendingPush(lambda deadline: self.exchange(sequence, weights, moving_rate, deadline))
        push.wait(Deadline.after(_AT_ONCE_S))
        return push

    def _landed(self, ticket: int, deadline: Deadline) -> Versions:
        versions = np.zeros(self.num_chunks, np.int64)
        with self._refusing():
            done = self._native.wait(ticket, versions, deadline.remaining_s())
        self._check(done, "finish adding to the center")
        self._pushed.pop(ticket, None)
        return versions

    def _versions(self, array: Array) -> Versions:
        return np.zeros(-(-array.size // self.chunk_elements), np.int64)

    def _check_momentum(self, momentum: float) -> None:
        if momentum != 0:
            self._check_velocity(f"momentum {momentum:g} needs a center with a velocity")

    def _check_velocity(self, what: str) -> None:
        if not self.with_velocity:
            raise InputError(f"{self._name}: {what}; this one has none")

    def _check(self, done: bool, what: str) -> None:
        self._check_box()  # also afterwards: a change that meets no error is in the last snapshot of the box
        if not done:
            raise DeadlineExceeded(
                f"{self._name} could not {what} of {self.num_elements:,} elements before its deadline; "
                "is the machine overloaded? Raise --timeout, in a script timeout_s"
            )

    def _check_box(self) -> None:
        if self._board is not None and self._board.has_ended:
            raise RankFailed(f"{self._box} has ended, and this center with it; start it, then connect or join again")

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        self._check_box()
        try:
            yield
        except _native.NotFinite as error:
            raise NotFinite(f"{self._name}: refused, {error}") from error
        except _native.Fenced as error:
            raise RankFailed(f"{self._name}: {error}; join again") from error
