"""Abstract Unix sockets, by which processes of one user on one host find each other. They have no file.

A socket ends with its process. The process at the other end must belong to this user (SO_PEERCRED); otherwise nothing
is sent or read. An `Offer` gives the same to every process that asks: descriptors, or a port.
Between `listen` and `connect` there are messages: JSON, with descriptors.
"""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from samovar.core.clock import Deadline
from samovar.core.closing import Closing
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_PORT = struct.Struct("!H")
_FILES: Final = "samovar-files-"
_POLL_S: Final = 0.2
_RETRY_S: Final = 0.02
_MAX_BYTES: Final = 60_000
_MAX_DESCRIPTORS: Final = 4
_BACKLOG: Final = 64


def user_process(connection: socket.socket) -> int | None:
    """The process at the other end; None if it is another user's, 0 where it is none that this one can see."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process_id, uid, _gid = _CREDENTIALS.unpack(raw)
    return int(process_id) if uid == os.getuid() else None


class Offer(Closing):
    """Answers joiners of the same user with `message` and `descriptors` until closed."""

    def __init__(self, address: str, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
        self.address = address
        self._message = message
        self._descriptors = descriptors
        self._socket = listen(address, socket.SOCK_STREAM, "; does another process claim to be rank 0?")
        self._socket.settimeout(_POLL_S)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="samovar-offer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the offer; joiners keep what they received."""
        self._closing.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:  # nobody came, it was shut down, or there are no descriptors left for now
                self._closing.wait(_RETRY_S)
                continue
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        if user_process(connection) is None:
            return
        connection.settimeout(_POLL_S)
        try:
            socket.send_fds(connection, [self._message], self._descriptors)
        except OSError:
            return  # the joiner went away; it will say so itself


def offer_files(secret: bytes, descriptors: tuple[int, ...]) -> Offer:
    """Hand `descriptors` to joiners of the same user that know the `secret`, until closed."""
    return Offer(f"{_FILES}{secret.hex()}", _FILES.encode(), descriptors)


def join_files(secret: bytes, count: int, deadline: Deadline) -> list[int]:
    """The `count` descriptors that are offered under a `secret`; the caller owns them.

    Raises InputError if nobody offers them or the offer is another user's, DeadlineExceeded.
    """
    address = f"{_FILES}{secret.hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(deadline.timeout_s())
        try:
            _connect(connection, address, deadline)
            message, descriptors, _flags, _address = socket.recv_fds(connection, len(_FILES), count)
        except TimeoutError as error:
            raise DeadlineExceeded(f"segment {address}: no answer; is the run stopped?") from error
        except OSError as error:
            raise InputError(f"segment {address}: nobody offers it here ({error}); is the run over?") from error
    if len(message) != len(_FILES) or len(descriptors) != count:
        raise InputError(f"segment {address}: refused; it belongs to another user")
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # a received descriptor is inheritable
    return descriptors


def offer_port(job: str, port: int) -> Offer:
    """Tell the ranks of `job` on this host the port at which they meet, until closed."""
    return Offer(f"samovar-port-{job}", _PORT.pack(port))


def ask_port(job: str, deadline: Deadline) -> int | None:
    """The port that rank 0 of `job` offers on this host; None if it offers none by the deadline.

    Raises InputError if the offer is another user's.
    """
    while not deadline.passed():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(deadline.timeout_s())
            try:
                connection.connect(f"\0samovar-port-{job}")
                if user_process(connection) is None:
                    raise InputError(f"socket samovar-port-{job} belongs to another user; set MASTER_ADDR, MASTER_PORT")
                message = connection.recv(_PORT.size)
            except OSError:  # not yet, or not any more
                message = b""
        if len(message) == _PORT.size:
            return int(_PORT.unpack(message)[0])
        time.sleep(min(_RETRY_S, deadline.remaining_s()))
    return None


class ConnectionEnded(SamovarError):
    """The other end has closed."""


@dataclass(slots=True)
class LocalMessage:
    """A received message: JSON, and descriptors that the receiver owns."""

    content: dict[str, Any]
    descriptors: list[int] = field(default_factory=list)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def listen(address: str, kind: int = socket.SOCK_SEQPACKET, hint: str = "") -> socket.socket:
    """A socket that listens at the abstract `address`. Raises InputError, with the hint, if another has it."""
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(f"\0{address}")
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(f"socket {address}: {error.strerror}{hint}") from error
    return listener


def connect(address: str, deadline: Deadline) -> socket.socket | None:
    """A connection to the listener at `address`; None if there is none. Raises InputError if it is another user's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(deadline.timeout_s())
    try:
        _connect(connection, address, deadline)
    except TimeoutError as error:
        connection.close()
        raise DeadlineExceeded(f"socket {address}: no answer; is the box stopped?") from error
    except OSError:
        connection.close()
        return None
    if not (process_id := user_process(connection)):
        connection.close()
        why = "belongs to another user; give the box another name"
        if process_id == 0:
            why = "is of a process that cannot be seen from this container; let both share one PID namespace"
        raise InputError(f"socket {address} {why}")
    return connection


def _connect(connection: socket.socket, address: str, deadline: Deadline) -> None:
    """Raises OSError. With a limit of time the system does not wait where the listener's queue is full."""
    while True:
        try:
            connection.connect(f"\0{address}")
            return
        except BlockingIOError as error:
            if deadline.passed():
                raise TimeoutError from error
            time.sleep(_RETRY_S)


def send(
    connection: socket.socket, content: Mapping[str, Any], deadline: Deadline, descriptors: Sequence[int] = ()
) -> None:
    """Raises ConnectionEnded, DeadlineExceeded, or InputError if the message is too long."""
    data = json.dumps(content).encode()
    if len(data) > _MAX_BYTES:
        raise InputError(f"a message has {len(data):,} bytes, of at most {_MAX_BYTES:,}; try with fewer workers")
    connection.settimeout(deadline.timeout_s())
    try:
        socket.send_fds(connection, [data], list(descriptors))
    except TimeoutError as error:
        raise DeadlineExceeded("the other end of a box's socket does not read; is it stopped?") from error
    except OSError as error:
        raise ConnectionEnded(f"the other end of a box's socket is gone: {error}") from error


def receive(connection: socket.socket, deadline: Deadline) -> LocalMessage:
    """The next message. Raises ConnectionEnded, DeadlineExceeded, or SamovarError if it is none."""
    connection.settimeout(deadline.timeout_s())
    try:
        data, descriptors, flags, _address = socket.recv_fds(connection, _MAX_BYTES, _MAX_DESCRIPTORS)
    except TimeoutError as error:
        if not deadline.passed():  # the system's limit is shorter: days
            return receive(connection, deadline)
        raise DeadlineExceeded("the other end of a box's socket does not answer; is it stopped?") from error
    except OSError as error:
        raise ConnectionEnded(f"the other end of a box's socket is gone: {error}") from error
    message = LocalMessage({}, descriptors)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # a received descriptor is inheritable
    if not data:
        raise ConnectionEnded("the other end of a box's socket has ended")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        message.close()
        raise SamovarError("a box's socket brought a message that is not of this version")
    message.content = content
    return message
