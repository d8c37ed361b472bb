"""A window whose puts, notifications and waits go through a simulated network."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.transports.base import Array, Notification
from samovar.transports.sim.network import CallMessage, Fabric, ServerRequest, SimMessage, send_requests
from samovar.transports.sim.races import AccessLog, VectorClock
from samovar.transports.sim.scheduler import Task, virtual_s

_WORD_BYTES = 8
_Answer = TypeVar("_Answer")


class SimPort:
    """The state that all windows of one rank share; `task` runs, or ran last: its `own_task`, or a spawned one."""

    def __init__(self, rank: int, fabric: Fabric, task: Task) -> None:
        self.rank = rank
        self.fabric = fabric
        self.task = task
        self.own_task = task
        self._spawned: list[Task] = []
        self._waiting: list[Task] = []  # for a notification
        self.bytes_sent = 0
        self.last_put: PutMessage | None = None  # no time has passed since: a notification goes along with it
        self.windows: list[SimWindow] = []  # by address
        self.all_are_real = True
        self._addresses: list[int] = []

    def block(self, reason: object, deadline_s: float = math.inf) -> bool:
        """See `Scheduler.block`."""
        self.last_put = None
        task = self.task
        arrived = self.fabric.scheduler.block(task, reason, deadline_s)
        self.task = task
        return arrived

    def wait(self, awaited: "Awaited", deadline_s: float) -> bool:
        """Wait until `notified` is called for it (True), or the deadline passes (False)."""
        task = self.task
        self._waiting.append(task)
        try:
            return self.block(awaited, deadline_s)
        finally:
            if self._waiting and task in self._waiting:
                self._waiting.remove(task)

    def notified(self, window: "SimWindow", slot: int, value: int) -> None:
        """Continue the tasks that wait for this."""
        for task in tuple(self._waiting):
            awaited = task.blocked_on
            if isinstance(awaited, Awaited) and awaited.is_met_by(window, slot, value):
                self._waiting.remove(task)
                self.fabric.scheduler.wake(task)

    def spawn(self, what: str, work: Callable[[], None]) -> "Spawned":
        """Run `work` in the background."""
        spawned = Spawned(self, f"rank {self.rank}'s {what}", work)
        self._spawned.append(spawned.task)
        self.fabric.scheduler.spawn(spawned.task)
        return spawned

    def die(self) -> None:
        """The rank's process ends, with all that it does in the background; its memory stays."""
        for task in self._spawned:
            self.fabric.scheduler.cut_off(task)

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.last_put = None
        task = self.task
        self.fabric.scheduler.sleep(task, seconds)
        self.task = task

    def poll(self, every_s: float, is_over: Callable[[float], bool]) -> None:
        """See `Scheduler.poll`."""
        task = self.task
        self.fabric.scheduler.poll(task, every_s, is_over)
        self.task, self.last_put = task, None

    def request(self, requests: Sequence[ServerRequest]) -> None:
        """Send all to their servers at once, and wait until all have been answered."""
        task, fabric = self.task, self.fabric
        self.bytes_sent += sum(request.num_bytes for request in requests)
        send_requests(self.rank, requests, fabric, task.resume)
        self.block("the answers of servers")

    def add_window(self, window: "SimWindow") -> None:
        """Register the place of its memory."""
        self.all_are_real &= window.is_real
        address = address_of(window.local)
        index = bisect_right(self._addresses, address)
        self._addresses.insert(index, address)
        self.windows.insert(index, window)

    def note(self, array: Array, writes: bool, verb: str) -> None:
        """Tell the race finder that this rank itself touches `array`; memory outside of windows is its own affair."""
        if self.fabric.races is None or array.nbytes == 0:
            return
        assert array.flags.c_contiguous, "only whole runs of bytes can be followed"
        window, offset = self.find(array)
        if window is not None:
            window.note(self.rank, offset, array.nbytes, writes, verb)

    def find(self, array: Array) -> tuple["SimWindow | None", int]:
        """The window whose part contains the array, and the place there."""
        address = address_of(array)
        index = bisect_right(self._addresses, address) - 1
        if index < 0:
            return None, 0
        window, offset = self.windows[index], address - self._addresses[index]
        return (window, offset) if offset < len(window.local) else (None, 0)


class Spawned:
    """One more task of a rank; a `Pending`."""

    def __init__(self, port: SimPort, what: str, work: Callable[[], None]) -> None:
        self.task = Task(what)
        self.task.program = self._run
        self._port = port
        self._work = work
        self._is_done = False
        self._waiter: Task | None = None

    def wait(self, deadline: Deadline) -> None:
        if self._is_done:
            return
        self._waiter = self._port.task
        arrived = self._port.block(f"the end of {self.task.name}", virtual_s(deadline))
        self._waiter = None
        if not arrived:
            raise DeadlineExceeded(f"{self.task.name} waits for {self.task.blocked_on}")

    def _run(self) -> None:
        self._port.task = self.task
        self._work()
        self._is_done = True
        if self._waiter is not None:
            self._port.fabric.scheduler.wake(self._waiter)


