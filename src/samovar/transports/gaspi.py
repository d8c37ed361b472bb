"""Windows in segments of GASPI: a put with its notification is one `gaspi_write_notify`.

Data moves from and to segments only, so an array elsewhere goes through registered memory of this rank. GPI-2 serves
other ranks in threads of its own, so this rank may compute meanwhile.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np

from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed, SamovarError
from samovar.core.group import Group
from samovar.core.layout import rounded_up
from samovar.transports.base import Array, Notification
from samovar.transports.gaspi_library import (
    ERROR,
    QUEUE_FULL,
    SUCCESS,
    TEST,
    TIMEOUT,
    GaspiLibrary,
    GaspiSegment,
    milliseconds,
)
from samovar.transports.looking import (
    LINE_BYTES,
    WORD_BYTES,
    WORDS,
    LookingTransport,
    LookingWindow,
    Watcher,
    end_at_once,
)

_WATCH_S = 0.1
_FIRST_BYTES = 1 << 20  # of segments; the later ones double, because a process can have 255
_COPY_BYTES = 1 << 20
# A notification has 32 bits: these of the value, and one that is always set, because GASPI knows no notification of 0.
_TOLD = 2**31
_MOST_CHANGE = 2**30
_STUCK, _BROKEN = "takes and gives no data", "its connection broke; see its log"
_transports: list["GaspiTransport"] = []


class GaspiTransport(LookingTransport):
    """This rank's access to its peers' memory by GPI-2 (see `samovar.transports.base.Transport`).

    `library` was started for the same group, and all ranks make this together. Windows open, and peers answer, by
    `deadline_after(timeout_s)`. A window keeps its memory until the process ends.
    """

    _meeting: "GaspiWindow"

    def __init__(
        self,
        group: Group,
        library: GaspiLibrary,
        timeout_s: float,
        names: Sequence[str] | None = None,
        deadline_after: Callable[[float], Deadline] = Deadline.after,
    ) -> None:
        assert library.started == (group.rank, group.world_size), library.started
        super().__init__(group, names, "samovar-gaspi", timeout_s, deadline_after)
        self._library = library
        self._segments: list[GaspiSegment] = []
        self._copies: list[GaspiSegment] = []
        self._is_met = False
        self._watcher = Watcher(self, _WATCH_S, end_at_once, "This rank ends, so that the others notice")
        num_bytes, num_slots = self.meeting_sizes
        # Behind the slots of meetings: for each rank, that it has ended, and one that says nothing.
        self._meeting = self._placed("meeting", num_bytes, 2 * num_slots + 1)
        self._is_met = True
        if not _transports:
            atexit.register(_end_all, os.getpid())
        _transports.append(self)

    def _opened(self, name: str, num_bytes: int, num_slots: int) -> "GaspiWindow":
        window = self._placed(name, num_bytes, num_slots)
        places = self._met(window.place)
        assert set(places) == {window.place}, places
        return window

    def _placed(self, name: str, num_bytes: int, num_slots: int) -> "GaspiWindow":
        """Its zeroed memory, at the same place on every rank, with a word behind it that locks it."""
        size, most_slots = rounded_up(num_bytes + WORD_BYTES, LINE_BYTES), self._library.num_notifications
        if num_slots > most_slots:
            raise SamovarError(f"window {name!r}: it has {num_slots} slots, and GPI-2 gives at most {most_slots}")
        if is_new := not (self._segments and self._has_room(size, num_slots)):
            all_bytes = sum(len(segment.memory) for segment in self._segments)
            self._segments.append(self._library.allocate(max(size, _FIRST_BYTES, all_bytes)))
        segment = self._segments[-1]
        offset, slot = segment.used_bytes, segment.used_notifications
        segment.used_bytes += size
        segment.used_notifications += num_slots
        segment.memory[offset : offset + size] = 0  # before anybody else knows of it
        if is_new:
            self._tell(segment)
        return GaspiWindow(self, name, segment, (offset, slot), num_bytes, num_slots)

    def _has_room(self, num_bytes: int, num_slots: int) -> bool:
        last = self._segments[-1]
        is_wide = last.used_notifications + num_slots <= self._library.num_notifications
        return is_wide and last.used_bytes + num_bytes <= len(last.memory)

    def _tell(self, segment: GaspiSegment) -> None:
        """Every rank knows the segment of every other, when this returns."""
        for peer in range(self.group.world_size):
            with self.watched(peer):
                given = (segment.number, peer, milliseconds(self.deadline()))
                self.require(peer, "segment_register", self._library.call("segment_register", *given))
        for peer in range(self.group.world_size):
            self.finished(peer, partial(self._library.size_on, segment.number, peer), "told no segment")

    def write(self, peer: int, segment: int, offset: int, data: Array, told: tuple[int, int] | None) -> None:
        """Put bytes, and with the last of them the notification `told`: its number and value."""
        queue, done = self._library.queue_of(peer), 0
        for source, place, part in self._registered(data):
            given = (source, place, peer, segment, offset + done, len(part))
            done += len(part)
            if told is None or done < len(data):
                self._post(peer, "write", *given, queue)
            else:
                self._post(peer, "write_notify", *given, *told, queue)
        if told is not None and not done:
            self._post(peer, "notify", segment, peer, *told, queue)

    def read(self, peer: int, segment: int, offset: int, destination: Array) -> None:
        done = 0
        for target, place, part in self._registered(destination, fills=True):
            given = (target, place, peer, segment, offset + done, len(part))
            self._post(peer, "read", *given, self._library.queue_of(peer))
            done += len(part)

    def atomic(self, name: str, peer: int, *given: int) -> int:
        """The old word. GPI-2 waits without end for the answer, so the watcher does, too."""
        with self.watched(peer):
            timeout_ms = milliseconds(self.deadline())
            try:
                return self._library.word(name, *given, timeout_ms)
            except SamovarError as error:
                raise self._failed(peer) or error from None

    def _registered(self, data: Array, *, fills: bool = False) -> Iterator[tuple[int, int, Array]]:
        """Parts of the array as segment, offset and bytes. An array elsewhere goes through memory of this rank."""
        for segment in self._segments:
            if (place := segment.place_of(data)) is not None:
                most = self._library.most_bytes
                for start in range(0, len(data), most):
                    yield segment.number, place + start, data[start : start + most]
                return
        with self._copy() as segment:
            for start in range(0, len(data), _COPY_BYTES):
                part = data[start : start + _COPY_BYTES]
                copied = segment.memory[: len(part)]
                if not fills:
                    copied[:] = part
                yield segment.number, 0, part
                if fills:
                    part[:] = copied

    @contextmanager
    def _copy(self) -> Iterator[GaspiSegment]:
        """Registered memory that no other thread uses meanwhile."""
        try:
            segment = self._copies.pop()
        except IndexError:
            with self._counting:
                segment = self._library.allocate(_COPY_BYTES, is_own=True)
        try:
            yield segment
        finally:
            self._copies.append(segment)

    def _post(self, peer: int, name: str, *given: int) -> None:
        """Begin an operation on the peer, and wait until this rank's memory may be used again."""

        def begin() -> bool | None:
            code = self._library.call(name, *given, TEST)
            if code in (TIMEOUT, QUEUE_FULL):
                self._drain(peer)
                return None
            self.require(peer, name, code)
            return True

        self.finished(peer, begin, _STUCK)
        self.finished(peer, partial(self._drain, peer), _STUCK)

    def _drain(self, peer: int) -> bool | None:
        """True when all operations in the peer's queue are complete. An error there may be about another rank."""
        code = self._library.call("wait", self._library.queue_of(peer), TEST)
        if (failed := self._failed(peer)) is not None:
            raise failed
        if code not in (SUCCESS, TIMEOUT, ERROR):
            self._library.require("wait", code)
        return True if code == SUCCESS else None

    def finished(self, peer: int, look: Callable[[], object], what: str) -> None:
        """Wait until `look` finds something, of a peer that may have ended its work and still serves its memory.

        Raises RankFailed if the peer is gone, DeadlineExceeded.
        """
        deadline = self.deadline()
        waiting_s = deadline.remaining_s()
        if self.until(look, lambda: self.is_broken(peer), deadline) is not None:
            return
        if (failed := self._failed(peer)) is not None:
            raise failed
        own, other = self.names[self.group.rank], self.names[peer]
        raise DeadlineExceeded(f"{own}: {other} {what} within {waiting_s:.1f} s; is it stopped, or is its host gone?")

    def require(self, peer: int, name: str, code: int) -> None:
        if code != SUCCESS:
            if (failed := self._failed(peer)) is not None:
                raise failed
            self._library.require(name, code)

    def _failed(self, peer: int) -> RankFailed | None:
        if not self._library.is_corrupt(peer):
            return None
        reason = self.give_up(peer) or self.lost_elsewhere(peer) or _BROKEN
        return RankFailed(f"{self.names[self.group.rank]}: {self.names[peer]} is gone: {reason}")

    def _lost_here(self, peer: int) -> str | None:
        if (reason := self.lost_elsewhere(peer)) is not None:
            return reason
        if self._meeting.told(self.group.world_size + peer):
            return "it has ended"
        return _BROKEN if self.is_broken(peer) else None

    def is_broken(self, peer: int) -> bool:
        """Whether operations on the peer fail. One that changes nothing shows it, now or at the next call."""
        if peer == self.group.rank or not self._is_met:
            return False
        if not self._library.is_corrupt(peer):
            segment, number = self._meeting.slot(2 * self.group.world_size)
            self._library.call("notify", segment, peer, number, _TOLD, self._library.queue_of(peer), TEST)
            self._library.call("wait", self._library.queue_of(peer), TEST)
        return self._library.is_corrupt(peer)

    def farewell(self, deadline_after: Callable[[float], Deadline] = lambda _seconds: FOR_EVER) -> None:
        """A rank's GPI-2 drops what it has not read yet when this process ends."""
        if self not in _transports:
            return
        _transports.remove(self)
        self._is_closed, self._deadline_after, self.lost_elsewhere = False, deadline_after, lambda _peer: None
        rank, world_size = self.group.rank, self.group.world_size
        others = [peer for peer in range(world_size) if peer != rank]
        for peer in others:
            with suppress(SamovarError):
                self._meeting.notify(peer, Notification(world_size + rank, 1))
        for peer in others:
            with suppress(SamovarError):
                self._meeting.wait(world_size + peer, 1, peer, self.deadline())


