"""Windows over several hosts: ranks of one host reach each other in shared memory, all others over TCP."""

import time
from collections.abc import Callable, Sequence
from socket import socket

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.group import Group, Host, JobHosts, rank_names
from samovar.transports.base import Array, Notification, Transport, Window
from samovar.transports.keys import Key
from samovar.transports.shm import ShmTransport, ShmWindow
from samovar.transports.tcp import TcpTransport, TcpWindow
from samovar.transports.tcp_memory import PrivateMemory, SharedMemory
from samovar.transports.tcp_service import TcpConfig

_LINE_BYTES, _NUM_PINGS, _LEAD_AT = 64, 50, 16
_NOTE_BYTES = 128
_SHOW_EVERY_S, _SHOWN_BYTES_PER_S = 0.1, 1e5


class HostsTransport:
    """See `samovar.transports.base.Transport`; of `tcp`'s group, the ranks `inside` share this host, and `local`.

    A window's memory and slots are in the segment of its rank's host. The threads of `tcp` carry out requests of other
    hosts there, so a rank finds data of both ways in one place.
    """

    def __init__(self, local: ShmTransport, tcp: TcpTransport, inside: Sequence[int]) -> None:
        assert inside[local.group.rank] == tcp.group.rank, (inside, local.group, tcp.group)
        self._local = local
        self._tcp = tcp
        self.group, self.count_sent = tcp.group, local.count_sent
        self.lose, self.spawn, self.close = tcp.lose, tcp.spawn, tcp.close  # `local` is closed by its owner
        self.places = {rank: place for place, rank in enumerate(inside)}
        tcp.lost_elsewhere, tcp.give_up = self._lost_here, lambda rank: self._lost_here(rank, tells=True)

    @property
    def bytes_sent(self) -> int:
        return self._local.bytes_sent + self._tcp.bytes_sent

    @property
    def bytes_between(self) -> int:
        """Bytes that this rank sent to other hosts."""
        return self._tcp.bytes_sent

    def reduce(self, destination: Array, sources: Sequence[Array]) -> None:
        _native.reduce(destination, sources)

    def _lost_here(self, rank: int, *, tells: bool = False) -> str | None:
        place = self.places.get(rank)
        return None if place is None else self._local.lost(place, tells=tells)

    def open_window(self, name: str, num_bytes: int, num_slots: int) -> "HostsWindow":
        """Cost and errors: those of `ShmTransport.open_window`."""
        shared = self._local.open_window(name, num_bytes, num_slots)
        memory = SharedMemory(shared.native, self._local.group.rank, num_slots)
        return HostsWindow(self.places, shared, self._tcp.open_window(name, num_bytes, num_slots, memory))

    def lasting(self) -> "LastingTransport":
        """The same, with windows that outlive their ranks."""
        return LastingTransport(self._local, self._tcp, list(self.places))


class LastingTransport(HostsTransport):
    """Windows that outlive their ranks: a rank puts into its own part alone, and gets from any, of a dead rank too.

    On its host the part is in `local`, which the launcher keeps. Others read a copy in host 0's launcher. A put of up
    to 128 bytes is shown at once, with all other windows. A larger one is, every 0.1 s, or as 100 kB/s allow.
    """

    def __init__(self, local: ShmTransport, tcp: TcpTransport, inside: Sequence[int]) -> None:
        super().__init__(local, tcp, inside)
        self._windows: list[LastingWindow] = []

    def open_window(self, name: str, num_bytes: int, num_slots: int) -> "LastingWindow":
        world_size, shared = self.group.world_size, self._local.open_window(name, num_bytes, num_slots)
        memory = PrivateMemory(world_size * num_bytes, 0)
        copies = self._tcp.open_window(name, len(memory.bytes), 0, memory)
        self._windows.append(LastingWindow(self, shared, copies))
        return self._windows[-1]

    def show(self, last: "LastingWindow", *, at_once: bool) -> None:
        """Renew the copies of this rank's parts, `last` after the others."""
        for window in (*(each for each in self._windows if each is not last), last):
            window.show(at_once=at_once)


class HostsWindow:
    """See `samovar.transports.base.Window`."""

    def __init__(self, places: dict[int, int], shared: ShmWindow, remote: TcpWindow) -> None:
        self.local: npt.NDArray[np.uint8] = shared.local
        # Both wait for what came by either way; this one also hears of a rank that went.
        self.wait = remote.wait
        self.wait_any = remote.wait_any
        self._places = places
        self._shared = shared
        self._remote = remote

    def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        window, number = self._way(peer)
        window.put(number, offset, source, notification)

    def get(self, peer: int, offset: int, destination: Array) -> None:
        window, number = self._way(peer)
        window.get(number, offset, destination)

    def fetch_add(self, peer: int, offset: int, value: int) -> int:
        window, number = self._way(peer)
        return window.fetch_add(number, offset, value)

    def compare_swap(self, peer: int, offset: int, expected: int, desired: int) -> int:
        window, number = self._way(peer)
        return window.compare_swap(number, offset, expected, desired)

    def notify(self, peer: int, notification: Notification) -> None:
        window, number = self._way(peer)
        window.notify(number, notification)

    def _way(self, peer: int) -> tuple[ShmWindow | TcpWindow, int]:
        """The window that leads to the peer, and the peer's number there."""
        place = self._places.get(peer)
        return (self._remote, peer) if place is None else (self._shared, place)


