"""Windows over a network: every rank keeps its own part, and peers send requests.

A rank connects to a peer when it first needs something of it. On the peer's side a thread receives requests and carries
them out in their order. It waits for nothing else, so sending never blocks two ranks. Connections are encrypted, and
made only with the job's key (`samovar.transports.secure`).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from socket import socket

import numpy as np

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError
from samovar.core.group import Group
from samovar.transports.base import Array, Notification, PeerTransport, PeerWindow
from samovar.transports.keys import Key
from samovar.transports.rendezvous import Rendezvous
from samovar.transports.secure import Address, SecureChannel, connect
from samovar.transports.tcp_listen import Listener
from samovar.transports.tcp_memory import WORD_BYTES, WindowMemory, WindowTable
from samovar.transports.tcp_service import NO_SLOT, PeerHello, PeerRequest, PeerService, TcpConfig, Verb

_ENDING_S = 1.0


@dataclass(slots=True)
class _Link:
    """The connection to a peer; the lock is held from a request to its answer."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    next: threading.Lock = field(default_factory=threading.Lock)  # of the thread that has the lock after this one
    channel: SecureChannel | None = None
    windows: set[int] = field(default_factory=set)  # that the peer was told of

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock. A thread that asks again at once comes after one that waits, which a lock does not promise."""
        with self.next:
            self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    def end(self) -> None:
        """Close the channel; where a request is under way, which may hang, it fails, and its thread closes."""
        channel = self.channel
        if channel is not None:
            channel.end()
        if self.lock.acquire(timeout=_ENDING_S):
            if channel is not None:
                channel.close()
            self.channel = None
            self.lock.release()


class TcpTransport(PeerTransport):
    """This rank's access to its peers' memory over TCP (see `samovar.transports.base.Transport`).

    `listening` is where peers reach this rank, `addresses` where each rank listens; owns the socket. Peers after those
    of the group only keep memory. With `needs_memory` the caller that opens a window gives its memory.
    """

    def __init__(
        self,
        group: Group,
        config: TcpConfig,
        key: Key,
        listening: socket,
        addresses: Sequence[Address],
        *,
        names: Sequence[str] | None = None,
        needs_memory: bool = False,
    ) -> None:
        assert len(addresses) >= group.world_size, (len(addresses), group.world_size)
        super().__init__(group, names, "samovar-tcp")
        self._config = config
        self._key = key
        self._addresses = addresses
        self._links = [_Link() for _ in addresses]
        self._windows = WindowTable(config.deadline if needs_memory else None)
        self._num_windows = 0
        self._service = PeerService(group, self.names, config, self._windows)
        self._listener = Listener(listening, key, self._service.accept)

    def open_window(self, name: str, num_bytes: int, num_slots: int, memory: WindowMemory | None = None) -> "TcpWindow":
        """Cost: num_bytes of this rank's memory. Raises SamovarError if a peer opened it with other sizes."""
        number = self._num_windows
        self._num_windows += 1
        try:
            memory = self._windows.open(number, num_bytes, num_slots, memory)
        except SamovarError as error:
            raise SamovarError(
                f"{self.names[self.group.rank]}: window {name!r}: {error}; do all ranks train one net?"
            ) from None
        return TcpWindow(self, name, number, memory)

    def close(self, deadline: Deadline | None = None) -> None:
        """Ask for nothing more, and answer peers until they have closed too, or the deadline passes."""
        self._is_closed = True
        for link in self._links:
            link.end()
        self._windows.close()
        self._background.close()
        self._service.linger(deadline or Deadline.after(0.0))
        self._listener.close()
        self._service.close()

    def lose(self, peer: int, why: str) -> None:
        """Expect nothing of a peer any more: requests to it that are under way fail, and waits for it end."""
        self._service.lost.setdefault(peer, why)
        if (channel := self._links[peer].channel) is not None:
            channel.end()
        self._windows.wake()

    def _lost_here(self, peer: int) -> str | None:
        return self._service.lost.get(peer)

    def tell(self, peer: int, window: "TcpWindow", request: PeerRequest, body: Array | None = None) -> None:
        """Send a request that has no answer; other threads' requests come between the parts of a large body.

        Raises DeadlineExceeded, RankFailed.
        """
        link = self._links[peer]
        for part, its_body in request.in_parts(body):
            deadline = self._config.deadline()
            with link.turn():
                self._channel(peer, link, window, deadline).send(part.pack(), its_body, deadline)

    def ask(self, peer: int, window: "TcpWindow", request: PeerRequest, answer: Array) -> None:
        """Send a request, and wait for the answer. Raises DeadlineExceeded, RankFailed."""
        deadline = self._config.deadline()
        link = self._links[peer]
        with link.turn():
            channel = self._channel(peer, link, window, deadline)
            channel.send(request.pack(), None, deadline)
            channel.receive_body(answer, deadline)

    def _channel(self, peer: int, link: _Link, window: "TcpWindow", deadline: Deadline) -> SecureChannel:
        """The open channel to a peer that knows the window."""
        if link.channel is None:
            if self._is_closed:
                raise SamovarError(f"{self.names[self.group.rank]}: the transport was closed before; join again")
            who = self.names[self.group.rank]
            sides = (who, f"{who}: {self.names[peer]}")
            link.channel = connect(self._addresses[peer], self._key, *sides, deadline, lambda: self.lost(peer))
            hello = PeerHello(self._config.job, self.group.rank, peer, max(peer + 1, self.group.world_size))
            link.channel.send(hello.pack(), None, deadline)
        if window.number not in link.windows:
            memory = window.memory
            opening = PeerRequest(Verb.OPEN, window.number, size=len(memory.bytes), slot=memory.num_slots)
            link.channel.send(opening.pack(), None, deadline)
            link.windows.add(window.number)
        return link.channel


