"""Serves a job's own center to its ranks on other hosts: `python -P -m samovar.box.job_server KEY_FILE NUMBERS...`.

NUMBERS are descriptors that rank 0 passes: a socket that listens, the memory of center and board, and a pipe that ends
with the last rank of this host. When the pipe has ended and no remote member has a place, this process ends too, and
the memory with it.
"""

import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from samovar.box.board import Board
from samovar.box.buffers import NamedBuffers
from samovar.box.seats import BufferHost
from samovar.box.serving import Service, ServingConfig
from samovar.transports.keys import Key, read_key
from samovar.transports.tcp_listen import Listener

BUFFER: Final = "center"
# A member whose connection broke comes back within a second or two, if it lives.
ABSENT_S: Final = 20.0
_POLL_S = 0.2
_CONNECTIONS_PER_MEMBER = 4


class HandedMemory:
    """See `samovar.box.buffers.Memory`: rank 0's descriptors, which are not kept for another server."""

    def __init__(self, center: int, board: int) -> None:
        self._handed = {f"center/{BUFFER}": center, f"board/{BUFFER}": board}

    def get(self) -> dict[str, int]:
        return dict(self._handed)

    def put(self, key: str, descriptor: int) -> None:
        """Nobody asks for it again."""

    def discard(self, key: str) -> None:
        """Nobody else has it."""


@contextmanager
def served(listening: socket.socket, key: Key, center: int, board: int, absent_s: float) -> Iterator[Service]:
    """Serve this center by threads; owns the socket and the descriptors."""
    most = _CONNECTIONS_PER_MEMBER * Board(board).max_members
    buffers = NamedBuffers(HandedMemory(center, board))
    service = Service(BufferHost(buffers), ServingConfig(absent_s=absent_s, most_connections=most))
    listener = Listener(listening, key, service.accept)
    try:
        yield service
    finally:
        listener.close()
        service.close()
        buffers.close()


def serve(key_file: Path, listening: socket.socket, center: int, board: int, pipe: int) -> None:
    """Serve until the job has no process left; owns its arguments."""
    ends = select.poll()
    ends.register(pipe, 0)  # POLLHUP is told anyhow
    with served(listening, read_key(key_file), center, board, ABSENT_S) as service:
        while not ends.poll(_POLL_S * 1000):
            service.expire()
        while service.has_members:
            time.sleep(_POLL_S)
            service.expire()
    os.close(pipe)


def main() -> None:
    key_file, *numbers = sys.argv[1:]
    listening, center, board, pipe = map(int, numbers)
    serve(Path(key_file), socket.socket(fileno=listening), center, board, pipe)


if __name__ == "__main__":
    main()
