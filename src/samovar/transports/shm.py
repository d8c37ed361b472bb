"""Windows in the shared memory of one machine.

The memory is an anonymous file (memfd): nothing is ever named, so nothing is left behind by any kill. Ranks
inherit its descriptor from the launcher; `join` hands it to processes that come later.
"""

import fcntl
import math
import os
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed, SamovarError
from samovar.core.group import Group
from samovar.core.host import create_empty
from samovar.transports.base import Array, MissingNotification, Notification, missing_notification, nobody_notified
from samovar.transports.processes import WORDS_BYTES, NoPeers, PeerProcess, Peers

_Result = TypeVar("_Result")


class BoardWord(IntEnum):
    """One word of a row. `STEPS_DONE` is a rank's; any process that got a signal sets the next two."""

    STEPS_DONE = 0
    STOP_SIGNAL = 1  # number of the signal that asked to stop; 0: none
    SNAPSHOT_REQUESTS = 2  # how many snapshots were asked for so far
    IS_GONE = 3  # 1: the launcher says of this rank that it has ended and will not come back
    LIFE = 4  # how often a rank was started again, as soon as its windows are open


# Ranks with a core each have nothing better to do with it, and one that sleeps wakes up late. Measured, interleaved, on
# steps of 7 ms: 1.1 % shorter than with the 50 us that a wake-up by futex takes; 2 ms are no better.
SPIN_NS = 1_000_000
# A wait that takes longer than this looks whether the rank that it waits for still lives.
_LOOK_S = 0.1


def create_segment(world_size: int) -> int:
    """A new anonymous memory file with the head for `world_size` ranks; returns its descriptor.

    The file can grow but never shrink, so no mapping of it can ever fault. Raises InputError if shared
    memory is short.
    """
    descriptor = create_empty()
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        _native.Segment(descriptor, world_size)
    except OSError as error:
        os.close(descriptor)
        raise InputError(f"shared memory for {world_size} ranks cannot be had: {error}") from error
    return descriptor


class RunBoard:
    """Numbers that ranks and launcher show each other: 8 words of 64 bits a row; the launcher's row is the last."""

    def __init__(self, descriptor: int, world_size: int) -> None:
        segment = _native.Segment(descriptor, world_size)
        self.post, self.read = segment.post, segment.read
        self.launcher_row = world_size


class ShmTransport:
    """This rank's access to the segment behind `descriptor` (see `samovar.transports.base.Transport`).

    Waits spin first, unless there are more ranks than cores (`oversubscribed`). `names` are the ranks' names in errors,
    if the group is a part of a larger one.
    """

    def __init__(
        self,
        descriptor: int,
        group: Group,
        *,
        oversubscribed: bool,
        names: Sequence[str] | None = None,
        is_back: bool = False,
    ) -> None:
        self.group = group
        self.names = names or [f"rank {rank}" for rank in range(group.world_size)]
        self.bytes_sent = 0
        self._is_back = is_back
        self._segment = _native.Segment(descriptor, group.world_size)
        self._end = _native.Segment.head_bytes(group.world_size)
        self._progress: _native.ProgressThread | None = None
        self._peers: Peers | NoPeers | None = None
        self.first_wait_s = math.inf
        self._spin_ns = 0 if oversubscribed else SPIN_NS

    def progress_thread(self) -> _native.ProgressThread:
        if self._progress is None:
            # It shares the rank's cores with the computation, from which spinning would take time.
            self._progress = _native.ProgressThread(self._segment, self.group.rank, 0)
        return self._progress

    def close(self) -> None:
        """End the progress thread; windows stay mapped as long as arrays of them live."""
        self._progress = None
        if self._peers is not None:
            self._peers.leave()

    def watch(self, names: Sequence[str], processes: Mapping[int, PeerProcess]) -> None:
        """From now on, waits for a rank that ended raise RankFailed, which names it by `names`; see `Peers`.

        All ranks call this at the same place. Cost: a page of shared memory for each rank.
        """
        window = self.open_window("last words", WORDS_BYTES, 0)
        self._peers = Peers(window, self.group.rank, names, processes)
        self.first_wait_s = _LOOK_S

    def watch_nobody(self, sentence: str) -> None:
        """From now on, waits for other ranks raise RankFailed with this sentence: they have no part in this segment."""
        self._peers = NoPeers(sentence)
        self.first_wait_s = _LOOK_S

    def patiently(
        self, wait: Callable[[float], _Result | None], awaited: Callable[[], Sequence[int]], deadline: Deadline
    ) -> _Result | None:
        """Continue a wait that took `first_wait_s`: the result of `wait(seconds)`, or None at the deadline.

        One of the ranks `awaited` notifies. Raises RankFailed if they have ended. Their last notifications may be on
        their way to this rank's progress thread, so that is seen twice.
        """
        seen: Sequence[int] = ()
        while self._peers is not None:
            if (result := wait(_LOOK_S if seen else min(deadline.remaining_s(), _LOOK_S))) is not None:
                return result
            peers = awaited()
            if not peers or not all(map(self._peers.has_ended, peers)):
                if deadline.passed():
                    return None
                seen = ()
            elif peers == seen:
                raise RankFailed(self._peers.give_up(peers[0]))
            else:
                seen = peers
        return None

    def lost(self, peer: int, *, tells: bool = False) -> str | None:
        """Why a peer that is watched notifies no rank any more; None if it may do so. See `Peers.give_up`."""
        return self._peers.give_up(peer, tells=tells) if self._peers and self._peers.has_ended(peer) else None

    def tell_why(self, sentence: str) -> None:
        """See `samovar.transports.base.Watched`."""
        if isinstance(self._peers, Peers):
            self._peers.tell_why(sentence)

    def count_sent(self, num_bytes: int) -> None:
        self.bytes_sent += num_bytes

    def reduce(self, destination: Array, sources: Sequence[Array]) -> None:
        _native.reduce(destination, sources)

    def open_window(self, name: str, num_bytes: int, num_slots: int) -> "ShmWindow":
        """A new window behind the earlier ones.

        Cost: world_size * (num_bytes + 64 * num_slots) bytes of shared memory, of which each rank allocates its own
        part at once, and with it in the memory of its own NUMA node. It goes back when no rank has an array of the
        window any more.

        Raises SamovarError if another rank opened it with other sizes, InputError if memory is short.
        """
        rank, world_size = self.group.rank, self.group.world_size
        try:
            native = _native.Window(self._segment, rank, self._end, num_slots, num_bytes, self._spin_ns)
        except ValueError as error:
            raise SamovarError(f"rank {rank}: window {name!r}: {error}; do all ranks train one net?") from error
        except OSError as error:
            needed = _native.Window.file_bytes(world_size, num_slots, num_bytes)
            raise InputError(
                f"rank {rank}: window {name!r} needs {needed:,} bytes of shared memory: {error}; "
                "use fewer workers or raise the memory limit"
            ) from error
        self._end += _native.Window.file_bytes(world_size, num_slots, num_bytes)
        for slot in range(num_slots if self._is_back else 0):
            native.notify(rank, slot, 0)
        return ShmWindow(self, name, native)


