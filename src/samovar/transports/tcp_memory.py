"""A rank's own part of a TCP window, and its incoming requests."""

import mmap
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError
from samovar.transports.base import Array

WORD_BYTES = 8
_WORDS = 2**64
# How long a wait in native code lasts before it looks for lost peers.
_SLICE_S = 0.1

Bytes = npt.NDArray[np.uint8]
_Result = TypeVar("_Result")


class WindowMemory(ABC):
    """Memory and notification slots, which the threads of peers and the rank itself change.

    Requests of peers are checked here: each method raises SamovarError outside the window.
    """

    def __init__(self, memory: Bytes, num_slots: int) -> None:
        self.bytes = memory
        self.num_slots = num_slots
        self._adding = threading.Lock()

    def region(self, offset: int, num_bytes: int) -> Bytes:
        if not 0 <= offset <= len(self.bytes) - num_bytes:
            raise SamovarError(f"bytes {offset} + {num_bytes} are outside the window of {len(self.bytes)} bytes")
        return self.bytes[offset : offset + num_bytes]

    def check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise SamovarError(f"slot {slot} is none of the window's {self.num_slots}")

    def check_word(self, offset: int) -> None:
        if offset % WORD_BYTES != 0:
            raise SamovarError(f"an atomic needs an offset divisible by {WORD_BYTES}, got {offset}")
        self.region(offset, WORD_BYTES)

    @abstractmethod
    def set_slot(self, slot: int, value: int) -> None: ...

    def add(self, offset: int, difference: Array) -> None:
        """memory += difference, which is float32 or float64; one at a time."""
        destination = self.region(offset, difference.nbytes).view(difference.dtype)
        with self._adding:
            _native.reduce(destination, [destination, difference])

    @abstractmethod
    def fetch_add(self, offset: int, value: int) -> int: ...

    @abstractmethod
    def compare_swap(self, offset: int, expected: int, desired: int) -> int: ...

    @abstractmethod
    def wait(self, slot: int, at_least: int, is_over: Callable[[], bool], deadline: Deadline) -> int | None:
        """The slot's value, once it is `at_least`; None if the deadline passes, or `is_over` after a `wake`."""

    @abstractmethod
    def take_any(self, slots: range, is_over: Callable[[], bool], deadline: Deadline) -> tuple[int, int] | None:
        """The first of the slots that is not zero, and its value, now zero; None as `wait` gives it."""

    @abstractmethod
    def wake(self) -> None:
        """Wake the threads that wait."""


class PrivateMemory(WindowMemory):
    """Memory of this process; every change of a word or a slot is made under one lock."""

    def __init__(self, num_bytes: int, num_slots: int) -> None:
        # Page-aligned, and taken when it is first written to.
        super().__init__(np.frombuffer(mmap.mmap(-1, max(num_bytes, 1)), np.uint8)[:num_bytes], num_slots)
        self._slots = [0] * num_slots
        self._changed = threading.Condition()

    def set_slot(self, slot: int, value: int) -> None:
        self.check_slot(slot)
        with self._changed:
            self._slots[slot] = value
            self._changed.notify_all()

    def fetch_add(self, offset: int, value: int) -> int:
        return self._change(offset, lambda old: (old + value) % _WORDS)

    def compare_swap(self, offset: int, expected: int, desired: int) -> int:
        return self._change(offset, lambda old: desired if old == expected else old)

    def wait(self, slot: int, at_least: int, is_over: Callable[[], bool], deadline: Deadline) -> int | None:
        slots = self._slots
        while True:
            with self._changed:
                self._changed.wait_for(lambda: slots[slot] >= at_least or is_over(), deadline.timeout_s())
                is_last = is_over()  # what came before the end of a peer counts
                if (value := slots[slot]) >= at_least:
                    return value
            if is_last or deadline.passed():  # outside the lock: it may ask whether ranks are busy
                return None

    def take_any(self, slots: range, is_over: Callable[[], bool], deadline: Deadline) -> tuple[int, int] | None:
        values = self._slots
        while True:
            with self._changed:
                self._changed.wait_for(lambda: any(values[slot] for slot in slots) or is_over(), deadline.timeout_s())
                is_last = is_over()
                for slot in slots:
                    if value := values[slot]:
                        values[slot] = 0
                        return slot, value
            if is_last or deadline.passed():
                return None

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _change(self, offset: int, changed: Callable[[int], int]) -> int:
        self.check_word(offset)
        word = self.region(offset, WORD_BYTES).view(np.uint64)
        with self._changed:
            old = int(word[0])
            word[0] = changed(old)
        return old


