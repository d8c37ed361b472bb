"""The interface of a transport: windows of memory that other ranks can reach (after GASPI and MPI RMA)."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed
from samovar.core.group import Group
from samovar.transports.background import Background, Job, note_phase

Array: TypeAlias = npt.NDArray[Any]
_Scalar = TypeVar("_Scalar", bound=np.generic)
# What waits for a peer lets others go on.
_MOST_THREADS = 4


class Notification(NamedTuple):
    """`value` stored in slot `slot` of the peer, after the data of the same call."""

    slot: int
    value: int


class MissingNotification(DeadlineExceeded):
    """A rank did not notify; `peer` is its name in errors."""

    def __init__(self, message: str, peer: str) -> None:
        super().__init__(message)
        self.peer = peer


def missing_notification(own: str, peer: str, slot: int, window: str, waited_s: float) -> MissingNotification:
    """The error of `own`'s wait, with the names that errors give ranks and windows."""
    return MissingNotification(
        f"{own}: {peer} did not notify slot {slot} of window {window!r} within {waited_s:.1f} s; "
        f"is {peer} stopped or much slower? See its log, or raise --timeout, in a script timeout_s",
        peer,
    )


def nobody_notified(own: str, slots: range, window: str, waited_s: float) -> DeadlineExceeded:
    """The same where anybody might have."""
    return DeadlineExceeded(
        f"{own}: nobody notified slots {slots.start} to {slots.stop - 1} of window {window!r} within {waited_s:.1f} s; "
        "are the other ranks alive?"
    )


class Window(Protocol):
    """`num_bytes` bytes and `num_slots` notification slots on every rank.

    Data put before a notification is visible to the peer when the notification is. A put returns when the
    source may be overwritten. Offsets count bytes.
    """

    @property
    def local(self) -> npt.NDArray[np.uint8]:
        """This rank's own memory."""

    def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        """Write `source` into the peer's memory at `offset`, then notify if asked."""

    def get(self, peer: int, offset: int, destination: Array) -> None:
        """Read the peer's memory at `offset` into `destination`."""

    def fetch_add(self, peer: int, offset: int, value: int) -> int:
        """Add to the peer's 64-bit word at `offset` (a multiple of 8) atomically; returns the old value."""

    def compare_swap(self, peer: int, offset: int, expected: int, desired: int) -> int:
        """Store `desired` if the 64-bit word equals `expected`, atomically; returns the old value."""

    def notify(self, peer: int, notification: Notification) -> None:
        """Store the value in the peer's slot and wake the peer."""

    def wait(self, slot: int, at_least: int, peer: int, deadline: Deadline) -> int:
        """Wait until own slot `slot` holds `at_least` or more; returns its value.

        `peer` is the rank that will notify. Raises DeadlineExceeded, which names it.
        """

    def wait_any(self, slots: range, deadline: Deadline) -> tuple[int, int]:
        """Wait until one of this rank's slots is not zero; reset it and return (slot, value)."""


@runtime_checkable
class MappedWindow(Window, Protocol):
    """A window whose memory, of all ranks, is in this process's address space."""

    native: _native.Window

    def peer(self, rank: int) -> npt.NDArray[np.uint8]:
        """The memory of `rank`."""

    def progress_thread(self) -> _native.ProgressThread:
        """This rank's thread that runs programs in the background; started at the first call."""

    @property
    def first_wait_s(self) -> float:
        """A wait that takes longer than this continues in `patiently`. Infinity if no rank watches the others."""

    def patiently(
        self, wait: Callable[[float], bool], awaited: Callable[[], Sequence[int]], deadline: Deadline
    ) -> bool:
        """Whether `wait(seconds)` came true before the deadline. RankFailed if all ranks `awaited` have ended."""

    def missing_notification(self, slot: int, peer: int, waited_s: float) -> MissingNotification:
        """The error of a wait that ended without `peer`'s notification."""


class Transport(Protocol):
    """One rank's access to the memory of its group."""

    @property
    def group(self) -> Group: ...

    @property
    def bytes_sent(self) -> int:
        """Bytes put into other ranks' memory so far."""

    def count_sent(self, num_bytes: int) -> None:
        """Add bytes that an executor moved without `put`."""

    def reduce(self, destination: Array, sources: Sequence[Array]) -> None:
        """destination = ((sources[0] + sources[1]) + sources[2]) + ..., all in this rank's own memory."""

    def open_window(self, name: str, num_bytes: int, num_slots: int) -> Window:
        """A new window; every rank opens the same windows in the same order with the same sizes."""


