"""Windows of one host whose messages take the time of a described machine: real data, in real time, later.

A message is copied when it is put. It waits for the ports on its way, as `samovar.core.machine` describes them, and is
written into its peer's memory when it would arrive. All that waits sleeps.
"""

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol, TypeVar

import numpy as np

from samovar import _native
from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import SamovarError
from samovar.core.machine import Link, MachineModel, Ports
from samovar.transports.background import Job
from samovar.transports.base import Array, Notification, PeerTransport, PeerWindow, Window
from samovar.transports.shm import ShmTransport, ShmWindow
from samovar.transports.tcp_memory import WORD_BYTES, SharedMemory

_NS = 1_000_000_000
_LANDING_S, _LOOK_S = 30.0, 1.0
_TOGETHER_NS = 1_000_000  # a notification so soon after a put goes along with it
_Result = TypeVar("_Result")


class Clock(Protocol):
    """Moments in ns, and calls at them. A call may ask for more."""

    def now_ns(self) -> int: ...
    def at(self, moment_ns: int, call: Callable[[], None]) -> None: ...


class Timers:
    """A thread that calls functions at moments of the monotonic clock (see `Clock`).

    Each is called `early_s` before its moment, because a thread that sleeps wakes up late.
    """

    def __init__(self, early_s: float) -> None:
        self._early_ns = round(early_s * _NS)
        self._changed = threading.Condition()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = count()
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="samovar-emulated", daemon=True)
        self._thread.start()

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def at(self, moment_ns: int, call: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._heap, (moment_ns, next(self._number), call))
            self._changed.notify()

    def close(self) -> None:
        """Return when all has been called: what was sent arrives."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(_LANDING_S)

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        """The next call, at its time; None if there is none and there will be none."""
        with self._changed:
            while True:
                if not self._heap and self._is_closing:
                    return None
                wait_ns = self._heap[0][0] - self._early_ns - time.monotonic_ns() if self._heap else None
                if wait_ns is not None and wait_ns <= 0:
                    return heapq.heappop(self._heap)[2]
                self._changed.wait(None if wait_ns is None else wait_ns / _NS)


class Roads:
    """The way of messages between places, ranks first and then the servers at `server_hosts`.

    The moments at which ports are free again are words of `window` on rank 0, which all ranks change. So ports are
    shared as on the described machine.
    """

    def __init__(
        self, window: Window, machine: MachineModel, world_size: int, server_hosts: Sequence[int], clock: Clock
    ) -> None:
        self.clock = clock
        self._window, self._machine, self._world_size = window, machine, world_size
        self._hosts = [*(machine.host(rank) for rank in range(world_size)), *server_hosts]
        self._racks = [machine.rack(host) for host in self._hosts]
        self._last_ns: dict[tuple[int, int], int] = {}
        self._num_ports = self._counted(len(self._hosts), max(self._hosts), max(self._racks))

    @staticmethod
    def _counted(num_places: int, last_host: int, last_rack: int) -> int:
        return num_places + last_host + 1 + last_rack + 1

    @classmethod
    def num_bytes(cls, machine: MachineModel, world_size: int, server_hosts: Sequence[int]) -> int:
        """Of a window for all ports in both directions, and for the servers' memories."""
        hosts = [machine.host(world_size - 1), *server_hosts]
        places = world_size + len(server_hosts)
        num_ports = cls._counted(places, max(hosts), max(map(machine.rack, hosts)))
        return (2 * num_ports + len(server_hosts)) * WORD_BYTES

    def is_free(self, peer: int, own: int) -> bool:
        """Whether no message between these two takes any time."""
        link, is_far = self._link(own, peer)
        return link.is_instant and not link.latency_s and not is_far

    def send(self, source: int, destination: int, num_bytes: int, arrive: Callable[[], None]) -> None:
        """Call `arrive` when a message that leaves now has come."""
        link, is_far = self._link(source, destination)
        occupied_s, now_ns = link.occupied_s(num_bytes), self.clock.now_ns()
        begin_ns = now_ns if link.is_instant else self._base(0, source, link, now_ns, occupied_s)
        reached_ns = begin_ns + round(link.latency_s * _NS)
        if is_far:
            self.clock.at(reached_ns, lambda: self._climb(source, destination, num_bytes, reached_ns, arrive))
        elif link.is_instant:
            self.clock.at(reached_ns, arrive)
        else:
            self.clock.at(reached_ns, lambda: self._reach(source, destination, link, reached_ns, occupied_s, arrive))

    def serve(self, server: int, from_ns: int, seconds: float) -> int:
        """When the memory of a server has done a piece of work that comes at `from_ns`."""
        return self._taken(2 * self._num_ports + server, from_ns, seconds) + round(seconds * _NS)

    def place_of_server(self, server: int) -> int:
        return self._world_size + server

    def _link(self, source: int, destination: int) -> tuple[Link, bool]:
        """The link between two places, and whether a message leaves its rack."""
        if self._hosts[source] == self._hosts[destination]:
            return self._machine.host_link, False
        return self._machine.link, self._racks[source] != self._racks[destination]

    def _climb(self, source: int, destination: int, num_bytes: int, from_ns: int, arrive: Callable[[], None]) -> None:
        """The first byte is at the uplink of the sender's rack, and then at that of the receiver's."""
        assert self._machine.racks is not None
        uplink, first = self._machine.racks.uplink, len(self._hosts) + max(self._hosts) + 1
        occupied_s = uplink.occupied_s(num_bytes)
        begin_ns = self._taken(first + self._racks[source], from_ns, occupied_s)
        there_ns = begin_ns + round(uplink.latency_s * _NS)

        def descend() -> None:
            link, port = self._machine.link, self._receiving(first + self._racks[destination])
            reached_ns = self._taken(port, there_ns, occupied_s)
            slowest_s = max(occupied_s, link.occupied_s(num_bytes))
            way = (source, destination, link, reached_ns, slowest_s, arrive)
            self.clock.at(reached_ns, lambda: self._reach(*way))

        self.clock.at(there_ns, descend)

    def _reach(
        self, source: int, destination: int, link: Link, from_ns: int, occupied_s: float, arrive: Callable[[], None]
    ) -> None:
        """The first byte is at the receiving port. Messages of one pair arrive in their order."""
        arrives_ns = self._base(self._receiving(0), destination, link, from_ns, occupied_s) + round(occupied_s * _NS)
        pair = source, destination
        self._last_ns[pair] = arrives_ns = max(arrives_ns, self._last_ns.get(pair, 0))
        self.clock.at(arrives_ns, arrive)

    def _base(self, direction: int, place: int, link: Link, from_ns: int, occupied_s: float) -> int:
        if self._machine.ports is Ports.UNLIMITED:
            return from_ns
        port = place if link is self._machine.host_link else len(self._hosts) + self._hosts[place]
        return self._taken(direction + port, from_ns, occupied_s)

    def _receiving(self, port: int) -> int:
        return port if self._machine.ports is Ports.SHARED else self._num_ports + port

    def _taken(self, port: int, from_ns: int, occupied_s: float) -> int:
        """When a port that is wanted from a moment on begins with a message, which then keeps it."""
        offset = port * WORD_BYTES
        until_ns = self._window.fetch_add(0, offset, 0)
        while True:
            begin_ns = max(until_ns, from_ns)
            found = self._window.compare_swap(0, offset, until_ns, begin_ns + round(occupied_s * _NS))
            if found == until_ns:
                return begin_ns
            until_ns = found


