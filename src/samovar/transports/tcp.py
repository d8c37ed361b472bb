"""Windows over a network: every rank keeps its own part, peers ask for what they want to do with it.

A rank has one connection to each peer that it wants something of, made when it first does; on the peer's side a
thread receives and does what is asked, in the order in which it was asked. It waits for nothing else, so a rank that
sends is never held up by what its peer sends. Connections are encrypted, and made only with the job's key
(`samovar.transports.secure`).
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from socket import socket

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed, SamovarError
from samovar.core.group import Group
from samovar.transports.base import Array, MissingNotification, Notification
from samovar.transports.keys import Key
from samovar.transports.meeting import Meeting
from samovar.transports.secure import PIECE_BYTES, Address, Channel, ConnectionLost, connect
from samovar.transports.tcp_listen import Listener
from samovar.transports.tcp_memory import WORD_BYTES, WindowMemory, WindowTable
from samovar.transports.tcp_wire import NO_SLOT, Hello, Request, Verb, speaker

_FOR_EVER = Deadline(math.inf)


@dataclass(frozen=True, slots=True)
class TcpConfig:
    """`job` tells runs with one key apart; every request to a peer ends after `timeout_s`."""

    job: str
    timeout_s: float = 60.0


@dataclass(slots=True)
class _Link:
    """The connection to a peer; the lock is held from a request to its answer."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    channel: Channel | None = None
    windows: set[int] = field(default_factory=set)  # that the peer was told of


class TcpTransport:
    """This rank's access to its peers' memory over TCP (see `samovar.transports.base.Transport`).

    `listening` is where peers reach this rank, `addresses` where each rank listens. Owns the socket. Close it when no
    request is under way.
    """

    def __init__(
        self, group: Group, config: TcpConfig, key: Key, listening: socket, addresses: Sequence[Address]
    ) -> None:
        assert len(addresses) == group.world_size, (len(addresses), group.world_size)
        self.group = group
        self.bytes_sent = 0
        self._config = config
        self._key = key
        self._addresses = addresses
        self._links = [_Link() for _ in addresses]
        self._counting = threading.Lock()
        self._windows = WindowTable()
        self._num_windows = 0
        self._service = _Service(group, config, self._windows)
        self._listener = Listener(listening, key, self._service.accept)

    def count_sent(self, num_bytes: int) -> None:
        with self._counting:
            self.bytes_sent += num_bytes

    def reduce(self, destination: Array, sources: Sequence[Array]) -> None:
        _native.reduce(destination, sources)

    def open_window(self, name: str, num_bytes: int, num_slots: int) -> "TcpWindow":
        """Cost: num_bytes of this rank's memory. Raises SamovarError where a peer opened it with other sizes."""
        number = self._num_windows
        self._num_windows += 1
        try:
            memory = self._windows.open(number, num_bytes, num_slots)
        except SamovarError as error:
            raise SamovarError(
                f"rank {self.group.rank}: window {name!r}: {error}; do all ranks train one net?"
            ) from None
        return TcpWindow(self, name, number, memory)

    def close(self, deadline: Deadline | None = None) -> None:
        """Ask for nothing more, and answer peers until they have closed too, or the deadline passes."""
        for link in self._links:
            with link.lock:
                if link.channel is not None:
                    link.channel.close()
                link.channel = None
        self._service.linger(deadline or Deadline.after(0.0))
        self._listener.close()
        self._service.close()

    def lost(self, peer: int) -> str | None:
        """Why nothing comes from the peer any more, where that is so."""
        return self._service.lost.get(peer)

    def tell(self, peer: int, window: "TcpWindow", request: Request, body: Array | None = None) -> None:
        """Send a request that has no answer. Raises DeadlineExceeded, RankFailed."""
        deadline = Deadline.after(self._config.timeout_s)
        link = self._links[peer]
        with link.lock:
            self._channel(peer, link, window, deadline).send(request.pack(), body, deadline)

    def ask(self, peer: int, window: "TcpWindow", request: Request, answer: Array) -> None:
        """Send a request, and wait for the answer. Raises DeadlineExceeded, RankFailed."""
        deadline = Deadline.after(self._config.timeout_s)
        link = self._links[peer]
        with link.lock:
            channel = self._channel(peer, link, window, deadline)
            channel.send(request.pack(), None, deadline)
            channel.receive_body(answer, deadline)

    def _channel(self, peer: int, link: _Link, window: "TcpWindow", deadline: Deadline) -> Channel:
        """The open channel to a peer that knows the window."""
        if link.channel is None:
            who = f"rank {self.group.rank}"
            link.channel = connect(self._addresses[peer], self._key, who, f"{who}: rank {peer}", deadline)
            hello = Hello(self._config.job, self.group.rank, peer, self.group.world_size)
            link.channel.send(hello.pack(), None, deadline)
        if window.number not in link.windows:
            memory = window.memory
            opening = Request(Verb.OPEN, window.number, size=memory.num_bytes, slot=len(memory.slots))
            link.channel.send(opening.pack(), None, deadline)
            link.windows.add(window.number)
        return link.channel


