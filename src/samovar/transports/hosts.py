"""Windows over several hosts: ranks of one host reach each other in shared memory, all others over TCP."""

from collections.abc import Callable, Sequence
from socket import socket

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.group import Group, JobHosts, rank_names
from samovar.transports.base import Array, Notification, Pending
from samovar.transports.keys import Key
from samovar.transports.shm import ShmTransport, ShmWindow
from samovar.transports.tcp import TcpTransport, TcpWindow
from samovar.transports.tcp_memory import SharedMemory
from samovar.transports.tcp_service import TcpConfig


class HostsTransport:
    """See `samovar.transports.base.Transport`; of `tcp`'s group, the ranks `inside` share this host, and `local`.

    A window's memory and slots are in the segment of its rank's host. The threads of `tcp` carry out requests of other
    hosts there, so a rank finds data of both ways in one place.
    """

    def __init__(self, local: ShmTransport, tcp: TcpTransport, inside: Sequence[int]) -> None:
        assert inside[local.group.rank] == tcp.group.rank, (inside, local.group, tcp.group)
        self._local = local
        self._tcp = tcp
        self.group = tcp.group
        self.places = {rank: place for place, rank in enumerate(inside)}
        tcp.lost_elsewhere = self._lost_here

    @property
    def bytes_sent(self) -> int:
        return self._local.bytes_sent + self._tcp.bytes_sent

    @property
    def bytes_between(self) -> int:
        """Bytes that this rank sent to other hosts."""
        return self._tcp.bytes_sent

    def count_sent(self, num_bytes: int) -> None:
        self._local.count_sent(num_bytes)

    def reduce(self, destination: Array, sources: Sequence[Array]) -> None:
        _native.reduce(destination, sources)

    def _lost_here(self, rank: int) -> str | None:
        place = self.places.get(rank)
        return None if place is None else self._local.lost(place)

    def spawn(self, what: str, work: Callable[[Deadline], None]) -> Pending:
        """See `TcpTransport.spawn`."""
        return self._tcp.spawn(what, work)

    def close(self, deadline: Deadline | None = None) -> None:
        """Close the connections to other hosts, as `TcpTransport.close`; `local` is closed by its owner."""
        self._tcp.close(deadline)

    def open_window(self, name: str, num_bytes: int, num_slots: int) -> "HostsWindow":
        """Cost and errors: those of `ShmTransport.open_window`."""
        shared = self._local.open_window(name, num_bytes, num_slots)
        memory = SharedMemory(shared.native, self._local.group.rank, num_slots)
        return HostsWindow(self.places, shared, self._tcp.open_window(name, num_bytes, num_slots, memory))


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
    tcp = TcpTransport(group, config, key, listening, job.addresses, names=names, needs_memory=local is not None)
    return tcp if local is None else HostsTransport(local, tcp, job.of(rank).ranks)