@dataclass(slots=True)
class _Message:
    """A message under way, and its actions when it arrives. Without a `peer` it takes nothing more along."""

    peer: int | None = None
    sent_ns: int = 0
    actions: list[Callable[[], None]] = field(default_factory=list)


class EmulatedTransport(PeerTransport):
    """Shared memory of `inner` with the delays of `machine` (see `samovar.transports.base.Transport`).

    Reductions take at least the machine's time. `server_hosts` are the hosts of a center's servers.
    """

    def __init__(
        self, inner: ShmTransport, machine: MachineModel, server_hosts: Sequence[int], wake_up_s: float
    ) -> None:
        super().__init__(inner.group, inner.names, "samovar-emulated-run")
        rank, world_size = inner.group.rank, inner.group.world_size
        self._inner, self._machine, self._wake_up_s = inner, machine, wake_up_s
        self.lost_elsewhere, self.give_up = inner.lost, partial(inner.lost, tells=True)
        window = inner.open_window("emulated ports", Roads.num_bytes(machine, world_size, server_hosts), 0)
        self._timers = Timers(wake_up_s)
        self.roads = Roads(window, machine, world_size, server_hosts, self._timers)
        self._is_free = [self.roads.is_free(peer, rank) for peer in range(world_size)]
        self._lock = threading.Lock()
        self._last = threading.local()

    def reduce(self, destination: Array, sources: Sequence[Array]) -> None:
        until_s = time.monotonic() + self._machine.reduce_s(
            self.group.rank, sum(array.nbytes for array in (destination, *sources))
        )
        _native.reduce(destination, sources)
        sleep_until(until_s, self._wake_up_s)

    def open_window(self, name: str, num_bytes: int, num_slots: int) -> "EmulatedWindow":
        return EmulatedWindow(self, name, self._inner.open_window(name, num_bytes, num_slots), num_slots)

    def close(self) -> None:
        """End background work, and let arrive what is under way."""
        self._is_closed = True
        self._background.close()
        self._timers.close()

    def send(self, peer: int, num_bytes: int, action: Callable[[], None]) -> None:
        """Have `action` happen when a message that leaves now has come to the peer."""
        if self._is_free[peer]:
            action()
            return
        message = self._last.message = _Message(peer, time.monotonic_ns(), [action])
        self.roads.send(self.group.rank, peer, num_bytes, lambda: self._arrive(message))

    def send_along(self, peer: int, action: Callable[[], None]) -> None:
        """The same without bytes, with the message that this thread has just sent to the peer if there is one."""
        last: _Message | None = getattr(self._last, "message", None)
        if last is not None:
            with self._lock:
                if last.peer == peer and time.monotonic_ns() - last.sent_ns < _TOGETHER_NS:
                    last.actions.append(action)
                    last.peer = None
                    return
        self.send(peer, 0, action)

    def ask(self, peer: int, num_bytes: int, action: Callable[[], _Result]) -> _Result:
        """A question and its answer of `num_bytes`: acts when the question arrives, returns when the answer does."""
        if self._is_free[peer]:
            return action()
        job = Job("a question", lambda _job: found.append(action()))
        found: list[_Result] = []

        def answer() -> None:
            job.run(None)
            self.roads.send(peer, self.group.rank, num_bytes, answered.set)

        answered = threading.Event()
        self.roads.send(self.group.rank, peer, 0, answer)
        self.await_event(answered)
        job.wait(FOR_EVER)
        return found[0]

    def await_event(self, event: threading.Event) -> None:
        """Wait for what a timer sets. Raises SamovarError if the transport is closed before."""
        while not event.wait(_LOOK_S):
            if self._is_closed:
                raise SamovarError(f"{self.names[self.group.rank]}: the transport was closed here")

    def _arrive(self, message: _Message) -> None:
        with self._lock:
            message.peer = None
        for action in message.actions:
            action()


