"""Windows in memory of MPI (`MPI_Win`, passive target), for ranks that mpiexec or srun started.

To import this is to start MPI. A put and its notification are two operations, with a flush between them. A wait looks
at its slot again and again, and lets MPI work in between. Where ranks share no memory, a thread does so every
millisecond while this rank computes, so that operations of others on it come to their end.
"""

import atexit
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import InputError, RankFailed
from samovar.core.group import Group
from samovar.core.layout import rounded_up
from samovar.transports.base import Array, Notification
from samovar.transports.looking import LINE_BYTES, WORD_BYTES, WORDS, LookingTransport, LookingWindow, Watcher

_Result = TypeVar("_Result")

_PROGRESS_S = 0.001
_MPICH_NAME = re.compile(r"/dev/shm/mpich_shm_\w+")
_windows: list["MPI.Win"] = []
_failing: list[Callable[[], None]] = []
_MEMORY = {"alloc_shared_noncontig": "true"}  # a rank's part on its own NUMA node


class MpiTransport(LookingTransport):
    """This rank's access to its peers' memory by MPI (see `samovar.transports.base.Transport`).

    `group` must have all ranks of MPI_COMM_WORLD, in any order, and all ranks make this together. Windows open, and
    peers answer, by `deadline_after(timeout_s)`. A window keeps its memory until the process ends, because MPI frees it
    for all ranks. A rank that fails, or waits for too long in a call of MPI, calls `fail`, which ends all ranks by
    default.

    Raises InputError if MPI has started other ranks than the group's, or cannot serve several threads.
    """

    def __init__(
        self,
        group: Group,
        timeout_s: float,
        names: Sequence[str] | None = None,
        deadline_after: Callable[[float], Deadline] = Deadline.after,
        fail: Callable[[], None] | None = None,
    ) -> None:
        _failing.append(fail or _abort)
        _require_world(group)
        super().__init__(group, names, "samovar-mpi", timeout_s, deadline_after)
        self._communicator = MPI.Intracomm(MPI.COMM_WORLD.Split(key=group.rank))
        inside = self._communicator.Split_type(MPI.COMM_TYPE_SHARED)
        shares_memory = inside.size == group.world_size
        inside.Free()
        if not shares_memory:
            self._watcher = Watcher(self, _PROGRESS_S, _failing[-1], "This ends the job")
        sizes = self.meeting_sizes
        self._meeting = MpiWindow(self, "meeting", self._allocated("meeting", *sizes), [0] * group.world_size, *sizes)
        self._communicator.Barrier()
        _unlink_names()

    def _opened(self, name: str, num_bytes: int, num_slots: int) -> "MpiWindow":
        native = self._allocated(name, num_bytes, num_slots)
        starts = [start for start, _ in self._met((-_bytes_of(native).ctypes.data % LINE_BYTES, 0))]
        return MpiWindow(self, name, native, starts, num_bytes, num_slots)

    def progress(self) -> None:
        self._communicator.Iprobe()

    def farewell(self) -> None:
        """MPI is over afterwards, and the memory of its windows gone."""
        self._deadline_after = lambda _seconds: FOR_EVER  # MPI's own wait has no limit either, and takes a core
        self._met((0, 0))
        self.close()
        _end()
        MPI.Finalize()

    def flush(self, window: "MPI.Win", peer: int) -> None:
        """Return when this rank's operations on the peer's memory are complete there.

        MPI knows no limit for it. In shared memory it does not wait for others. Elsewhere the watcher ends the job.
        """
        with self.watched(peer):
            window.Flush(peer)

    def _allocated(self, name: str, num_bytes: int, num_slots: int) -> "MPI.Win":
        """Zeroed memory of MPI's, in which a window begins at a multiple of 64 bytes."""
        size = rounded_up(num_bytes, LINE_BYTES) + num_slots * WORD_BYTES + LINE_BYTES
        try:
            native = MPI.Win.Allocate(size, 1, MPI.Info.Create(_MEMORY), self._communicator)
        except MPI.Exception as error:
            raise InputError(
                f"{self.names[self.group.rank]}: window {name!r} needs {size:,} bytes of MPI's memory: {error}; "
                "use fewer ranks, or raise the limit of memory and of /dev/shm"
            ) from error
        native.Lock_all(MPI.MODE_NOCHECK)
        _windows.append(native)
        _bytes_of(native)[:] = 0
        native.Sync()
        return native


