"""Messages between the launchers of a run's hosts: objects of JSON, each with bytes behind it if it has any.

With a key, a connection is authenticated and encrypted (`samovar.transports.secure`). Without one it is plain TCP.
"""

import json
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.transports.keys import Key
from samovar.transports.secure import Failing, SecureChannel, connect_once, has_arrived, prepare, reached
from samovar.transports.tcp_listen import Listener

_HEAD: Final = struct.Struct("<8sQQ")  # magic, bytes of JSON, bytes behind it
_MAGIC: Final = b"samovarL"
_MOST_JSON_BYTES: Final = 1 << 24
MOST_BYTES: Final = 1 << 20
_PING: Final = {"is": "ping"}
_PING_S = 1.0
_STRANGER_S = 5.0  # what is not of this run gets no more time


class _Plain:
    """A connection without encryption, with the methods of `SecureChannel` that a `HostLink` uses."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self._receiving, self._sending = connection, connection.dup()
        self._peer = peer

    def send(
        self, header: bytes, body: npt.NDArray[Any], deadline: Deadline, then: npt.NDArray[Any] | None = None
    ) -> None:
        with Failing(self._peer, self.end, "take"):
            self._sending.settimeout(deadline.timeout_s())
            self._sending.sendall(header + body.tobytes() + (b"" if then is None else then.tobytes()))

    def receive(self, deadline: Deadline) -> bytes:
        header = np.empty(_HEAD.size, np.uint8)
        self.receive_body(header, deadline)
        return header.tobytes()

    def receive_body(self, destination: npt.NDArray[Any], deadline: Deadline) -> None:
        left = memoryview(destination)  # type: ignore[arg-type]
        with Failing(self._peer, self.end, "send"):
            while left:
                self._receiving.settimeout(deadline.timeout_s())
                if not (count := self._receiving.recv_into(left)):
                    raise ConnectionResetError("closed")
                left = left[count:]

    def is_readable(self) -> bool:
        return has_arrived(self._receiving)

    def end(self) -> None:
        with suppress(OSError):  # the other side was first
            self._receiving.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end()
        self._sending.close()
        self._receiving.close()


class NotOurs(SamovarError):
    """A message that no launcher of this version sends."""


class HostLink:
    """A connection to the launcher of another host; `own_address` is this host's as the other one sees it.

    One thread may send while another receives. After an error neither works any more. At its `end` threads that wait
    for the other side get ConnectionLost.
    """

    def __init__(self, channel: SecureChannel | _Plain, peer: str, own_address: str) -> None:
        self.peer = peer
        self.own_address = own_address
        self.end, self.close = channel.end, channel.close
        self._channel = channel
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any], deadline: Deadline, content: bytes = b"") -> None:
        """Raises DeadlineExceeded, ConnectionLost."""
        assert len(content) <= MOST_BYTES, len(content)
        text = np.frombuffer(json.dumps(message).encode(), np.uint8)
        head = _HEAD.pack(_MAGIC, len(text), len(content))
        with self._sending:
            self._channel.send(head, text, deadline, np.frombuffer(content, np.uint8) if content else None)

    def receive(self, deadline: Deadline) -> tuple[dict[str, Any], bytes]:
        """The next message that is not a sign of life. Raises DeadlineExceeded, ConnectionLost, NotOurs."""
        while True:
            found = self.receive_any(deadline)
            if found[0] != _PING:
                return found

    def receive_any(self, deadline: Deadline) -> tuple[dict[str, Any], bytes]:
        """The same with signs of life."""
        magic, text_bytes, content_bytes = _HEAD.unpack_from(self._channel.receive(deadline))
        if magic != _MAGIC or text_bytes > _MOST_JSON_BYTES or content_bytes > MOST_BYTES:
            raise NotOurs(f"{self.peer}: does not speak as a launcher of Samovar")
        text, content = (self._receive_body(size, deadline) for size in (text_bytes, content_bytes))
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise NotOurs(f"{self.peer}: sent no JSON ({error})") from error
        if not isinstance(message, dict):
            raise NotOurs(f"{self.peer}: sent {type(message).__name__}, not an object")
        return message, content

    def _receive_body(self, num_bytes: int, deadline: Deadline) -> bytes:
        body = np.empty(num_bytes, np.uint8)
        self._channel.receive_body(body, deadline)
        return body.tobytes()

    @property
    def is_gone(self) -> bool:
        """Whether the other side, which says nothing yet, has closed the connection."""
        return self._channel.is_readable()


def sealed_link(channel: SecureChannel) -> HostLink:
    """A connection whose other side has shown the key."""
    return HostLink(channel, channel.peer, channel.own_address)


def link_to(address: tuple[str, int], key: Key | None, who: str, deadline: Deadline) -> HostLink:
    """A connection to the listener at `address`. Raises as `reached`."""
    peer = f"host 0 at {address[0]}:{address[1]}"

    def attempt(limit: Deadline) -> HostLink:
        if key is not None:
            channel = connect_once(address, key, f"{who}: {peer}", limit)
            return HostLink(channel, peer, channel.own_address)
        connection = socket.create_connection(address, limit.timeout_s())
        prepare(connection)
        return HostLink(_Plain(connection, peer), peer, str(connection.getsockname()[0]))

    return reached(address, who, peer, attempt, deadline)


_Taken = tuple[HostLink, dict[str, Any]] | None


@contextmanager
def door(listening: socket.socket, key: Key | None, keyless: set[str]) -> Iterator[Callable[[Deadline], _Taken]]:
    """Takes in the connections that come to `listening`; closes it, and those that nobody took, at the end.

    A call with a deadline gives the next one and its first message; None if a stranger came, or nobody in time. With a
    key strangers hold nobody up. `keyless` gets the address of one that shows another key, or one where none is.
    """
    if key is None:
        with listening:
            yield partial(_next_plain, listening, keyless)
        return
    channels: queue.SimpleQueue[SecureChannel] = queue.SimpleQueue()
    listener = Listener(listening, key, channels.put, keyless)
    try:
        yield partial(_next_sealed, channels)
    finally:
        listener.close()
        while not channels.empty():
            channels.get().close()


def _next_plain(listening: socket.socket, keyless: set[str], deadline: Deadline) -> _Taken:
    listening.settimeout(deadline.timeout_s())
    try:
        connection, (host, port, *_) = listening.accept()
    except OSError:
        return None
    try:
        with suppress(OSError):
            prepare(connection)
        channel = _Plain(connection, f"{host}:{port}")
    except OSError:
        connection.close()
        return None
    return _first_word(HostLink(channel, f"{host}:{port}", str(connection.getsockname()[0])), keyless)


def _next_sealed(channels: "queue.SimpleQueue[SecureChannel]", deadline: Deadline) -> _Taken:
    try:
        return _first_word(sealed_link(channels.get(timeout=deadline.timeout_s())), set())
    except queue.Empty:
        return None


def _first_word(link: HostLink, keyless: set[str]) -> _Taken:
    try:
        return link, link.receive(Deadline.after(_STRANGER_S))[0]  # its own limit: a look may be nearly over
    except SamovarError as error:
        if isinstance(error, NotOurs):
            keyless.add(link.peer.rpartition(":")[0])
        link.close()
        return None


class Inbox:
    """Messages of all `links`, each received by a thread; `fileno` becomes readable when there is one.

    If a link says nothing for `silence_s`, or is gone, its last message is {"is": "lost", "why": ...}. Signs of life go
    out every second.
    """

    def __init__(self, links: Mapping[int, HostLink], silence_s: float) -> None:
        self._links = links
        self._silence_s = silence_s
        self._messages: queue.SimpleQueue[tuple[int, dict[str, Any], bytes]] = queue.SimpleQueue()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):  # a full one has woken the reader already
            end.setblocking(False)
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, args=item, name="samovar-link", daemon=True) for item in links.items()
        ]
        self._threads += [
            threading.Thread(target=self._live, args=(link,), name="samovar-life", daemon=True)
            for link in links.values()
        ]
        for thread in self._threads:
            thread.start()

    def fileno(self) -> int:
        return self._reader.fileno()

    def take(self) -> list[tuple[int, dict[str, Any], bytes]]:
        """The messages that have come, each with its host's number."""
        with suppress(BlockingIOError):
            self._reader.recv(1 << 12)
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._messages.get_nowait())
        return found

    def wait(self, deadline: Deadline) -> list[tuple[int, dict[str, Any], bytes]]:
        """The same, at least one; none if none comes by the deadline."""
        try:
            first = self._messages.get(timeout=deadline.timeout_s())
        except queue.Empty:
            return []
        return [first, *self.take()]

    def close(self) -> None:
        """End the links."""
        self._closing.set()
        for link in self._links.values():
            link.end()
        for thread in self._threads:
            thread.join()
        for link in self._links.values():
            link.close()
        self._reader.close()
        self._writer.close()

    def _listen(self, number: int, link: HostLink) -> None:
        while True:
            try:
                message, content = link.receive_any(Deadline.after(self._silence_s))
            except SamovarError as error:
                self._put(number, {"is": "lost", "why": str(error)}, b"")
                return
            if message != _PING:
                self._put(number, message, content)

    def _put(self, number: int, message: dict[str, Any], content: bytes) -> None:
        self._messages.put((number, message, content))
        with suppress(OSError):
            self._writer.send(b".")

    def _live(self, link: HostLink) -> None:
        """A link that is gone is found by the thread that listens to it."""
        with suppress(SamovarError):
            while not self._closing.wait(_PING_S):
                link.send(_PING, Deadline.after(self._silence_s))