@dataclass(slots=True)
class Awaited:
    """The event for which a rank waits; its text is a line of the deadlock report."""

    window: "SimWindow"
    slots: range
    at_least: int
    peer: int | None

    def is_met_by(self, window: "SimWindow", slot: int, value: int) -> bool:
        return window is self.window and slot in self.slots and value >= self.at_least

    def __str__(self) -> str:
        name = self.window.name
        if self.peer is None:
            return f"any of slots {self.slots.start} to {self.slots.stop - 1} of window {name!r}"
        slot = self.slots.start
        holds = self.window.slots[slot]
        return f"rank {self.peer}: slot {slot} of window {name!r} >= {self.at_least} (it holds {holds})"


class PutMessage(SimMessage):
    """Data for one window, a notification for one window, or both."""

    __slots__ = ("clock", "data", "notified", "offset", "slot", "target", "value")

    def __init__(self, source: int, destination: int, num_bytes: int) -> None:
        self.source, self.destination, self.num_bytes = source, destination, num_bytes
        self.occupied_s = 0.0
        self.target: SimWindow | None = None
        self.offset = 0
        self.data = b""
        self.notified: SimWindow | None = None
        self.slot = -1
        self.value = 0
        self.clock: VectorClock | None = None

    def arrive(self) -> None:
        if self.target is not None and self.data:
            self.target.store(self.offset, self.data)
        if self.notified is not None:
            self.notified.notice(self.slot, self.value, self.clock)

    def content(self) -> tuple[int, int, int, int]:
        index = self.notified.index if self.notified is not None else -1
        return index, self.offset, self.slot, self.value


