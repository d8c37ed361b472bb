"""Takes in connections of members; strangers get no further than TLS, few at a time and not for long."""

import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address

from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.transports.keys import Key
from samovar.transports.secure import Address, Handshake, SecureChannel, prepare

LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65_535
MOST_STRANGERS = 64
_HANDSHAKE_S = 5.0
_HANDSHAKE_BYTES = 16_384
_RECEIVE_BYTES = 4096
_POLL_S = 0.5
_Accept = Callable[[SecureChannel], None]


def parse_address(text: str, lowest_port: int = 0) -> Address | None:
    """`HOST:PORT`, with brackets around an IPv6 address ([::1]:4711); None if `text` is not one."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and lowest_port <= int(port) <= HIGHEST_PORT
    return (host, int(port)) if host and is_port else None


def listen(address: str = LOOPBACK, port: int = 0) -> socket.socket:
    """A socket that listens at this one address of this host, and nowhere else. Raises InputError."""
    try:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        if ip_address(str(place[0]).partition("%")[0]).is_unspecified:
            raise InputError(f"address {address!r} means every interface; name the one that members come by")
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"cannot listen at {address}:{port}: {error}; name an address of this host") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(socket.SOMAXCONN)
    except (OSError, OverflowError) as error:
        listener.close()
        raise InputError(
            f"cannot listen at {address}:{port}: {error}; is the port taken, is the address ours?"
        ) from error
    return listener


def address_of(listener: socket.socket) -> Address:
    """Where it listens: (numeric address, port)."""
    address, port = listener.getsockname()[:2]
    return str(address), int(port)


@dataclass(eq=False, slots=True)
class _Stranger:
    """A connection that has not shown the key yet."""

    connection: socket.socket
    handshake: Handshake
    peer: str
    bytes_left: int = _HANDSHAKE_BYTES
    deadline: Deadline = field(default_factory=lambda: Deadline.after(_HANDSHAKE_S))


class Listener:
    """One thread that takes connections in at `listening`, until `close`; `accept` gets each that has shown the key.

    Before that a connection has 5 s, 16 KiB and one of 64 places; where all are taken, the oldest loses its own.
    `accept` is called on the thread, and must not wait. `keyless` gets the address of one that shows no such key. Owns
    the socket.
    """

    def __init__(self, listening: socket.socket, key: Key, accept: _Accept, keyless: set[str] | None = None) -> None:
        self.address = address_of(listening)
        self.num_refused = 0
        self._listening = listening
        self._key = key
        self._accept, self._keyless = accept, keyless
        self._strangers: dict[_Stranger, None] = {}  # oldest first
        self._closing = threading.Event()
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._serve, name="samovar-listener", daemon=True)
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections; channels stay open."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._waker.send(b".")
        self._thread.join()
        for stranger in list(self._strangers):
            self._drop(stranger)
        self._selector.close()
        for each in (self._listening, self._waker, self._woken):
            each.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            for ready, _ in self._selector.select(_POLL_S):
                if ready.data is not None:
                    self._hear(ready.data)
                elif ready.fileobj is self._listening:
                    self._take_in()
            for stranger in [one for one in self._strangers if one.deadline.passed()]:
                self._refuse(stranger)

    def _take_in(self) -> None:
        try:
            connection, (host, port, *_) = self._listening.accept()
        except OSError:  # it went away, or we have no descriptors left
            self._closing.wait(0.01)
            if self._strangers:
                self._refuse(next(iter(self._strangers)))
            return
        if len(self._strangers) >= MOST_STRANGERS:
            self._refuse(next(iter(self._strangers)))
        connection.setblocking(False)
        with suppress(OSError):
            prepare(connection)
        stranger = _Stranger(connection, Handshake(self._key, is_server=True), f"{host}:{port}")
        self._strangers[stranger] = None
        self._selector.register(connection, selectors.EVENT_READ, stranger)

    def _hear(self, stranger: _Stranger) -> None:
        if stranger not in self._strangers:  # dropped in this very round
            return
        try:
            received = stranger.connection.recv(min(_RECEIVE_BYTES, stranger.bytes_left))
            stranger.bytes_left -= len(received)
            if not received:
                raise ConnectionResetError
            self._answer(stranger, stranger.handshake.advance(received))
        except BlockingIOError:
            return
        except (OSError, RuntimeError) as error:  # it is not of us, or there are no descriptors or threads left
            if isinstance(error, ssl.SSLError) and self._keyless is not None:
                self._keyless.add(stranger.peer.rpartition(":")[0])
            with suppress(OSError):
                stranger.connection.send(stranger.handshake.last_words())
            self._refuse(stranger)

    def _answer(self, stranger: _Stranger, answer: bytes) -> None:
        """Send without waiting: an answer is far smaller than a socket's buffer, so a full one has no reader."""
        if answer and stranger.connection.send(answer) != len(answer):
            raise ConnectionResetError
        if stranger.handshake.is_over:
            self._accept(SecureChannel(stranger.connection, stranger.handshake, stranger.peer))
            self._selector.unregister(stranger.connection)  # only now: until here it can be refused
            del self._strangers[stranger]

    def _refuse(self, stranger: _Stranger) -> None:
        self.num_refused += 1
        self._drop(stranger)

    def _drop(self, stranger: _Stranger) -> None:
        self._selector.unregister(stranger.connection)
        del self._strangers[stranger]
        stranger.handshake.close()
        stranger.connection.close()