class MpiWindow(LookingWindow):
    """See `samovar.transports.base.Window`. Its slots are behind its memory, in one window of MPI.

    `starts` is where the memory begins in that of MPI, on every rank.
    """

    def __init__(
        self,
        transport: MpiTransport,
        name: str,
        native: "MPI.Win",
        starts: Sequence[int],
        num_bytes: int,
        num_slots: int,
    ) -> None:
        memory = _bytes_of(native)[starts[transport.group.rank] :]
        super().__init__(transport, name, memory[:num_bytes], num_slots)
        self._slots_offset = rounded_up(num_bytes, LINE_BYTES)
        self._slots = memory[self._slots_offset :][: num_slots * WORD_BYTES].view(np.uint64)
        self._native = native
        self._starts = starts
        self._transport = transport

    def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        self._check(peer, offset, data.nbytes, notification)
        self._move(self._native.Put, data, MPI.BYTE, peer, offset)
        self._sent(peer, data.nbytes, notification)

    def accumulate(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        data = np.ascontiguousarray(source).reshape(-1)
        self._check(peer, offset, data.nbytes, notification)
        kind = {np.dtype(np.float32): MPI.FLOAT, np.dtype(np.float64): MPI.DOUBLE}[data.dtype]
        self._move(self._native.Accumulate, data, kind, peer, offset, MPI.SUM)
        self._sent(peer, data.nbytes, notification)

    def _get(self, peer: int, offset: int, destination: Array) -> None:
        self._move(self._native.Get, destination, MPI.BYTE, peer, offset)

    def fetch_add(self, peer: int, offset: int, value: int) -> int:
        self._check_word(peer, offset)
        return self._fetch(peer, offset, value % WORDS, MPI.SUM)

    def compare_swap(self, peer: int, offset: int, expected: int, desired: int) -> int:
        self._check_word(peer, offset)
        new, old, found = (np.array([word % WORDS], np.uint64) for word in (desired, expected, 0))
        place, kind = self._starts[peer] + offset, MPI.UINT64_T
        self._native.Compare_and_swap((new, kind), (old, kind), (found, kind), peer, place)
        self._transport.flush(self._native, peer)
        return int(found[0])

    def _await(self, slot: int, at_least: int, is_over: Callable[[], bool], deadline: Deadline) -> int | None:
        def look() -> int | None:
            value = int(self._slots[slot])
            return value if value >= at_least else None

        return self._synchronized(self._transport.until(look, is_over, deadline))

    def _take_any(self, slots: range, is_over: Callable[[], bool], deadline: Deadline) -> tuple[int, int] | None:
        def look() -> tuple[int, int] | None:
            for slot in np.flatnonzero(self._slots[slots.start : slots.stop]).tolist():
                if value := self._fetch(self._rank, self._slot_offset(slots[slot]), 0, MPI.REPLACE):
                    return slots[slot], value
            return None

        return self._synchronized(self._transport.until(look, is_over, deadline))

    def _synchronized(self, found: _Result) -> _Result:
        """Data that came before a notification may be read."""
        self._native.Sync()
        return found

    def _sent(self, peer: int, num_bytes: int, notification: Notification | None) -> None:
        """Count what was put, and notify the peer."""
        if peer != self._rank:
            self._transport.count_sent(num_bytes)
        if notification is not None:
            self._native.Sync()  # a peer that hears of it may read what this rank wrote
            word, offset = np.array([notification.value], np.uint64), self._slot_offset(notification.slot)
            self._move(self._native.Accumulate, word, MPI.UINT64_T, peer, offset, MPI.REPLACE)

    def _move(
        self, verb: Callable[..., None], data: Array, kind: "MPI.Datatype", peer: int, offset: int, *change: "MPI.Op"
    ) -> None:
        if len(data):
            verb((data, kind), peer, (self._starts[peer] + offset, len(data), kind), *change)
            self._transport.flush(self._native, peer)

    def _fetch(self, peer: int, offset: int, value: int, change: "MPI.Op") -> int:
        """Change a word by the operation and the value, atomically; returns the old one."""
        word, old = (np.array([number], np.uint64) for number in (value, 0))
        place, kind = self._starts[peer] + offset, MPI.UINT64_T
        self._native.Fetch_and_op((word, kind), (old, kind), peer, place, change)
        self._transport.flush(self._native, peer)
        return int(old[0])

    def _slot_offset(self, slot: int) -> int:
        return self._slots_offset + slot * WORD_BYTES


def _abort() -> None:
    MPI.COMM_WORLD.Abort(RankFailed.exit_code)


def _bytes_of(native: "MPI.Win") -> npt.NDArray[np.uint8]:
    return np.frombuffer(native.tomemory().cast("B"), np.uint8)


def _require_world(group: Group) -> None:
    """Raises InputError unless MPI has as many ranks as the job."""
    world = MPI.COMM_WORLD
    if world.size != group.world_size:
        if world.size == 1:
            _unlink_names()
        raise InputError(
            f"rank {group.rank}: transport 'mpi' needs ranks that MPI started: for {described()} this process is rank "
            f"{world.rank} of {world.size}, and the job has {group.world_size}; start it by that MPI's mpiexec"
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise InputError(
            f"rank {group.rank}: transport 'mpi' needs MPI_THREAD_MULTIPLE, and {described()} was started without it; "
            "leave mpi4py.rc.thread_level at 'multiple'"
        )


def _unlink_names() -> None:
    """Unlink the shared memory of MPICH, once all ranks have mapped it: a killed rank would leave it behind."""
    for name in set(_MPICH_NAME.findall(Path("/proc/self/maps").read_text())):
        Path(name).unlink(missing_ok=True)


def described() -> str:
    """The library of MPI, and its version."""
    return " ".join(MPI.Get_library_version().split()[:3])


def _end() -> None:
    """Free the windows as all ranks do at their end. A rank that failed ends the others, which may wait for it."""
    if MPI.Is_finalized():
        return
    if MPI.COMM_WORLD.size > 1 and getattr(sys, "last_value", None) is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        (_failing or [_abort])[-1]()
    for window in _windows:
        window.Unlock_all()
        window.Free()


atexit.register(_end)
