"""Connections over TCP that are authenticated and encrypted: both ends hold the same key file, or nothing is read.

TLS 1.3 with mutual certificates opens a connection: it proves both sides, and over it each side gives the other a
fresh random secret. From then on data are encrypted with AES-256-GCM under these secrets, one for each direction. The
pieces are larger than TLS's records of 16 KiB, which cost Python most of its time (docs/adr/0010).

A piece's nonce is its number. A piece that was changed, left out, repeated, reordered, or taken from another connection
does not open.
"""

import hmac
import secrets
import select
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed
from samovar.core.host import refuse_name
from samovar.transports.keys import Key

HEADER_BYTES: Final = 64
PIECE_BYTES: Final = 524_288
_TAG_BYTES: Final = 16
# Two pieces, and what goes before them: one system call for a MiB.
_BUFFER_BYTES: Final = 2 * PIECE_BYTES + 4096
_SECRET_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_RECEIVE_BYTES: Final = 16_384
# 2**18 pieces are 137 GB: far below what one key of AES-GCM may seal (RFC 8446, 5.5: 400 GB).
_PIECES_PER_SECRET: Final = 1 << 18
_RETRY_S = 0.05
_CONNECT_S = 5.0
_Answer = TypeVar("_Answer")
Address = tuple[str, int]


class ConnectionLost(RankFailed):
    """The other side closed the connection, or its data was not whole."""


class Handshake:
    """Opens one connection, without touching a socket: `advance` takes received bytes and returns those to send.

    Until it `is_over`, only TLS has seen received bytes. Neither side sends more than the other must have for its
    next step, so nothing that follows can have arrived by then.
    """

    def __init__(self, key: Key, *, is_server: bool) -> None:
        self.is_over = False
        self.own_secret = secrets.token_bytes(_SECRET_BYTES)
        self.others_secret = b""
        self._certificate = key.certificate
        self._is_server = is_server
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = key.for_server if is_server else key.for_client
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=is_server)
        self._talking = self._talk()

    def advance(self, received: bytes) -> bytes:
        """Raises ssl.SSLError if the other side has no such key; `last_words` has the bytes to send to it."""
        self._arrived.write(received)
        self.is_over = next(self._talking, True)
        return self.last_words()

    def last_words(self) -> bytes:
        return self._leaving.read()

    def close(self) -> None:
        """Give up TLS's memory now, which a waiting `_talk` would keep until the next garbage collection."""
        self._talking.close()

    def _talk(self) -> Generator[bool, None, None]:
        """Yields False if more must arrive first."""
        yield from self._complete(self._tls.do_handshake, [])
        if self._tls.getpeercert(binary_form=True) != self._certificate:
            raise ssl.SSLError("another certificate")
        if not self._is_server:
            self._tls.write(self.own_secret)
        while (missing := _SECRET_BYTES - len(self.others_secret)) > 0:
            part: list[bytes] = []
            yield from self._complete(partial(self._tls.read, missing), part)
            if not part[0]:
                raise ssl.SSLError("closed")
            self.others_secret += part[0]
        if self._is_server:
            self._tls.write(self.own_secret)
        if self._arrived.pending or self._tls.pending():
            raise ssl.SSLError("more than was due")

    def _complete(self, call: Callable[[], _Answer], answer: list[_Answer]) -> Iterator[bool]:
        while True:
            try:
                answer.append(call())
                return
            except ssl.SSLWantReadError:
                yield False


