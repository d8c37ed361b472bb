"""One simulated rank's access to the windows of its group, and to the virtual clock."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.core.group import Group
from samovar.core.machine import MachineModel
from samovar.transports.base import Array, Pending
from samovar.transports.sim.window import SimPort, SimWindow, VirtualDeadline

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class WindowParts:
    """A window on all ranks, as the first rank that opened it described it."""

    name: str
    num_bytes: int
    num_slots: int
    parts: list[SimWindow]


class Windows:
    """All windows in the order of their opening; those above `counted_above_bytes` hold no data."""

    def __init__(self, ports: Sequence[SimPort], counted_above_bytes: float, window_type: type[SimWindow]) -> None:
        self._ports = ports
        self._counted_above_bytes = counted_above_bytes
        self._window_type = window_type
        self._opened: list[WindowParts] = []

    def open(self, index: int, name: str, num_bytes: int, num_slots: int) -> WindowParts:
        """The window of this index; the first rank's call makes the parts of all, as in a shared segment."""
        if index == len(self._opened):
            self._opened.append(self._make(index, name, num_bytes, num_slots))
        return self._opened[index]

    def _make(self, index: int, name: str, num_bytes: int, num_slots: int) -> WindowParts:
        is_real = num_bytes <= self._counted_above_bytes
        memory = _zeros(0 if is_real else num_bytes)
        parts: list[SimWindow] = []
        for port in self._ports:
            local = _zeros(num_bytes) if is_real else memory
            parts.append(self._window_type(name, index, port, local, num_slots, is_real))
        for part in parts:
            part.parts = parts
        return WindowParts(name, num_bytes, num_slots, parts)


class SimTransport:
    """See `samovar.transports.base.Transport`; behind it what simulated programs need besides."""

    def __init__(self, group: Group, port: SimPort, windows: Windows, machine: MachineModel) -> None:
        self.group = group
        self._port = port
        self._windows = windows
        self._machine = machine
        self._num_windows = 0

    @property
    def bytes_sent(self) -> int:
        return self._port.bytes_sent

    def count_sent(self, num_bytes: int) -> None:
        self._port.bytes_sent += num_bytes

    def open_window(self, name: str, num_bytes: int, num_slots: int) -> SimWindow:
        """Raises SamovarError where another rank opened it with other sizes."""
        opened = self._windows.open(self._num_windows, name, num_bytes, num_slots)
        self._num_windows += 1
        if (opened.num_bytes, opened.num_slots) != (num_bytes, num_slots):
            raise SamovarError(
                f"rank {self.group.rank}: window {name!r} of {num_bytes} bytes and {num_slots} slots is window "
                f"{opened.name!r} of {opened.num_bytes} bytes and {opened.num_slots} slots on another rank"
            )
        return opened.parts[self.group.rank]

    def reduce(self, destination: Array, sources: Sequence[Array]) -> None:
        """destination = (sources[0] + sources[1]) + ..., in the time that the machine model gives it.

        Windows that hold no data are not added.
        """
        for source in sources:
            self.note(source, writes=False, verb="reduce")
        self.note(destination, writes=True, verb="reduce (its sum)")
        seconds = self._machine.reduce_s(self.group.rank, destination.nbytes * (len(sources) + 1))
        if seconds > 0.0:
            self._port.sleep(seconds)
        window, _offset = self._port.find(destination)
        if window is None or window.is_real:
            _native.reduce(destination, sources)

    def work(self, what: Callable[[], None], reads: Sequence[Array], writes: Sequence[Array]) -> None:
        """See `samovar.transports.base.Modelled`; timed like a reduction of as many bytes."""
        for array in reads:
            self.note(array, writes=False, verb="work (its input)")
        for array in writes:
            self.note(array, writes=True, verb="work (its result)")
        seconds = self._machine.reduce_s(self.group.rank, sum(array.nbytes for array in (*reads, *writes)))
        if seconds > 0.0:
            self._port.sleep(seconds)
        windows = [self._port.find(array)[0] for array in (*reads, *writes)]
        if all(window is None or window.is_real for window in windows):
            what()

    def spawn(self, what: str, work: Callable[[Deadline], None]) -> Pending:
        """See `samovar.transports.base.Spawning`; the race finder takes both for one thread of control."""
        return self._port.spawn(what, lambda: work(self.deadline(math.inf)))

    def note(self, array: Array, writes: bool, verb: str) -> None:
        """Tell the race finder that this rank itself reads or writes `array`, such as a part of `Window.local`."""
        self._port.note(array, writes, verb)

    @property
    def now_s(self) -> float:
        """The virtual clock."""
        return self._port.fabric.scheduler.now_s

    def sleep(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass."""
        self._port.sleep(seconds)

    def compute(self, nominal_s: float) -> None:
        """Work as long as this rank needs for what takes `nominal_s` on the machine's nominal rank."""
        self._port.sleep(self._machine.compute_s(self.group.rank, nominal_s))

    def deadline(self, seconds: float) -> VirtualDeadline:
        """`seconds` of virtual time from now; infinity leaves it to the deadlock report."""
        scheduler = self._port.fabric.scheduler
        return VirtualDeadline(scheduler.now_s + seconds, lambda: scheduler.now_s)


def _zeros(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Aligned to a cache line; untouched pages take no memory."""
    memory = np.zeros(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + num_bytes]
