"""The center through the verbs of any window: for those of MPI and GASPI, the simulator, and as the reference."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from samovar import _native
from samovar.box.base import PendingPush, Push, Versions
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed
from samovar.core.layout import all_finite, rounded_up
from samovar.transports.background import Background, Job
from samovar.transports.base import Array, Notification, Pending, Spawning, Transport, Window

CHUNK_ELEMENTS = 1 << 16
_HOST = 0  # the rank whose memory holds the center
_BACKGROUND_S = 60.0
_WORD_BYTES = 8
_LINE_BYTES = 64
# A member waits for a chunk at most twice at once: itself, and its push in the background.
_OWN, _PUSH = 0, 1
# Words of a chunk, before two for each member: the sequence number of its last update, and the version with that.
_TAIL, _VERSION, _NUM_WORDS = 0, 1, 2

# change(part of the array, center's chunk): make the update in the chunk.
_Change: TypeAlias = Callable[[slice, Array], None]


class WindowCenter:
    """See `samovar.box.base.Center`; c is in the memory of rank 0, all zeros at the start.

    Every rank of the transport's group opens it. A queue locks a chunk (Mellor-Crummey and Scott 1991). A member swaps
    itself in as the tail and notifies the one before; when it leaves, it notifies the next. So members have their turn
    in the order in which they came, and none spins. Without locks (hogwild), a member reads a chunk, changes it and
    puts it back, which overwrites other updates of that time. If a member dies inside a chunk, those that wait for it
    end with an error that names it. They do so at once if the transport sees its end, else at the deadline. This class
    is the reference for the rules, not for faults.

    One push in the background at a time; `accumulate` and `exchange` await it first. Cost per chunk and update:
    8 to 10 messages there and back; memory 1N floats on rank 0 (with velocity 2N), two chunks elsewhere.
    """

    def __init__(
        self,
        transport: Transport,
        num_elements: int,
        *,
        with_velocity: bool = False,
        with_locks: bool = True,
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> None:
        self.num_elements = num_elements
        self.chunk_elements = chunk_elements
        self.with_velocity = with_velocity
        self._transport = transport
        self._rank = transport.group.rank
        self._with_locks = with_locks
        self.num_chunks = -(-num_elements // chunk_elements)
        self._chunk_words = _NUM_WORDS + 2 * transport.group.world_size
        self._center_offset = rounded_up(self.num_chunks * self._chunk_words * _WORD_BYTES, _LINE_BYTES)
        self._velocity_offset = rounded_up(self._center_offset + 4 * num_elements, _LINE_BYTES)
        num_bytes = self._velocity_offset + 4 * num_elements * with_velocity
        self._window: Window = transport.open_window("center", num_bytes, 4)
        self._thread = Background("samovar-push", independent=True)
        self._pushing: PendingPush | None = None
        self.lock_wait_s = 0.0

    def write(self, values: Array, deadline: Deadline) -> None:
        """c = values."""
        _require_finite(values)
        self._write(self._center_offset, values, deadline)

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        return self._read(self._center_offset, destination, deadline)

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        if momentum and not self.with_velocity:
            raise InputError(f"momentum {momentum:g}: this center keeps no velocity; make it with one")
        self._settle(deadline)
        return self._update(_OWN, sequence, deadline, self._adding(difference, momentum))

    def accumulate_in_background(self, sequence: int, difference: Array) -> Push:
        return self._in_background(sequence, self._adding(difference, 0.0))

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        self._settle(deadline)
        return self._update(_OWN, sequence, deadline, self._pulling(weights, moving_rate))

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> Push:
        return self._in_background(sequence, self._pulling(weights, moving_rate))

    def read_velocity(self, destination: Array, deadline: Deadline) -> Versions:
        """destination = v."""
        assert self.with_velocity, "made without a velocity"
        return self._read(self._velocity_offset, destination, deadline)

    def write_velocity(self, values: Array, deadline: Deadline) -> None:
        """v = values; for the start."""
        assert self.with_velocity, "made without a velocity"
        self._write(self._velocity_offset, values, deadline)

    def close(self) -> None:
        """End the thread of pushes, when the last has come."""
        self._thread.close(_BACKGROUND_S)

    def _settle(self, deadline: Deadline) -> None:
        if self._pushing is not None:
            self._pushing.wait(deadline)

    def _in_background(self, sequence: int, change: _Change) -> Push:
        assert self._pushing is None or self._pushing.is_awaited, "the push before comes first"
        found: list[Versions] = []

        def push(deadline: Deadline) -> None:
            found.append(self._update(_PUSH, sequence, deadline, change))

        def landed(deadline: Deadline) -> Versions:
            work.wait(deadline)
            return found[0]

        if isinstance(self._transport, Spawning):
            work: Pending = self._transport.spawn("push to the center", push)
        else:
            what = f"rank {self._rank}: its push to the center"
            work = self._thread.submit(Job(what, lambda _job: push(Deadline.after(_BACKGROUND_S))))
        self._pushing = PendingPush(landed)
        return self._pushing

    def _update(self, lane: int, sequence: int, deadline: Deadline, change: _Change) -> Versions:
        """Every chunk that does not hold the update yet: read, change, put back, count."""
        window, versions = self._window, np.zeros(self.num_chunks, np.int64)
        chunk_memory, last = np.empty(self.chunk_elements, np.float32), np.zeros(2, np.int64)
        for chunk, part in self._parts():
            offset, last_offset = self._center_offset + 4 * part.start, self._last_offset(chunk)
            center = chunk_memory[: part.stop - part.start]
            with self._locked(chunk, lane, deadline):
                window.get(_HOST, last_offset, last)
                if sequence > last[0]:
                    window.get(_HOST, offset, center)
                    change(part, center)
                    _require_finite(center)
                    window.put(_HOST, offset, center)
                    # Atomics come after puts to the same rank: when this one answers, the chunk is in place.
                    last[:] = sequence, window.fetch_add(_HOST, self._word(chunk, _VERSION), 1) + 1
                    window.put(_HOST, last_offset, last)
                versions[chunk] = last[1]
        return versions

    def _last_offset(self, chunk: int) -> int:
        """Where it stands which of this member's updates the chunk holds."""
        return self._word(chunk, _NUM_WORDS + 2 * self._rank)

    def _adding(self, difference: Array, momentum: float) -> _Change:
        """c += d, or v = m v + d; c += v"""

        def add(part: slice, center: Array) -> None:
            np.add(center, difference[part], out=center)

        def add_with_momentum(part: slice, center: Array) -> None:
            velocity, offset = np.empty_like(center), self._velocity_offset + 4 * part.start
            self._window.get(_HOST, offset, velocity)
            velocity *= np.float32(momentum)
            velocity += difference[part]
            _require_finite(velocity)
            _require_finite(center + velocity)
            self._window.put(_HOST, offset, velocity)
            np.add(center, velocity, out=center)

        return add_with_momentum if momentum else add

    def _pulling(self, weights: Array, moving_rate: float) -> _Change:
        """d = alpha (x - c), x -= d, c += d"""
        differences = np.empty(self.chunk_elements, np.float32)

        def pull(part: slice, center: Array) -> None:
            difference = differences[: len(center)]
            _native.elastic_pull(weights[part], center, difference, moving_rate)
            np.add(center, difference, out=center)

        return pull

    def _read(self, offset: int, destination: Array, deadline: Deadline) -> Versions:
        versions = np.zeros(self.num_chunks, np.int64)
        for chunk, part in self._parts():
            with self._locked(chunk, _OWN, deadline):
                self._window.get(_HOST, offset + 4 * part.start, destination[part])
                versions[chunk] = self._window.fetch_add(_HOST, self._word(chunk, _VERSION), 0)
        return versions

    def _write(self, offset: int, values: Array, deadline: Deadline) -> None:
        for chunk, part in self._parts():
            with self._locked(chunk, _OWN, deadline):
                self._window.put(_HOST, offset + 4 * part.start, values[part])
                self._window.fetch_add(_HOST, self._word(chunk, _VERSION), 0)  # answers when the chunk is in place

    @contextmanager
    def _locked(self, chunk: int, lane: int, deadline: Deadline) -> Iterator[None]:
        if not self._with_locks:
            yield
            return
        self._lock(chunk, lane, deadline)
        try:
            yield
        finally:
            self._unlock(chunk, lane, deadline)

    def _lock(self, chunk: int, lane: int, deadline: Deadline) -> None:
        tail, own, before = self._word(chunk, _TAIL), _place(self._rank, lane), 0
        while (found := self._window.compare_swap(_HOST, tail, before, own)) != before:
            before = found
        if before:
            rank, its_lane = _owner(before)
            self._window.notify(rank, Notification(_next_slot(its_lane), own))
            before_s = deadline.remaining_s()
            self._await_turn(chunk, rank, _turn_slot(lane), deadline)
            self.lock_wait_s += max(0.0, before_s - deadline.remaining_s())

    def _await_turn(self, chunk: int, rank: int, slot: int, deadline: Deadline) -> None:
        """Wait until `rank`, the one before in the queue, leaves. If it has ended, it never will."""
        try:
            self._window.wait(slot, 1, rank, deadline)
        except (DeadlineExceeded, RankFailed) as error:
            kind = RankFailed if isinstance(error, RankFailed) else DeadlineExceeded
            reason = str(error).partition(": ")[2]
            raise kind(
                f"rank {self._rank}: waits for chunk {chunk} of the center, which rank {rank} has before it: {reason}"
            ) from error
        self._window.wait_any(_one(slot), deadline)  # which clears the slot

    def _unlock(self, chunk: int, lane: int, deadline: Deadline) -> None:
        own = _place(self._rank, lane)
        if self._window.compare_swap(_HOST, self._word(chunk, _TAIL), own, 0) == own:
            return
        _, following = self._window.wait_any(_one(_next_slot(lane)), deadline)
        rank, its_lane = _owner(following)
        self._window.notify(rank, Notification(_turn_slot(its_lane), 1))

    def _parts(self) -> Iterator[tuple[int, slice]]:
        for chunk in range(self.num_chunks):
            start = chunk * self.chunk_elements
            yield chunk, slice(start, min(start + self.chunk_elements, self.num_elements))

    def _word(self, chunk: int, index: int) -> int:
        return (chunk * self._chunk_words + index) * _WORD_BYTES


def _require_finite(values: Array) -> None:
    """Raises NotFinite."""
    if not all_finite(values):
        raise NotFinite("a chunk of the center would not be finite; it stays as it was")


def _place(rank: int, lane: int) -> int:
    """The number of a waiting member in a queue; 0 is none."""
    return 2 * rank + lane + 1


def _owner(place: int) -> tuple[int, int]:
    return divmod(place - 1, 2)


def _next_slot(lane: int) -> int:
    """The place where the next one in the queue writes its number."""
    return 2 * lane


def _turn_slot(lane: int) -> int:
    """Where the one before says that it has left."""
    return 2 * lane + 1


def _one(slot: int) -> range:
    return range(slot, slot + 1)
