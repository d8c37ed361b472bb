"""Ports of this host that stay a test's own while nobody listens at them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of loopback where whoever is told of it may listen, and again after its end; nobody else is given it.

    Its holder never listens, and has SO_REUSEADDR, as every server here.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
