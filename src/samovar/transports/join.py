"""How a process that comes later gets the descriptor of a running segment.

The offer is an abstract Unix socket: it has no file, and it goes with the process that made it. Only
processes of the same user are answered (SO_PEERCRED), and the name carries 128 random bits.
"""

import os
import secrets
import socket
import struct
import threading

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_WORLD_SIZE = struct.Struct("!I")
_POLL_S = 0.2


class SegmentOffer:
    """Hands `descriptor` to joiners of the same user until closed; `address` is what they need to know."""

    def __init__(self, descriptor: int, world_size: int) -> None:
        self.address = f"samovar-{secrets.token_hex(16)}"
        self._descriptor = descriptor
        self._world_size = world_size
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.address}")
        self._socket.listen()
        self._socket.settimeout(_POLL_S)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="samovar-segment-offer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the offer; joiners that already have the descriptor keep it."""
        self._closing.set()
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> "SegmentOffer":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _pid, uid, _gid = _CREDENTIALS.unpack(raw)
        if uid != os.getuid():
            return
        connection.settimeout(_POLL_S)
        try:
            socket.send_fds(connection, [_WORLD_SIZE.pack(self._world_size)], [self._descriptor])
        except OSError:
            return  # the joiner went away; it will say so itself


def join_segment(address: str, deadline: Deadline) -> tuple[int, int]:
    """The (descriptor, world size) offered at `address`; the caller owns the descriptor.

    Raises InputError where nobody offers it or the offer is another user's, DeadlineExceeded.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(max(deadline.remaining_s(), 0.001))
        try:
            connection.connect(f"\0{address}")
            message, descriptors, _flags, _address = socket.recv_fds(connection, _WORLD_SIZE.size, 1)
        except TimeoutError as error:
            raise DeadlineExceeded(f"segment {address}: no answer; is the run stopped?") from error
        except OSError as error:
            raise InputError(f"segment {address}: nobody offers it here ({error}); is the run over?") from error
    if len(message) != _WORLD_SIZE.size or len(descriptors) != 1:
        raise InputError(f"segment {address}: refused; it belongs to another user")
    os.set_inheritable(descriptors[0], False)  # a received descriptor is inheritable
    return descriptors[0], int(_WORLD_SIZE.unpack(message)[0])