class _Sealer:
    """Seals or opens the pieces of one direction, in their order."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(secret)
        self._count = 0

    def seal(self, plain: memoryview, sealed: memoryview) -> None:
        self._cipher.encrypt_into(self._next_nonce(), plain, None, sealed)

    def open(self, sealed: memoryview, plain: memoryview) -> None:
        """Raises InvalidTag if it was changed."""
        self._cipher.decrypt_into(self._next_nonce(), sealed, None, plain)

    def _next_nonce(self) -> bytes:
        self._count += 1
        if self._count % _PIECES_PER_SECRET == 0:
            self._secret = hmac.digest(self._secret, b"samovar: next secret", "sha256")
            self._cipher = AESGCM(self._secret)
        return self._count.to_bytes(_NONCE_BYTES, "big")


class SecureChannel:
    """One open connection; messages are a header of 64 bytes, and bodies whose sizes the headers say.

    A body is received in the parts in which it was sent, or in parts of whole multiples of PIECE_BYTES. One thread may
    send while another receives. After any error nothing more can be sent or received, because the place in the message
    is not known. `peer` is the name of the other side in errors. The owner closes it, when no thread uses it any more.

    Cost: 16 bytes a piece of 512 KiB; both ends encrypt or decrypt each byte once, and copy it once. Memory: two pieces
    for each direction.
    """

    def __init__(self, connection: socket.socket, handshake: Handshake, peer: str) -> None:
        self.peer = peer
        self._receiving = connection
        self._sending = connection.dup()  # with a timeout of its own
        self._sending_limit, self._receiving_limit = _Limit(), _Limit()
        self._sealer, self._opener = _Sealer(handshake.own_secret), _Sealer(handshake.others_secret)
        self._sealed, self._sealed_stop = _buffer(), 0
        self._arrived, self._arrived_start, self._arrived_stop = _buffer(), 0, 0
        self._header = memoryview(bytearray(HEADER_BYTES))
        self.is_over = False

    def send(
        self, header: bytes, body: npt.NDArray[Any] | None, deadline: Deadline, then: npt.NDArray[Any] | None = None
    ) -> None:
        """Send a header of at most 64 bytes and up to two bodies.

        Returns when the bodies may be overwritten. Raises DeadlineExceeded, ConnectionLost.
        """
        assert len(header) <= HEADER_BYTES, len(header)
        self._seal(memoryview(header.ljust(HEADER_BYTES, b"\0")), deadline)
        for array in (body, then):
            for part in _parts(array) if array is not None else ():
                self._seal(part, deadline)
        self._flush(deadline)

    def send_body(self, body: npt.NDArray[Any], deadline: Deadline) -> None:
        """Send one more body of the message whose header was sent. Raises as `send`."""
        for part in _parts(body):
            self._seal(part, deadline)
        self._flush(deadline)

    def receive(self, deadline: Deadline) -> bytes:
        """The next header, padded with zeros to 64 bytes. Raises DeadlineExceeded, ConnectionLost."""
        self._receive_piece(self._header, deadline)
        return bytes(self._header)

    def receive_body(self, destination: npt.NDArray[Any], deadline: Deadline) -> None:
        """Fill `destination`, contiguous, with the next body. Raises as `receive`."""
        for part in _parts(destination):
            self._receive_piece(part, deadline)

    @property
    def own_address(self) -> str:
        """The numeric address of this host, as the other side sees it."""
        return str(self._receiving.getsockname()[0])

    @property
    def others_address(self) -> str:
        """The numeric address of the other side's host."""
        try:
            return str(self._receiving.getpeername()[0])
        except OSError as error:
            raise ConnectionLost(f"{self.peer} is gone ({reason_of(error)}); see its log") from error

    def is_readable(self) -> bool:
        return has_arrived(self._receiving)

    def heed_silence(self) -> None:
        """Lose a host that is silent for half a minute also where data are on their way to it, and none probes it."""
        self._receiving.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)

    def end(self) -> None:
        """Neither side sends any more; threads that wait for it get ConnectionLost."""
        self.is_over = True
        with suppress(OSError):  # the other side was first
            self._receiving.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end()
        self._sending.close()
        self._receiving.close()

    def _seal(self, part: memoryview, deadline: Deadline) -> None:
        """Encrypt a part behind the earlier ones, which are sent first if there is no room."""
        size = len(part) + _TAG_BYTES
        if self._sealed_stop + size > _BUFFER_BYTES:
            self._flush(deadline)
        start, self._sealed_stop = self._sealed_stop, self._sealed_stop + size
        self._sealer.seal(part, self._sealed[start : self._sealed_stop])

    def _flush(self, deadline: Deadline) -> None:
        stop, self._sealed_stop = self._sealed_stop, 0
        with Failing(self.peer, self.end, "take"):
            self._sending_limit.apply(self._sending, deadline)
            self._sending.sendall(self._sealed[:stop])

    def _receive_piece(self, part: memoryview, deadline: Deadline) -> None:
        size = len(part) + _TAG_BYTES
        with Failing(self.peer, self.end, "send"):
            if self._arrived_stop - self._arrived_start < size:
                self._receive_more(size, deadline)
            start, self._arrived_start = self._arrived_start, self._arrived_start + size
            self._opener.open(self._arrived[start : self._arrived_start], part)

    def _receive_more(self, size: int, deadline: Deadline) -> None:
        """Receive until there are `size` bytes; further bytes are kept."""
        start, stop = self._arrived_start, self._arrived_stop
        if start == stop or start + size > _BUFFER_BYTES:
            self._arrived[: stop - start] = self._arrived[start:stop]
            start, stop = 0, stop - start
        while stop - start < size:
            self._receiving_limit.apply(self._receiving, deadline)
            try:
                count = self._receiving.recv_into(self._arrived[stop:])
            except TimeoutError as error:
                if error.errno is not None or deadline.passed():
                    raise
                continue  # the system's limit is shorter: days
            if count == 0:
                raise ConnectionResetError("closed")
            stop += count
        self._arrived_start, self._arrived_stop = start, stop


