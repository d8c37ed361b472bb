"""A link that a test can cut: bytes go through it until it is told to stop in the middle of them."""

import socket
import threading
from contextlib import suppress

from samovar.transports.secure import Address
from samovar.transports.tcp_listen import address_of, listen

_BLOCK_BYTES = 65_536


class Proxy:
    """Forwards connections to `target`; each is cut where its entry in `cuts` says: (bytes up, bytes down) that pass.

    Connections after the last entry are left alone. Where `changed` is a number, that byte going up is flipped.
    """

    def __init__(self, target: Address, cuts: list[tuple[int, int]], changed: int | None = None) -> None:
        self._target = target
        self._cuts = list(cuts)
        self._changed = changed
        self._listening = listen()
        self.address = address_of(self._listening)
        self.num_connections = 0
        self.seen_up = bytearray()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._accepting = self._started(self._accept)

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # first: it may have a connection in hand, to which there are no threads yet
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in [self._listening, *self._sockets]:
            each.close()

    def _started(self, target: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            self.num_connections += 1
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            up, down = self._cuts.pop(0) if self._cuts else (1 << 62, 1 << 62)
            self._threads += [
                self._started(self._forward, near, far, up, True),
                self._started(self._forward, far, near, down, False),
            ]

    def _forward(self, source: socket.socket, destination: socket.socket, most: int, is_up: bool) -> None:
        passed = 0
        with suppress(OSError):
            while passed < most and (block := source.recv(min(_BLOCK_BYTES, most - passed))):
                if is_up:
                    block = self._noted(block, passed)
                destination.sendall(block)
                passed += len(block)
        for each in (source, destination):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _noted(self, block: bytes, passed: int) -> bytes:
        if self._changed is not None and passed <= self._changed < passed + len(block):
            position = self._changed - passed
            block = block[:position] + bytes([block[position] ^ 1]) + block[position + 1 :]
            self._changed = None
        self.seen_up += block
        return block