class SharedMemory(WindowMemory):
    """This rank's part of a window in the shared memory of its host, which the ranks of the host reach themselves."""

    def __init__(self, native: _native.Window, rank: int, num_slots: int) -> None:
        super().__init__(native.memory(rank), num_slots)
        self._native = native
        self._rank = rank

    def set_slot(self, slot: int, value: int) -> None:
        self.check_slot(slot)
        self._native.notify(self._rank, slot, value)

    def fetch_add(self, offset: int, value: int) -> int:
        self.check_word(offset)
        return self._native.fetch_add(self._rank, offset, value % _WORDS)

    def compare_swap(self, offset: int, expected: int, desired: int) -> int:
        self.check_word(offset)
        return self._native.compare_swap(self._rank, offset, expected, desired)

    def wait(self, slot: int, at_least: int, is_over: Callable[[], bool], deadline: Deadline) -> int | None:
        return _in_slices(partial(self._native.wait, slot, at_least), is_over, deadline)

    def take_any(self, slots: range, is_over: Callable[[], bool], deadline: Deadline) -> tuple[int, int] | None:
        return _in_slices(partial(self._native.wait_any, slots.start, len(slots)), is_over, deadline)

    def wake(self) -> None:
        """They look by themselves."""


class WindowTable:
    """The windows of a rank by number.

    One that a peer opened first is made and waits here for its own rank; where `patience` is given, the peer waits
    so long for the rank to open it.
    """

    def __init__(self, patience: Callable[[], Deadline] | None) -> None:
        self._patience = patience
        self._is_closed = False
        self._changed = threading.Condition()
        self._windows: dict[int, WindowMemory] = {}

    def open(self, number: int, num_bytes: int, num_slots: int, memory: WindowMemory | None) -> WindowMemory:
        """The rank's own; made where it is new and no memory is given. Raises SamovarError if sizes differ."""
        with self._changed:
            window = self._windows.get(number)
            if window is None:
                window = self._windows[number] = memory or PrivateMemory(num_bytes, num_slots)
                self._changed.notify_all()
        _require_sizes(window, num_bytes, num_slots)
        return window

    def open_by_peer(self, number: int, num_bytes: int, num_slots: int) -> None:
        """Raises SamovarError if the window has other sizes, DeadlineExceeded if the rank does not open it."""
        if self._patience is None:
            self.open(number, num_bytes, num_slots, None)
            return
        deadline = self._patience()
        waiting_s = deadline.remaining_s()
        while not self._await(number, deadline) and not deadline.passed():
            pass
        if number not in self._windows:
            raise DeadlineExceeded(f"window {number} was not opened here within {waiting_s:.1f} s")
        _require_sizes(self._windows[number], num_bytes, num_slots)

    def _await(self, number: int, deadline: Deadline) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: number in self._windows or self._is_closed, deadline.timeout_s())

    def window(self, number: int) -> WindowMemory:
        found = self._windows.get(number)
        if found is None:
            raise SamovarError(f"window {number} was not opened")
        return found

    def wake(self) -> None:
        with self._changed:
            windows = list(self._windows.values())
        for window in windows:
            window.wake()

    def close(self) -> None:
        """End all waits for windows."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.wake()


def _require_sizes(window: WindowMemory, num_bytes: int, num_slots: int) -> None:
    found = (len(window.bytes), window.num_slots)
    if found != (num_bytes, num_slots):
        raise SamovarError(
            f"it has {num_bytes} bytes and {num_slots} slots here, {found[0]} bytes and {found[1]} slots elsewhere"
        )


def _in_slices(
    wait: Callable[[float], _Result | None], is_over: Callable[[], bool], deadline: Deadline
) -> _Result | None:
    """The result of `wait(seconds)`, unless the deadline comes first, or a peer is over."""
    while (found := wait(min(deadline.remaining_s(), _SLICE_S))) is None:
        if deadline.passed() or is_over():
            return wait(0.0)  # what came before the end of a peer counts
    return found