class Pending(Protocol):
    """An operation under way."""

    def wait(self, deadline: Deadline) -> None:
        """Return when it is done here. Raises DeadlineExceeded or RankFailed, which name operation, rank and host."""


@runtime_checkable
class Watched(Protocol):
    """A transport whose ranks learn why another one ended."""

    def tell_why(self, sentence: str) -> None:
        """Give ranks that wait for this one `sentence` as the reason why it fails. The first reason counts."""


@runtime_checkable
class Spawning(Transport, Protocol):
    """A transport whose ranks can do several things at once without threads."""

    def spawn(self, what: str, work: Callable[[Deadline], None]) -> Pending:
        """Begin work(a deadline that never passes) in the background."""


@runtime_checkable
class Modelled(Transport, Protocol):
    """A transport that models computation: it must see work in a rank's own memory, in addition to `reduce`."""

    def work(self, what: Callable[[], None], reads: Sequence[Array], writes: Sequence[Array]) -> None:
        """Call what(), which reads and writes these arrays once, in the model's time."""


class CountedPart(Protocol):
    """One rank's part of a window without data, which events of one program use: no call of theirs waits.

    `counted_bytes` are those as which float32 bytes count, and `reduce_s` the time to read and write a number of these.
    """

    slots: list[int]
    counted_bytes: Callable[[int], int]
    reduce_s: Callable[[int], float]

    def put(self, peer: int, num_bytes: int, slot: int, value: int) -> None:
        """Send the peer that many bytes and a notification."""

    def after(self, seconds: float, function: Callable[[object], None], /) -> None:
        """Call function(None) after this time."""

    def wait_for_end(self, what: object, deadline: Deadline) -> None: ...

    def end(self) -> None: ...


@runtime_checkable
class CountingTransport(Transport, Protocol):
    """A transport that can time a plan without its data."""

    def counts(self, window: Window) -> bool:
        """Whether the window holds no data."""

    def counted_part(self, window: Window, heed: Callable[[int], None]) -> CountedPart:
        """This rank's part; heed(slot) is called at each notification."""


class PeerTransport:
    """A part of transports whose ranks each keep their own part of a window, and can be lost.

    Threads of their own run the work of `spawn`, in the order of its start on all ranks. `names` are the names of ranks
    in errors.
    """

    def __init__(self, group: Group, names: Sequence[str] | None, threads: str) -> None:
        self.group = group
        self.names = names or [f"rank {rank}" for rank in range(group.world_size)]
        self.bytes_sent = 0
        self.lost_elsewhere: Callable[[int], str | None] = lambda _peer: None  # what others know of it
        self.give_up: Callable[[int], str | None] = lambda _peer: None  # the same; others hear that this rank fails
        self._is_closed = False
        self._counting = threading.Lock()
        self._background = Background(threads, _MOST_THREADS)

    @property
    def bytes_between(self) -> int:
        """Bytes that this rank sent to other hosts: all of them."""
        return self.bytes_sent

    def count_sent(self, num_bytes: int) -> None:
        with self._counting:
            self.bytes_sent += num_bytes

    def reduce(self, destination: Array, sources: Sequence[Array]) -> None:
        _native.reduce(destination, sources)

    def spawn(self, what: str, work: Callable[[Deadline], None]) -> Pending:
        """See `Spawning`; all ranks must begin dependent work in the same order."""
        return self._background.submit(Job(f"{self.names[self.group.rank]}: {what}", lambda _job: work(FOR_EVER)))

    def lost(self, peer: int) -> str | None:
        """Why nothing comes from the peer any more, where that is so."""
        if self._is_closed:
            return "the transport was closed here"
        return self._lost_here(peer) or self.lost_elsewhere(peer)

    def _lost_here(self, _peer: int) -> str | None:
        """The reason that this transport itself knows."""
        return None

    def all_lost(self) -> bool:
        """Whether there are other ranks, and nothing comes from any of them any more."""
        others = set(range(self.group.world_size)) - {self.group.rank}
        return bool(others) and all(self.lost(peer) is not None for peer in others)


