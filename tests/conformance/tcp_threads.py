"""Ranks of one process: a thread each, which reach each other over TCP."""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TypeVar

from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.transports.keys import Key, make_key, read_key
from samovar.transports.tcp import TcpTransport
from samovar.transports.tcp_listen import address_of, listen
from samovar.transports.tcp_service import TcpConfig

Result = TypeVar("Result")
TIMEOUT_S = 30.0


@cache
def key() -> Key:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "key.pem")
        make_key(path)
        return read_key(path)


def on_tcp(world_size: int, work: Callable[[TcpTransport], Result], *, needs_memory: bool = False) -> list[Result]:
    """The results of `work` on all ranks, in their order."""
    listeners = [listen() for _ in range(world_size)]
    addresses = [address_of(listener) for listener in listeners]
    config = TcpConfig("threads", TIMEOUT_S)
    transports = [
        TcpTransport(Group(rank, world_size), config, key(), listener, addresses, needs_memory=needs_memory)
        for rank, listener in enumerate(listeners)
    ]
    try:
        with ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(work, transports))
    finally:
        for transport in transports:
            transport.close(Deadline.after(0.0))