class ShmWindow:
    """See `samovar.transports.base.Window`."""

    def __init__(self, transport: ShmTransport, name: str, native: _native.Window) -> None:
        self._transport = transport
        self._name = name
        self.native = native
        self.get, self.fetch_add, self.compare_swap = native.get, native.fetch_add, native.compare_swap
        self.peer, self.progress_thread = native.memory, transport.progress_thread
        self._rank = transport.group.rank
        self.local: npt.NDArray[np.uint8] = native.memory(self._rank)

    def put(self, peer: int, offset: int, source: npt.NDArray[Any], notification: Notification | None = None) -> None:
        self.native.put(peer, offset, source)
        if peer != self._rank:
            self._transport.count_sent(source.nbytes)
        if notification is not None:
            self.native.notify(peer, notification.slot, notification.value)

    def notify(self, peer: int, notification: Notification) -> None:
        self.native.notify(peer, notification.slot, notification.value)

    def wait(self, slot: int, at_least: int, peer: int, deadline: Deadline) -> int:
        waiting_s = deadline.remaining_s()
        value = self.native.wait(slot, at_least, min(waiting_s, self._transport.first_wait_s))
        if value is None:
            value = self._transport.patiently(partial(self.native.wait, slot, at_least), lambda: (peer,), deadline)
        if value is None:
            raise self.missing_notification(slot, peer, waiting_s)
        return value

    @property
    def first_wait_s(self) -> float:
        return self._transport.first_wait_s

    def patiently(
        self, wait: Callable[[float], bool], awaited: Callable[[], Sequence[int]], deadline: Deadline
    ) -> bool:
        return self._transport.patiently(lambda left_s: wait(left_s) or None, awaited, deadline) is not None

    def missing_notification(self, slot: int, peer: int, waited_s: float) -> MissingNotification:
        names = self._transport.names
        return missing_notification(names[self._rank], names[peer], slot, self._name, waited_s)

    def wait_any(self, slots: range, deadline: Deadline) -> tuple[int, int]:
        assert slots.step == 1, slots
        waiting_s = deadline.remaining_s()
        wait = partial(self.native.wait_any, slots.start, len(slots))
        fired = wait(min(waiting_s, self._transport.first_wait_s))
        if fired is None:
            fired = self._transport.patiently(wait, self._others, deadline)
        if fired is None:
            raise nobody_notified(self._transport.names[self._rank], slots, self._name, waiting_s)
        return fired

    def _others(self) -> Sequence[int]:
        return tuple(rank for rank in range(self._transport.group.world_size) if rank != self._rank)