class TcpWindow(PeerWindow):
    """See `samovar.transports.base.Window`."""

    def __init__(self, transport: TcpTransport, name: str, number: int, memory: WindowMemory) -> None:
        super().__init__(transport, name, memory.bytes, memory.num_slots)
        self.number = number
        self.memory = memory
        self._transport = transport

    def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        self._check(peer, offset, source.nbytes, notification)
        if peer == self._rank:
            self.memory.region(offset, source.nbytes)[:] = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
            self._notify_self(notification)
            return
        request = PeerRequest(Verb.PUT, self.number, offset, source.nbytes, *_fields(notification))
        self._transport.tell(peer, self, request, np.ascontiguousarray(source))
        self._transport.count_sent(source.nbytes)

    def accumulate(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        """Add float32 or float64 to the peer's memory, then notify if asked.

        Additions of several ranks are complete in the end; their order is not known.
        """
        self._check(peer, offset, source.nbytes, notification)
        if peer == self._rank:
            self.memory.add(offset, source)
            self._notify_self(notification)
            return
        slot, value = _fields(notification)
        request = PeerRequest(Verb.ADD, self.number, offset, source.nbytes, slot, value, dtype=source.dtype.type)
        self._transport.tell(peer, self, request, np.ascontiguousarray(source))
        self._transport.count_sent(source.nbytes)

    def _get(self, peer: int, offset: int, destination: Array) -> None:
        if peer == self._rank:
            destination[:] = self.memory.region(offset, len(destination))
        else:
            request = PeerRequest(Verb.GET, self.number, offset, len(destination))
            self._transport.ask(peer, self, request, destination)

    def fetch_add(self, peer: int, offset: int, value: int) -> int:
        self._check(peer, offset, WORD_BYTES)
        if peer == self._rank:
            return self.memory.fetch_add(offset, value)
        return self._ask_word(peer, PeerRequest(Verb.FETCH_ADD, self.number, offset, value=value))

    def compare_swap(self, peer: int, offset: int, expected: int, desired: int) -> int:
        self._check(peer, offset, WORD_BYTES)
        if peer == self._rank:
            return self.memory.compare_swap(offset, expected, desired)
        return self._ask_word(
            peer, PeerRequest(Verb.COMPARE_SWAP, self.number, offset, value=desired, expected=expected)
        )

    def notify(self, peer: int, notification: Notification) -> None:
        self._check(peer, 0, 0, notification)
        if peer == self._rank:
            self._notify_self(notification)
        else:
            self._transport.tell(peer, self, PeerRequest(Verb.NOTIFY, self.number, 0, 0, *_fields(notification)))

    def _await(self, slot: int, at_least: int, is_over: Callable[[], bool], deadline: Deadline) -> int | None:
        return self.memory.wait(slot, at_least, is_over, deadline)

    def _take_any(self, slots: range, is_over: Callable[[], bool], deadline: Deadline) -> tuple[int, int] | None:
        return self.memory.take_any(slots, is_over, deadline)

    def _ask_word(self, peer: int, request: PeerRequest) -> int:
        answer = np.zeros(1, np.uint64)
        self._transport.ask(peer, self, request, answer)
        return int(answer[0])

    def _notify_self(self, notification: Notification | None) -> None:
        if notification is not None:
            self.memory.set_slot(notification.slot, notification.value)


def meet(rendezvous: Rendezvous, group: Group, own: Address, deadline: Deadline) -> list[Address]:
    """Where every rank listens; tells them this rank's own. Raises DeadlineExceeded, RankFailed."""
    rendezvous.tell(f"tcp/{group.rank}", f"{own[1]} {own[0]}", deadline)
    keys = [f"tcp/{rank}" for rank in range(group.world_size)]
    waiting_s = deadline.remaining_s()
    if missing := rendezvous.missing(keys, deadline):
        ranks = ", ".join(key.removeprefix("tcp/") for key in missing)
        raise DeadlineExceeded(
            f"rank {group.rank}: no word of rank {ranks} within {waiting_s:.1f} s; were they started?"
        )
    told = (rendezvous.value(key, deadline).partition(" ") for key in keys)
    return [(address, int(port)) for port, _, address in told]


def _fields(notification: Notification | None) -> tuple[int, int]:
    return (NO_SLOT, 0) if notification is None else (notification.slot, notification.value)
