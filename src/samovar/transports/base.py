"""The interface of a transport: windows of memory that other ranks can reach (after GASPI and MPI RMA)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.core.group import Group

Array: TypeAlias = npt.NDArray[Any]
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Notification:
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
        f"is {peer} stopped or much slower? See its log, or raise --timeout",
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
class Spawning(Transport, Protocol):
    """A transport whose ranks can do several things at once without threads."""

    def spawn(self, what: str, work: Callable[[Deadline], None]) -> Pending:
        """Begin work(a deadline that never passes) in the background."""


@runtime_checkable
class Modelled(Transport, Protocol):
    """A transport that models computation: it must see work in a rank's own memory, in addition to `reduce`."""

    def work(self, what: Callable[[], None], reads: Sequence[Array], writes: Sequence[Array]) -> None:
        """Call what(), which reads and writes these arrays once, in the model's time."""


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