class GaspiWindow(LookingWindow):
    """See `samovar.transports.base.Window`. `place` is its first byte and its first notification in the segment."""

    _transport: GaspiTransport

    def __init__(
        self,
        transport: GaspiTransport,
        name: str,
        segment: GaspiSegment,
        place: tuple[int, int],
        num_bytes: int,
        num_slots: int,
    ) -> None:
        start, self._first_slot = self.place = place
        super().__init__(transport, name, segment.memory[start : start + num_bytes], num_slots)
        self._transport = transport
        self._library = transport._library
        self._segment = segment.number
        self._start = start
        self._lock_offset = rounded_up(num_bytes, WORD_BYTES)
        self._values = np.zeros(num_slots, np.uint64)
        self._sent_values: dict[tuple[int, int], int] = {}
        self._taking = threading.Lock()

    def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        self._check(peer, offset, data.nbytes, notification)
        if peer == self._rank:
            self.local[offset : offset + data.nbytes] = data
            self._tell_self(notification)
            return
        told = None if notification is None else self._told_to(peer, notification)
        self._transport.write(peer, self._segment, self._start + offset, data, told)
        self._transport.count_sent(data.nbytes)

    def accumulate(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        """GASPI has no such operation. This rank locks the peer's part of the window, gets the data, adds, and puts it
        back.
        """
        data = np.ascontiguousarray(source).reshape(-1)
        self._check(peer, offset, data.nbytes, notification)
        with self._locked(peer):
            held = np.empty_like(data)
            self.get(peer, offset, held)
            held += data
            self.put(peer, offset, held)
        if notification is not None:
            self.notify(peer, notification)

    def _get(self, peer: int, offset: int, destination: Array) -> None:
        if peer == self._rank:
            destination[:] = self.local[offset : offset + len(destination)]
        else:
            self._transport.read(peer, self._segment, self._start + offset, destination)

    def fetch_add(self, peer: int, offset: int, value: int) -> int:
        self._check_word(peer, offset)
        return self._transport.atomic("atomic_fetch_add", peer, *self._word(peer, offset), value % WORDS)

    def compare_swap(self, peer: int, offset: int, expected: int, desired: int) -> int:
        self._check_word(peer, offset)
        given = (*self._word(peer, offset), expected % WORDS, desired % WORDS)
        return self._transport.atomic("atomic_compare_swap", peer, *given)

    def slot(self, slot: int) -> tuple[int, int]:
        """The segment and the number of its notification."""
        return self._segment, self._first_slot + slot

    def told(self, slot: int) -> int:
        """The slot's value now."""
        with self._taking:
            if told := self._library.reset(*self.slot(slot)):
                self._values[slot] = completed(int(self._values[slot]), told % _TOLD)
            return int(self._values[slot])

    def _await(self, slot: int, at_least: int, is_over: Callable[[], bool], deadline: Deadline) -> int | None:
        def look() -> int | None:
            value = self.told(slot)
            return value if value >= at_least else None

        return self._transport.until(look, is_over, deadline)

    def _take_any(self, slots: range, is_over: Callable[[], bool], deadline: Deadline) -> tuple[int, int] | None:
        def look() -> tuple[int, int] | None:
            segment, first = self.slot(slots.start)
            if (number := self._library.first_of(segment, first, len(slots))) is not None:
                self.told(number - self._first_slot)
            with self._taking:
                for slot in (np.flatnonzero(self._values[slots.start : slots.stop]) + slots.start).tolist():
                    value, self._values[slot] = int(self._values[slot]), 0
                    return slot, value
            return None

        return self._transport.until(look, is_over, deadline)

    def _told_to(self, peer: int, notification: Notification) -> tuple[int, int]:
        """The number and the value of GASPI's notification."""
        slot, value = notification.slot, notification.value
        before = self._sent_values.get((peer, slot), 0)
        self._sent_values[peer, slot] = value
        assert abs(value - before) < _MOST_CHANGE, f"slot {slot} of {self._name}: {value} after {before}"
        return self._first_slot + slot, _TOLD | value % _TOLD

    def _tell_self(self, notification: Notification | None) -> None:
        if notification is not None:
            with self._taking:
                self._library.reset(*self.slot(notification.slot))
                self._values[notification.slot] = notification.value

    def _word(self, peer: int, offset: int) -> tuple[int, int, int]:
        return self._segment, self._start + offset, peer

    @contextmanager
    def _locked(self, peer: int) -> Iterator[None]:
        word = self._word(peer, self._lock_offset)
        swap = partial(self._transport.atomic, "atomic_compare_swap", peer, *word)
        self._transport.finished(peer, lambda: swap(0, 1) == 0 or None, f"keeps window {self._name!r} locked")
        try:
            yield
        finally:
            swap(1, 0)


def completed(before: int, told: int) -> int:
    """The value with the low bits `told` that is nearest to the one `before`, and not below 0."""
    change = (told - before) % _TOLD
    return before + change - _TOLD if change >= _MOST_CHANGE and before + change >= _TOLD else before + change


def _end_all(process_id: int) -> None:
    """Ranks end together. One that failed ends at once: the others notice, and may wait for it."""
    if os.getpid() == process_id and getattr(sys, "last_value", None) is None:
        for transport in list(_transports):
            transport.farewell(Deadline.after)
