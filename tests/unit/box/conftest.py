"""A box that serves on loopback, and ends with its test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from samovar.box.buffers import BufferShape
from samovar.box.line import BoxAddress
from samovar.box.remote import RemoteCenter
from samovar.box.serving import Service, ServingConfig
from samovar.core.clock import Deadline
from samovar.transports.keys import Key, make_key, read_key
from samovar.transports.tcp_listen import Listener, listen
from tests.multiproc.ports import reserved_port
from tests.unit.box.numpy_host import NumpyCenter, NumpyHost

TIMEOUT_S = 30.0


class ServedBox:
    """Can be stopped and started again at its port, which stays its own; its centers live on."""

    def __init__(self, key: Key, port: int) -> None:
        self.key = key
        self.host: Any = NumpyHost({})
        self.port = port
        self.start()

    def start(self) -> None:
        self.service = Service(self.host, ServingConfig(timeout_s=TIMEOUT_S))
        self.listener = Listener(listen(port=self.port), self.key, self.service.accept)

    def stop(self) -> None:
        self.listener.close()
        self.service.close()

    @property
    def address(self) -> BoxAddress:
        return BoxAddress(self.listener.address, self.key)

    def create(self, name: str, num_elements: int, chunk_elements: int) -> NumpyCenter:
        self.host.centers[name] = NumpyCenter(
            BufferShape(num_elements, with_velocity=True, chunk_elements=chunk_elements)
        )
        return self.host.centers[name]


@pytest.fixture
def key(tmp_path: Path) -> Key:
    make_key(tmp_path / "key.pem")
    return read_key(tmp_path / "key.pem")


@pytest.fixture
def box(key: Key) -> Iterator[ServedBox]:
    with reserved_port() as port:
        served = ServedBox(key, port)
        yield served
        served.stop()


@pytest.fixture
def attach(box: ServedBox) -> Iterator[Callable[..., RemoteCenter]]:
    """attach(name) gives a new member of the box."""
    attached: list[RemoteCenter] = []

    def make(name: str = "c", address: BoxAddress | None = None) -> RemoteCenter:
        deadline = Deadline.after(TIMEOUT_S)
        attached.append(RemoteCenter(address or box.address, name, f"worker {len(attached)}", deadline))
        return attached[-1]

    yield make
    for center in attached:
        center.close()