class EmulatedWindow(PeerWindow):
    """See `samovar.transports.base.Window`."""

    def __init__(self, transport: EmulatedTransport, name: str, inner: ShmWindow, num_slots: int) -> None:
        super().__init__(transport, name, inner.local, num_slots)
        self._transport, self._native = transport, inner.native
        self._memory = SharedMemory(inner.native, self._rank, num_slots)

    def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        self._check(peer, offset, source.nbytes, notification)
        if peer == self._rank:
            self._native.put(peer, offset, source)
        else:
            data = np.array(source, order="C")
            self._transport.count_sent(data.nbytes)
            self._transport.send(peer, data.nbytes, lambda: self._native.put(peer, offset, data))
        if notification is not None:
            self.notify(peer, notification)

    def _get(self, peer: int, offset: int, destination: Array) -> None:
        self._asked(peer, destination.nbytes, lambda: self._native.get(peer, offset, destination))

    def fetch_add(self, peer: int, offset: int, value: int) -> int:
        self._check(peer, offset, WORD_BYTES)
        return self._asked(peer, WORD_BYTES, lambda: self._native.fetch_add(peer, offset, value))

    def compare_swap(self, peer: int, offset: int, expected: int, desired: int) -> int:
        self._check(peer, offset, WORD_BYTES)
        return self._asked(peer, WORD_BYTES, lambda: self._native.compare_swap(peer, offset, expected, desired))

    def notify(self, peer: int, notification: Notification) -> None:
        self._check(peer, 0, 0, notification)

        def ring() -> None:
            self._native.notify(peer, notification.slot, notification.value)

        if peer == self._rank:
            ring()
        else:
            self._transport.send_along(peer, ring)

    def _await(self, slot: int, at_least: int, is_over: Callable[[], bool], deadline: Deadline) -> int | None:
        return self._memory.wait(slot, at_least, is_over, deadline)

    def _take_any(self, slots: range, is_over: Callable[[], bool], deadline: Deadline) -> tuple[int, int] | None:
        return self._memory.take_any(slots, is_over, deadline)

    def _asked(self, peer: int, num_bytes: int, action: Callable[[], _Result]) -> _Result:
        return action() if peer == self._rank else self._transport.ask(peer, num_bytes, action)


def sleep_until(moment_s: float, early_s: float) -> None:
    """Sleep up to a moment of the monotonic clock, with `early_s` less, which the wake-up takes."""
    left_s = moment_s - early_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
