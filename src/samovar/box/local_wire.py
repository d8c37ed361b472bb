"""How the processes of one user on one host talk about a box: one JSON message each way, descriptors beside it.

Addresses are abstract Unix sockets: they have no file, and go with the process that made them. Whoever is at the other
end must belong to this user (SO_PEERCRED), or nothing is read.
"""

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_MAX_BYTES: Final = 60_000
_MAX_DESCRIPTORS: Final = 4
_BACKLOG: Final = 64
_LEAST_WAIT_S: Final = 0.001


class ConnectionEnded(SamovarError):
    """Nobody is at the other end any more."""


@dataclass(slots=True)
class LocalMessage:
    """What came: JSON, and descriptors that the receiver owns."""

    content: dict[str, Any]
    descriptors: list[int] = field(default_factory=list)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def listen(address: str) -> socket.socket:
    """A socket that listens at the abstract `address`. Raises InputError where another has it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0{address}")
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(f"socket {address}: {error.strerror}") from error
    return listener


def connect(address: str, deadline: Deadline) -> socket.socket | None:
    """A connection to who listens at `address`; None where nobody does. Raises InputError where it is another user."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(max(deadline.remaining_s(), _LEAST_WAIT_S))
    try:
        connection.connect(f"\0{address}")
    except TimeoutError as error:
        connection.close()
        raise DeadlineExceeded(f"socket {address}: no answer; is the box stopped?") from error
    except OSError:
        connection.close()
        return None
    if not is_ours(connection):
        connection.close()
        raise InputError(f"socket {address} belongs to another user; give the box another name")
    return connection


def is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user, and to the processes that this one can see."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process_id, uid, _gid = _CREDENTIALS.unpack(raw)
    return bool(uid == os.getuid() and process_id > 0)


def send(
    connection: socket.socket, content: Mapping[str, Any], deadline: Deadline, descriptors: Sequence[int] = ()
) -> None:
    """Raises ConnectionEnded or DeadlineExceeded."""
    data = json.dumps(content).encode()
    assert len(data) <= _MAX_BYTES, f"a message of {len(data)} bytes"
    connection.settimeout(max(deadline.remaining_s(), _LEAST_WAIT_S))
    try:
        socket.send_fds(connection, [data], list(descriptors))
    except TimeoutError as error:
        raise DeadlineExceeded("the other end of a box's socket does not read; is it stopped?") from error
    except OSError as error:
        raise ConnectionEnded(f"the other end of a box's socket is gone: {error}") from error


def receive(connection: socket.socket, deadline: Deadline) -> LocalMessage:
    """The next message. Raises ConnectionEnded, DeadlineExceeded, or SamovarError where it is none."""
    connection.settimeout(max(deadline.remaining_s(), _LEAST_WAIT_S))
    try:
        data, descriptors, flags, _address = socket.recv_fds(connection, _MAX_BYTES, _MAX_DESCRIPTORS)
    except TimeoutError as error:
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
    except ValueError:
        content = None
    if not isinstance(content, dict) or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        message.close()
        raise SamovarError("a box's socket brought what is no message of this version")
    message.content = content
    return message