class _Limit:
    """A socket's timeout, set again where a deadline is off by more than a twentieth: setting takes a system call."""

    def __init__(self) -> None:
        self._set_s = -1.0

    def apply(self, connection: socket.socket, deadline: Deadline) -> None:
        left_s = deadline.remaining_s()
        if not 0.95 * self._set_s <= left_s <= 1.05 * self._set_s:
            # Never None: it would make the descriptor, which both of a channel's sockets share, a blocking one.
            connection.settimeout(deadline.timeout_s())
            self._set_s = left_s


class Failing:
    """Ends the channel to `peer` where sending or receiving fails, and says so in our words."""

    def __init__(self, peer: str, end: Callable[[], None], verb: str) -> None:
        self._peer, self._end, self._verb = peer, end, verb

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        self._end()
        peer = self._peer
        if isinstance(error, TimeoutError) and error.errno is None:  # with a number, the kernel has given the host up
            raise DeadlineExceeded(f"{peer} did not {self._verb} data in time; is it stopped or cut off?") from error
        if isinstance(error, InvalidTag):
            raise ConnectionLost(f"{peer}: what arrived is not what was sent; the connection was closed") from error
        if isinstance(error, OSError):
            raise ConnectionLost(f"{peer} is gone ({reason_of(error)}); see its log") from error


def connect(
    address: Address, key: Key, who: str, peer: str, deadline: Deadline, lost: Callable[[], str | None] = lambda: None
) -> SecureChannel:
    """A channel to the listener at `address`; `who` and `peer` name the two sides. Raises as `reached`."""
    return reached(
        address, who, peer, lambda limit: connect_once(address, key, peer, limit), deadline, lost, "; does it run?"
    )


def reached(
    address: Address,
    who: str,
    peer: str,
    attempt: Callable[[Deadline], _Answer],
    deadline: Deadline,
    lost: Callable[[], str | None] = lambda: None,
    hint: str = "",
) -> _Answer:
    """The result of `attempt`, tried again until it connects to `address`.

    Raises InputError if no host has this name or it has another key, DeadlineExceeded, and RankFailed once `lost` says
    why.
    """
    waiting_s, reason = deadline.remaining_s(), "no time was given"
    where, place = f"{address[0]}:{address[1]}", peer.removeprefix(f"{who}: ")
    place = place if where in place else f"{place} at {where}"
    while not deadline.passed():
        try:
            return attempt(Deadline.after(min(deadline.remaining_s(), _CONNECT_S)))
        except ssl.SSLError as error:
            raise InputError(
                f"{who}: {place} does not hold the same key ({error.reason or error}); is it the job's key file?"
            ) from error
        except (OSError, UnicodeError) as error:
            refuse_name(f"{who}: {address[0]!r}", error)
            reason = reason_of(error)
        if (why := lost()) is not None:
            raise RankFailed(f"{who}: {place} cannot be reached ({reason}): {why}")
        time.sleep(min(_RETRY_S, deadline.remaining_s()))
    raise DeadlineExceeded(f"{who}: {place} cannot be reached within {waiting_s:.1f} s ({reason}){hint}")


def connect_once(address: Address, key: Key, peer: str, deadline: Deadline) -> SecureChannel:
    connection, handshake = socket.create_connection(address, deadline.timeout_s()), Handshake(key, is_server=False)
    try:
        prepare(connection)
        connection.sendall(handshake.advance(b""))
        _complete(connection, handshake, deadline)
        return SecureChannel(connection, handshake, peer)
    except BaseException:
        with suppress(OSError):
            connection.sendall(handshake.last_words())  # TLS's own, for which the other side knows of another key
        connection.close()
        raise


def _complete(connection: socket.socket, handshake: Handshake, deadline: Deadline) -> None:
    while not handshake.is_over:
        connection.settimeout(deadline.timeout_s())
        received = connection.recv(_RECEIVE_BYTES)
        if not received:
            raise ConnectionResetError("closed before it was open")
        connection.sendall(handshake.advance(received))


def prepare(connection: socket.socket) -> None:
    """Send small messages at once; notice a lost host after half a minute, even if nothing is sent to it."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def _buffer() -> memoryview:
    """Of a connection that says little, most of it is never touched."""
    return memoryview(np.empty(_BUFFER_BYTES, np.uint8))  # type: ignore[arg-type]


def _parts(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """Its bytes in pieces."""
    assert array.flags.c_contiguous, "only whole runs of bytes travel"
    whole = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    return (whole[start : start + PIECE_BYTES] for start in range(0, len(whole), PIECE_BYTES))


def has_arrived(connection: socket.socket) -> bool:
    """Whether there is something to read, or the other side has closed."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def reason_of(error: OSError | UnicodeError) -> str:
    return (getattr(error, "strerror", None) or str(error) or "closed").lower()