class LastingWindow(HostsWindow):
    """See `LastingTransport`."""

    def __init__(self, transport: LastingTransport, shared: ShmWindow, copies: TcpWindow) -> None:
        super().__init__(transport.places, shared, copies)
        self._transport, self._group = transport, transport.group
        self._shown_s = float("-inf")

    def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        assert peer == self._group.rank, (peer, self._group)
        self._shared.put(self._places[peer], offset, source, notification)
        self._transport.show(self, at_once=source.nbytes <= _NOTE_BYTES)

    def show(self, *, at_once: bool) -> None:
        now_s, pause_s = time.monotonic(), max(_SHOW_EVERY_S, len(self.local) / _SHOWN_BYTES_PER_S)
        if at_once or now_s - self._shown_s >= pause_s:
            self._shown_s = now_s
            self._remote.put(self._group.world_size, self._group.rank * len(self.local), self.local)

    def get(self, peer: int, offset: int, destination: Array) -> None:
        if peer in self._places:
            super().get(peer, offset, destination)
        else:
            self._remote.get(self._group.world_size, peer * len(self.local) + offset, destination)


class Pings:
    """Messages there and back between two ranks by slot `slot` of `window`, which no other pair of ranks uses.

    An answer tells the peer's clock, and its `used_s`.
    """

    def __init__(
        self,
        window: Window,
        slot: int,
        peer: int,
        deadline: Callable[[], Deadline],
        clock_s: Callable[[], float],
        used_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._window, self._slot, self._peer = window, slot, peer
        self._deadline, self._clock_s, self._used_s = deadline, clock_s, used_s
        self._answer = window.local[:16].view(np.float64)
        self._count = 0

    def put(self, source: Array) -> float:
        """The seconds until the peer has answered a message."""
        began_s = time.perf_counter()
        self._count += 1
        self._window.put(self._peer, 0, source, Notification(self._slot, self._count))
        self._wait()
        return time.perf_counter() - began_s

    def ping(self) -> tuple[float, float]:
        """The seconds there and back, and the lead of the peer's clock over this one in the middle."""
        before_s = self._clock_s()
        seconds = self.put(np.zeros(_LINE_BYTES, np.uint8))
        return seconds, float(self._answer[0]) - (before_s + seconds / 2)

    def used_s(self) -> float:
        """Of both, now."""
        self.ping()
        return self._used_s() + float(self._answer[1])

    def answer(self, count: int) -> None:
        """Answer `count` messages of the peer."""
        for _ in range(count):
            self._count += 1
            self._wait()
            told = np.array([self._clock_s(), self._used_s()])
            self._window.put(self._peer, 0, told, Notification(self._slot, self._count))

    def _wait(self) -> None:
        self._window.wait(self._slot, self._count, self._peer, self._deadline())


class HostClocks:
    """The clocks of the ranks of `hosts`, of which each host has one. All ranks open it together."""

    def __init__(
        self,
        transport: Transport,
        hosts: Sequence[Host],
        deadline: Callable[[], Deadline],
        clock_s: Callable[[], float],
    ) -> None:
        self._rank, self._hosts, self._deadline = transport.group.rank, hosts, deadline
        self._done = len(hosts)  # a slot: rank 0 has told the lead
        self._window = transport.open_window("clocks", _LINE_BYTES, self._done + 1)
        self._lead_s = self._window.local[_LEAD_AT : _LEAD_AT + 8].view(np.float64)
        speakers = [host.ranks[0] for host in hosts]
        self._pings = {
            number: Pings(self._window, number, speaker if self._rank == 0 else 0, deadline, clock_s)
            for number, speaker in enumerate(speakers)
            if number and self._rank in (0, speaker)
        }
        self._count = 0

    def lead_s(self) -> float:
        """How far this host's clock is ahead of host 0's, to half the time of the fastest message there and back.
        All ranks call it together. Cost: 50 such messages for each other host."""
        self._count += 1
        for number, pings in self._pings.items():
            if self._rank != 0:
                pings.answer(_NUM_PINGS)
                continue
            lead = np.array([min(pings.ping() for _ in range(_NUM_PINGS))[1]])
            for rank in self._hosts[number].ranks:
                self._window.put(rank, _LEAD_AT, lead, Notification(self._done, self._count))
        if self._rank in self._hosts[0].ranks:
            return 0.0
        self._window.wait(self._done, self._count, 0, self._deadline())
        return float(self._lead_s[0])


def open_hosts(
    rank: int,
    job: JobHosts,
    local: ShmTransport | None,
    listening: socket,
    key: Key,
    timeout_s: float,
    deadline_after: Callable[[float], Deadline] = Deadline.after,
) -> HostsTransport | TcpTransport:
    """The windows of `rank` in a job over several hosts; without `local`, over TCP alone.

    Requests to peers end by `deadline_after(timeout_s)`. Owns `listening`, where others reach this rank. Errors name
    ranks with their hosts.
    """
    group = Group(rank, len(job.addresses))
    names, config = rank_names(job.hosts), TcpConfig(job.job, timeout_s, deadline_after)
    addresses = (*job.addresses, *job.home[1:])
    names += ["host 0's launcher"] * (len(addresses) - len(names))
    tcp = TcpTransport(group, config, key, listening, addresses, names=names, needs_memory=local is not None)
    return tcp if local is None else HostsTransport(local, tcp, job.of(rank).ranks)
