"""A box of this host that also listens at an address, with its server in this process."""

import threading
import uuid
from contextlib import ExitStack
from pathlib import Path

from samovar.box.board import Board
from samovar.box.joining import Endpoint, parse_endpoint
from samovar.box.line import BoxAddress
from samovar.box.local import BoxServer
from samovar.box.seats import BufferHost
from samovar.box.serving import Service, ServingConfig
from samovar.transports.keys import read_key
from samovar.transports.tcp_listen import Listener, listen
from tests.multiproc.ports import reserved_port

AWAY_S, ABSENT_S = 100.0, 1000.0


class Box:
    """A box of this host that listens, and can be listened at anew: its port stays its own."""

    def __init__(self, key_file: Path) -> None:
        self.name = f"test-{uuid.uuid4().hex}"
        self.key_file = key_file
        self.key = read_key(key_file)
        self.server = BoxServer(self.name, 20.0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self.server.serve, args=(self._is_over.is_set,))
        self._thread.start()
        self._reserved = ExitStack()
        self.listen(self._reserved.enter_context(reserved_port()))

    def listen(self, port: int) -> None:
        self.service = Service(BufferHost(self.server.buffers), ServingConfig(away_s=AWAY_S, absent_s=ABSENT_S))
        self.listener = Listener(listen(port=port), self.key, self.service.accept)
        self.address = BoxAddress(self.listener.address, self.key)

    def listen_anew(self) -> None:
        self.hang_up()
        self.listen(self.address.address[1])

    def hang_up(self) -> None:
        self.listener.close()
        self.service.close()

    def board(self, name: str) -> Board:
        with self.server.buffers.held(name) as buffer:
            return Board(buffer.board)

    @property
    def places(self) -> dict[str, Endpoint]:
        address, port = self.address.address
        return {
            "local": parse_endpoint(self.name, None),
            "remote": parse_endpoint(f"{address}:{port}", self.key_file),
        }

    def close(self) -> None:
        self.hang_up()
        self._is_over.set()
        self._thread.join()
        self.server.close()
        self._reserved.close()