class PeerWindow(ABC):
    """A part of their windows: waits for peers that can be lost, and bounds. See `Window`."""

    def __init__(self, transport: PeerTransport, name: str, local: npt.NDArray[np.uint8], num_slots: int) -> None:
        self.local = local
        self._ranks = transport
        self._name = name
        self._num_slots = num_slots
        self._rank = transport.group.rank

    @abstractmethod
    def _await(self, slot: int, at_least: int, is_over: Callable[[], bool], deadline: Deadline) -> int | None:
        """The slot's value, once it is `at_least`; None if the deadline passes, or `is_over`."""

    @abstractmethod
    def _take_any(self, slots: range, is_over: Callable[[], bool], deadline: Deadline) -> tuple[int, int] | None:
        """The first of the slots that is not zero, and its value, now zero; None as `_await` gives it."""

    def wait(self, slot: int, at_least: int, peer: int, deadline: Deadline) -> int:
        """Raises RankFailed if the peer is gone, DeadlineExceeded."""
        waiting_s, other, gone = deadline.remaining_s(), self._ranks.names[peer], self._ranks.lost
        note_phase(f"waits for {other}")
        value = self._await(slot, at_least, lambda: gone(peer) is not None, deadline)
        if value is not None:
            return value
        own = self._ranks.names[self._rank]
        if (reason := gone(peer)) is not None:
            self._ranks.give_up(peer)
            raise RankFailed(f"{own}: {other} did not notify slot {slot} of window {self._name!r}: {reason}")
        raise missing_notification(own, other, slot, self._name, waiting_s)

    def wait_any(self, slots: range, deadline: Deadline) -> tuple[int, int]:
        assert slots.step == 1, slots
        waiting_s = deadline.remaining_s()
        if (fired := self._take_any(slots, self._ranks.all_lost, deadline)) is not None:
            return fired
        if self._ranks.all_lost():
            raise RankFailed(
                f"{self._ranks.names[self._rank]}: nobody can notify slots {slots.start} to {slots.stop - 1} of "
                f"window {self._name!r} any more: all other ranks have ended; see their logs"
            )
        raise nobody_notified(self._ranks.names[self._rank], slots, self._name, waiting_s)

    def get(self, peer: int, offset: int, destination: Array) -> None:
        if not (destination.flags.c_contiguous and destination.flags.writeable):
            raise TypeError("get needs a destination that is contiguous and can be written")
        self._check(peer, offset, destination.nbytes)
        self._get(peer, offset, destination.reshape(-1).view(np.uint8))

    @abstractmethod
    def _get(self, peer: int, offset: int, destination: Array) -> None:
        """The same for bytes, checked."""

    def _check(self, peer: int, offset: int, num_bytes: int, notification: Notification | None = None) -> None:
        """Check here: all parts have one size."""
        is_inside = 0 <= offset <= len(self.local) - num_bytes and 0 <= peer < len(self._ranks.names)
        if not is_inside or (notification is not None and not 0 <= notification.slot < self._num_slots):
            slot = "" if notification is None else f", slot {notification.slot} of {self._num_slots}"
            raise IndexError(f"outside the window {self._name!r}: rank {peer}, bytes {offset} + {num_bytes}{slot}")


class NativeCollectives(Protocol):
    """Collectives of a library (gloo, NCCL), for networks that our windows do not reach.

    Every rank calls the same ones in the same order with the same sizes; `what` names the operation in errors.
    A call never waits; the array must not be touched until the wait for it is over.
    """

    @property
    def group(self) -> Group: ...

    @property
    def bytes_sent(self) -> int:
        """Payload bytes this rank has sent so far."""

    def all_reduce(self, what: str, array: Array) -> Pending:
        """array = sum over ranks, in place: the same bits on every rank."""

    def broadcast(self, what: str, array: Array) -> Pending:
        """array = that of rank 0."""

    def all_gather(self, what: str, own: Array, gathered: Array) -> Pending:
        """gathered[r] = rank r's `own`; shape (P, *own.shape)."""


@dataclass(frozen=True, slots=True)
class Region:
    """A typed array at `offset` bytes in this rank's part of `window` (and equally in every peer's)."""

    window: Window
    offset: int
    array: Array

    @classmethod
    def of(cls, window: Window, offset: int, count: int, dtype: type[_Scalar]) -> "Region":
        """`count` elements of `dtype` from byte `offset` on."""
        size = count * np.dtype(dtype).itemsize
        return cls(window, offset, window.local[offset : offset + size].view(dtype))

    def part(self, start: int, stop: int) -> "Region":
        """Elements [start, stop) of this region."""
        return Region(self.window, self.offset + start * self.array.itemsize, self.array[start:stop])
