"""A rank's own part of a TCP window, and what arrives for it."""

import mmap
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.errors import SamovarError
from samovar.transports.base import Array

WORD_BYTES = 8
_WORDS = 2**64


class WindowMemory:
    """Memory and notification slots; every change of a word or a slot is made under one lock.

    What a peer asks for is checked here: `region` and `set_slot` raise SamovarError outside the window.
    """

    def __init__(self, num_bytes: int, num_slots: int) -> None:
        self.num_bytes = num_bytes
        # Page-aligned, and taken when it is first written to.
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, max(num_bytes, 1)), np.uint8)[:num_bytes]
        self.slots = [0] * num_slots
        self.changed = threading.Condition()

    def region(self, offset: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        if not 0 <= offset <= self.num_bytes - num_bytes:
            raise SamovarError(f"bytes {offset} + {num_bytes} are outside the window of {self.num_bytes} bytes")
        return self.bytes[offset : offset + num_bytes]

    def set_slot(self, slot: int, value: int) -> None:
        self.check_slot(slot)
        with self.changed:
            self.slots[slot] = value
            self.changed.notify_all()

    def check_slot(self, slot: int) -> None:
        if not 0 <= slot < len(self.slots):
            raise SamovarError(f"slot {slot} is none of the window's {len(self.slots)}")

    def add(self, offset: int, difference: Array) -> None:
        """memory += difference, which is float32 or float64."""
        destination = self.region(offset, difference.nbytes).view(difference.dtype)
        with self.changed:
            _native.reduce(destination, [destination, difference])

    def fetch_add(self, offset: int, value: int) -> int:
        return self._change(offset, lambda old: (old + value) % _WORDS)

    def compare_swap(self, offset: int, expected: int, desired: int) -> int:
        return self._change(offset, lambda old: desired if old == expected else old)

    def wait_until(self, is_met: Callable[[], bool], waiting_s: float) -> bool:
        with self.changed:
            return self.changed.wait_for(is_met, waiting_s)

    def wake(self) -> None:
        """Have those who wait look again."""
        with self.changed:
            self.changed.notify_all()

    def _change(self, offset: int, changed: Callable[[int], int]) -> int:
        if offset % WORD_BYTES != 0:
            raise SamovarError(f"an atomic needs an offset divisible by {WORD_BYTES}, got {offset}")
        word = self.region(offset, WORD_BYTES).view(np.uint64)
        with self.changed:
            old = int(word[0])
            word[0] = changed(old)
        return old


class WindowTable:
    """The windows of a rank by number; one that a peer opened first waits here for its own rank."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: dict[int, WindowMemory] = {}

    def open(self, number: int, num_bytes: int, num_slots: int) -> WindowMemory:
        """The window, made where it is new. Raises SamovarError where it has other sizes."""
        with self._lock:
            window = self._windows.get(number)
            if window is None:
                window = self._windows[number] = WindowMemory(num_bytes, num_slots)
        found = (window.num_bytes, len(window.slots))
        if found != (num_bytes, num_slots):
            raise SamovarError(
                f"it has {num_bytes} bytes and {num_slots} slots here, {found[0]} bytes and {found[1]} slots elsewhere"
            )
        return window

    def window(self, number: int) -> WindowMemory:
        found = self._windows.get(number)
        if found is None:
            raise SamovarError(f"window {number} was not opened")
        return found

    def wake(self) -> None:
        with self._lock:
            windows = list(self._windows.values())
        for window in windows:
            window.wake()