class TcpWindow:
    """See `samovar.transports.base.Window`."""

    def __init__(self, transport: TcpTransport, name: str, number: int, memory: WindowMemory) -> None:
        self.local: npt.NDArray[np.uint8] = memory.bytes
        self.number = number
        self.memory = memory
        self._transport = transport
        self._name = name
        self._rank = transport.group.rank

    def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        self._check(peer, offset, source.nbytes, notification)
        if peer == self._rank:
            self.memory.region(offset, source.nbytes)[:] = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
            self._notify_self(notification)
            return
        request = Request(Verb.PUT, self.number, offset, source.nbytes, *_fields(notification))
        self._transport.tell(peer, self, request, np.ascontiguousarray(source))
        self._transport.count_sent(source.nbytes)

    def accumulate(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        """Add float32 or float64 to the peer's memory, then notify if asked.

        What several ranks add is all there in the end; in which order is not known.
        """
        self._check(peer, offset, source.nbytes, notification)
        if peer == self._rank:
            self.memory.add(offset, source)
            self._notify_self(notification)
            return
        slot, value = _fields(notification)
        request = Request(Verb.ADD, self.number, offset, source.nbytes, slot, value, dtype=source.dtype.type)
        self._transport.tell(peer, self, request, np.ascontiguousarray(source))
        self._transport.count_sent(source.nbytes)

    def get(self, peer: int, offset: int, destination: Array) -> None:
        if not (destination.flags.c_contiguous and destination.flags.writeable):
            raise TypeError("get needs a destination that is contiguous and can be written")
        self._check(peer, offset, destination.nbytes)
        if peer == self._rank:
            destination.reshape(-1).view(np.uint8)[:] = self.memory.region(offset, destination.nbytes)
        else:
            self._transport.ask(peer, self, Request(Verb.GET, self.number, offset, destination.nbytes), destination)

    def fetch_add(self, peer: int, offset: int, value: int) -> int:
        self._check(peer, offset, WORD_BYTES)
        if peer == self._rank:
            return self.memory.fetch_add(offset, value)
        return self._ask_word(peer, Request(Verb.FETCH_ADD, self.number, offset, value=value))

    def compare_swap(self, peer: int, offset: int, expected: int, desired: int) -> int:
        self._check(peer, offset, WORD_BYTES)
        if peer == self._rank:
            return self.memory.compare_swap(offset, expected, desired)
        return self._ask_word(peer, Request(Verb.COMPARE_SWAP, self.number, offset, value=desired, expected=expected))

    def notify(self, peer: int, notification: Notification) -> None:
        self._check(peer, 0, 0, notification)
        if peer == self._rank:
            self._notify_self(notification)
        else:
            self._transport.tell(peer, self, Request(Verb.NOTIFY, self.number, 0, 0, *_fields(notification)))

    def wait(self, slot: int, at_least: int, peer: int, deadline: Deadline) -> int:
        """Raises RankFailed where the peer is gone, DeadlineExceeded."""
        slots, waiting_s = self.memory.slots, deadline.remaining_s()
        gone = self._transport.lost
        self.memory.wait_until(lambda: slots[slot] >= at_least or gone(peer) is not None, waiting_s)
        if (value := slots[slot]) >= at_least:
            return value
        who = f"rank {self._rank}: rank {peer}"
        if (reason := gone(peer)) is not None:
            raise RankFailed(f"{who} did not notify slot {slot} of window {self._name!r}: {reason}; see its log")
        raise MissingNotification(
            f"{who} did not notify slot {slot} of window {self._name!r} within {waiting_s:.1f} s; is rank {peer} "
            "stopped or much slower? See its log, or raise --timeout",
            f"rank {peer}",
        )

    def wait_any(self, slots: range, deadline: Deadline) -> tuple[int, int]:
        assert slots.step == 1, slots
        values, waiting_s = self.memory.slots, deadline.remaining_s()
        with self.memory.changed:
            self.memory.changed.wait_for(lambda: any(values[slot] for slot in slots), waiting_s)
            for slot in slots:
                if value := values[slot]:
                    values[slot] = 0
                    return slot, value
        raise DeadlineExceeded(
            f"rank {self._rank}: nobody notified slots {slots.start} to {slots.stop - 1} of window {self._name!r} "
            f"within {waiting_s:.1f} s; are the other ranks alive?"
        )

    def _ask_word(self, peer: int, request: Request) -> int:
        answer = np.zeros(1, np.uint64)
        self._transport.ask(peer, self, request, answer)
        return int(answer[0])

    def _notify_self(self, notification: Notification | None) -> None:
        if notification is not None:
            self.memory.set_slot(notification.slot, notification.value)

    def _check(self, peer: int, offset: int, num_bytes: int, notification: Notification | None = None) -> None:
        """All parts are of one size, so what is wrong is seen here."""
        num_slots = len(self.memory.slots)
        is_inside = 0 <= offset <= self.memory.num_bytes - num_bytes and 0 <= peer < self._transport.group.world_size
        if not is_inside or (notification is not None and not 0 <= notification.slot < num_slots):
            slot = "" if notification is None else f", slot {notification.slot} of {num_slots}"
            raise IndexError(f"outside the window {self._name!r}: rank {peer}, bytes {offset} + {num_bytes}{slot}")


class _Service:
    """Does what peers ask of this rank's windows, a thread for each; `lost` says who went, and why."""

    def __init__(self, group: Group, config: TcpConfig, windows: WindowTable) -> None:
        self.lost: dict[int, str] = {}
        self._group = group
        self._config = config
        self._windows = windows
        self._lock = threading.Lock()
        self._channels: dict[Channel, threading.Thread] = {}
        self._present: set[int] = set()

    def accept(self, channel: Channel) -> None:
        thread = threading.Thread(target=self._serve, args=(channel,), name="samovar-peer", daemon=True)
        with self._lock:
            if len(self._channels) >= 2 * self._group.world_size:
                channel.close()
                return
            self._channels[channel] = thread
        thread.start()

    def linger(self, deadline: Deadline) -> None:
        """Return when all peers have gone, or the deadline passes."""
        for thread in self._served().values():
            thread.join(deadline.remaining_s())

    def close(self) -> None:
        for channel, thread in self._served().items():
            channel.end()
            thread.join()

    def _served(self) -> dict[Channel, threading.Thread]:
        with self._lock:
            return dict(self._channels)

    def _serve(self, channel: Channel) -> None:
        peer = None
        try:
            peer = self._greeted(channel)
            while True:
                self._do(channel, Request.unpack(channel.receive(_FOR_EVER)))
        except SamovarError as error:
            if peer is not None:
                self.lost[peer] = str(error) if isinstance(error, ConnectionLost) else f"it asked wrongly: {error}"
                self._windows.wake()
        finally:
            channel.close()
            with self._lock:
                del self._channels[channel]

    def _greeted(self, channel: Channel) -> int:
        """The rank at the other end. Raises SamovarError where it is none that belongs here."""
        header = channel.receive(Deadline.after(self._config.timeout_s))
        peer, group = speaker(header), self._group
        if not Hello(self._config.job, peer, group.rank, group.world_size).is_packed_in(header):
            raise SamovarError(f"rank {group.rank}: {channel.peer} belongs to another job")
        with self._lock:
            if peer >= group.world_size or peer == group.rank or peer in self._present:
                raise SamovarError(f"rank {group.rank}: {channel.peer} says that it is rank {peer}, which is taken")
            self._present.add(peer)
        channel.peer = f"rank {peer}"
        return peer

    def _do(self, channel: Channel, request: Request) -> None:
        if request.verb is Verb.OPEN:
            self._windows.open(request.window, request.size, request.slot)
            return
        window = self._windows.window(request.window)
        if request.slot != NO_SLOT:
            window.check_slot(request.slot)
        match request.verb:
            case Verb.PUT:
                channel.receive_body(window.region(request.offset, request.size), self._deadline())
            case Verb.ADD:
                self._add(channel, window, request)
            case Verb.GET:
                channel.send_body(window.region(request.offset, request.size), self._deadline())
            case Verb.FETCH_ADD:
                self._answer(channel, window.fetch_add(request.offset, request.value))
            case Verb.COMPARE_SWAP:
                self._answer(channel, window.compare_swap(request.offset, request.expected, request.value))
        if request.slot != NO_SLOT:
            window.set_slot(request.slot, request.value)

    def _add(self, channel: Channel, window: WindowMemory, request: Request) -> None:
        """Piece by piece, so that it takes little memory; each is added as a whole."""
        window.region(request.offset, request.size)
        piece = np.empty(PIECE_BYTES, np.uint8)
        for start in range(0, request.size, PIECE_BYTES):
            part = piece[: min(PIECE_BYTES, request.size - start)]
            channel.receive_body(part, self._deadline())
            window.add(request.offset + start, part.view(request.dtype))

    def _answer(self, channel: Channel, word: int) -> None:
        channel.send_body(np.array([word], np.uint64), self._deadline())

    def _deadline(self) -> Deadline:
        return Deadline.after(self._config.timeout_s)


def meet(meeting: Meeting, group: Group, own: Address, deadline: Deadline) -> list[Address]:
    """Where every rank listens; tells them this rank's own. Raises DeadlineExceeded, RankFailed."""
    meeting.tell(f"tcp/{group.rank}", f"{own[1]} {own[0]}", deadline)
    keys = [f"tcp/{rank}" for rank in range(group.world_size)]
    waiting_s = deadline.remaining_s()
    if missing := meeting.missing(keys, deadline):
        ranks = ", ".join(key.removeprefix("tcp/") for key in missing)
        raise DeadlineExceeded(
            f"rank {group.rank}: no word of rank {ranks} within {waiting_s:.1f} s; were they started?"
        )
    told = (meeting.value(key, deadline).partition(" ") for key in keys)
    return [(address, int(port)) for port, _, address in told]


def _fields(notification: Notification | None) -> tuple[int, int]:
    return (NO_SLOT, 0) if notification is None else (notification.slot, notification.value)