class SimWindow:
    """One rank's part of a window (see `samovar.transports.base.Window`).

    `parts` are those of all ranks of a group. Where `is_real` is False, `local` is the memory of all parts: bytes are
    counted, never moved or read.
    """

    def __init__(
        self, name: str, index: int, port: SimPort, local: npt.NDArray[np.uint8], num_slots: int, is_real: bool
    ) -> None:
        self.name = name
        self.index = index
        self.local = local
        self.slots = [0] * num_slots
        self.parts: list[SimWindow] = []
        self._port = port
        self.rank = port.rank
        self._fabric = port.fabric
        self.is_real = is_real
        self.heed: Callable[[int], None] | None = None  # takes all notifications, and no task waits
        self._memory = local.data
        self._clocks: dict[int, VectorClock] = {}  # slot -> what the sender of its value knew
        self._word_clocks: dict[int, VectorClock] = {}
        self._log = AccessLog(name, port.rank, len(local)) if port.fabric.races is not None else None
        port.add_window(self)

    def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        """Read the source now; the data arrives with the message."""
        part = self._part(peer, offset, source.nbytes)
        if self._fabric.races is not None:
            self._port.note(source, writes=False, verb="put (its source)")
            part.note(self.rank, offset, source.nbytes, writes=True, verb="put")
        data = source.tobytes() if self.is_real else b""
        if part is self:
            part.store(offset, data)
        else:
            message = PutMessage(self.rank, part.rank, self._fabric.num_bytes(source))
            message.target, message.offset, message.data = part, offset, data
            self._port.bytes_sent += message.num_bytes
            self._fabric.network.send(message)
            self._port.last_put = message
        if notification is not None:
            self.notify(peer, notification)

    def notify(self, peer: int, notification: Notification) -> None:
        """Right behind a put to the same peer it is part of the put's message, else a message without bytes."""
        part, slot = self._part(peer, 0, 0), notification.slot
        if not 0 <= slot < len(part.slots):
            raise IndexError(f"no such slot: rank {peer}, slot {slot} of {len(part.slots)} in window {self.name!r}")
        races = self._fabric.races
        clock = races.release(self.rank) if races is not None else None
        if part is self:
            part.notice(slot, notification.value, clock)
            return
        message = self._port.last_put
        self._port.last_put = None
        if message is None or message.destination != part.rank:
            message = PutMessage(self.rank, part.rank, 0)
            self._fabric.network.send(message)
        message.notified, message.slot, message.value, message.clock = part, slot, notification.value, clock

    def wait(self, slot: int, at_least: int, peer: int, deadline: Deadline) -> int:
        assert slot >= 0, slot
        if self.slots[slot] < at_least:
            awaited = Awaited(self, range(slot, slot + 1), at_least, peer)
            if not self._port.wait(awaited, virtual_s(deadline)):
                raise DeadlineExceeded(
                    f"rank {self.rank}: rank {peer} did not notify slot {slot} of window {self.name!r} before "
                    f"{deadline.at_s:.6f} s of virtual time"
                )
        if self._fabric.races is not None:
            self._acquire(slot)
        return self.slots[slot]

    def wait_any(self, slots: range, deadline: Deadline) -> tuple[int, int]:
        assert slots.step == 1, slots
        fired = self._fired(slots)
        if fired is None and self._port.wait(Awaited(self, slots, 1, None), virtual_s(deadline)):
            fired = self._fired(slots)
        if fired is None:
            raise DeadlineExceeded(
                f"rank {self.rank}: nobody notified slots {slots.start} to {slots.stop - 1} of window "
                f"{self.name!r} before {deadline.at_s:.6f} s of virtual time"
            )
        self._acquire(fired)
        value, self.slots[fired] = self.slots[fired], 0
        return fired, value

    def get(self, peer: int, offset: int, destination: Array) -> None:
        """A question and its answer: reads when the question arrives, returns when the answer does."""
        part = self._part(peer, offset, destination.nbytes)
        part.note(self.rank, offset, destination.nbytes, writes=False, verb="get")
        self._port.note(destination, writes=True, verb="get (its destination)")
        num_bytes = self._fabric.num_bytes(destination)
        data = self._ask(peer, num_bytes, lambda: part.loaded(offset, destination.nbytes))
        if self.is_real:
            destination.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)

    def fetch_add(self, peer: int, offset: int, value: int) -> int:
        return self._change_word(peer, offset, lambda old: (old + value) % 2**64)

    def compare_swap(self, peer: int, offset: int, expected: int, desired: int) -> int:
        return self._change_word(peer, offset, lambda old: desired if old == expected else old)

    def store(self, offset: int, data: bytes) -> None:
        """Data has come."""
        self._memory[offset : offset + len(data)] = data

    def loaded(self, offset: int, num_bytes: int) -> bytes:
        """The content of an answer."""
        return bytes(self._memory[offset : offset + num_bytes]) if self.is_real else b""

    def notice(self, slot: int, value: int, clock: VectorClock | None) -> None:
        """Store a notification that has come, and continue the rank if it waits for it."""
        self.slots[slot] = value
        if clock is not None:
            self._clocks[slot] = clock
        if self.heed is not None:
            self.heed(slot)
        else:
            self._port.notified(self, slot, value)

    def note(self, rank: int, offset: int, num_bytes: int, writes: bool, verb: str) -> None:
        """Tell the race finder that `rank` touches these bytes of this part."""
        races = self._fabric.races
        if races is None or self._log is None or num_bytes == 0:
            return
        note = races.write if writes else races.read
        note(rank, self._log, offset, offset + num_bytes, verb, self._fabric.scheduler.now_s)

    def _acquire(self, slot: int) -> None:
        races = self._fabric.races
        if races is not None and slot in self._clocks:
            races.acquire(self.rank, self._clocks[slot])

    def _fired(self, slots: range) -> int | None:
        return next((slot for slot in slots if self.slots[slot] != 0), None)

    def _part(self, peer: int, offset: int, num_bytes: int) -> "SimWindow":
        if not (0 <= peer < len(self.parts) and 0 <= offset <= len(self.local) - num_bytes):
            raise IndexError(f"bytes {offset} + {num_bytes} of rank {peer} are not in window {self.name!r}")
        return self.parts[peer]

    def _change_word(self, peer: int, offset: int, changed: Callable[[int], int]) -> int:
        """Atomic, and ordered with all earlier and later atomics on the same word."""
        assert self.is_real, "an atomic needs a window whose bytes are kept"
        part = self._part(peer, offset, _WORD_BYTES)
        if offset % _WORD_BYTES != 0:
            raise ValueError(f"an atomic needs an offset divisible by {_WORD_BYTES}, got {offset}")
        races = self._fabric.races
        clock = races.release(self.rank) if races is not None else None

        def change() -> tuple[bytes, VectorClock | None]:
            old = part.loaded(offset, _WORD_BYTES)
            part.store(offset, changed(int.from_bytes(old, "little")).to_bytes(_WORD_BYTES, "little"))
            return old, part.meet(offset, clock)

        old, known = self._ask(peer, _WORD_BYTES, change)
        if races is not None and known is not None:
            races.acquire(self.rank, known)
        return int.from_bytes(old, "little")

    def meet(self, offset: int, clock: VectorClock | None) -> VectorClock | None:
        """The knowledge of all ranks that changed this word by atomics, now one more."""
        if clock is None:
            return None
        known = self._word_clocks.get(offset, clock)
        self._word_clocks[offset] = list(map(max, known, clock))
        return self._word_clocks[offset]

    def _ask(self, peer: int, num_bytes: int, answer: Callable[[], _Answer]) -> _Answer:
        """The result of answer() at the peer; its own memory answers at once."""
        if (other := self.parts[peer].rank) == self.rank:
            return answer()
        network, task, answers = self._fabric.network, self._port.task, list[_Answer]()

        def asked() -> None:
            answers.append(answer())
            network.send(CallMessage(other, self.rank, num_bytes, task.resume))

        network.send(CallMessage(self.rank, other, 0, asked))
        self._port.block(f"the answer of rank {peer} about window {self.name!r}")
        return answers[0]


def address_of(array: Array) -> int:
    """The place of its first byte in memory."""
    address: int = array.__array_interface__["data"][0]
    return address
