"""The state for workers that come to an elastic job on another host: launchers hand it to each other."""

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from socket import socket
from typing import Any

from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.core.host import create_empty
from samovar.transports.keys import Key
from samovar.transports.links import MOST_BYTES, HostLink, link_to, sealed_link
from samovar.transports.secure import Address, SecureChannel
from samovar.transports.tcp_listen import Listener

_HELLO_S = 5.0
_PART_S = 30.0  # for a MiB


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Where the state is: at the launcher that listens at `address`, or on the only host. `numbers` come with it."""

    token: str
    numbers: Mapping[str, Any]
    address: Address | None

    @classmethod
    def new(cls, numbers: Mapping[str, Any], address: Address | None) -> "StatePlace":
        return cls(secrets.token_hex(16), numbers, address)


class Courier:
    """Hands the state that this launcher offers to others, and brings theirs. All hold the job's `key`.

    `on_host(link, message)` gets every connection that begins with another message than a question for a state, on a
    thread of the courier's. Owns `listening`.
    """

    def __init__(self, listening: socket, key: Key, on_host: Callable[[HostLink, dict[str, Any]], None]) -> None:
        self._key = key
        self._on_host = on_host
        self._offered = ("", -1)
        self._links: set[HostLink] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._listener = Listener(listening, key, self._accept)
        self.address = self._listener.address

    def offer(self, token: str, descriptor: int) -> None:
        """Hand out this file from now on, which stays the caller's until the next call."""
        with self._lock:
            self._offered = token, descriptor

    def bring(self, place: StatePlace, then: Callable[[int], None]) -> None:
        """Call `then` with the descriptor of the state, or with -1 if it cannot be had. Never waits."""
        self._start(lambda: then(self._brought(place)))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            links = list(self._links)
        self._listener.close()
        for link in links:
            link.end()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="samovar-courier", daemon=True)
        with self._lock:
            self._threads = [earlier for earlier in self._threads if earlier.is_alive()]
            thread.start()
            self._threads.append(thread)

    def _accept(self, channel: SecureChannel) -> None:
        self._start(lambda: self._hear(sealed_link(channel)))

    def _hear(self, link: HostLink) -> None:
        with ExitStack() as closing:
            closing.callback(link.close)
            try:
                self._note(link, closing)
                message, _ = link.receive(Deadline.after(_HELLO_S))
                if message.get("is") == "state":
                    self._hand_out(link, str(message.get("token")))
                    return
            except SamovarError:  # it is gone, or none of ours
                return
            closing.pop_all()
            with self._lock:
                self._links.discard(link)
            self._on_host(link, message)

    def _note(self, link: HostLink, closing: ExitStack) -> None:
        """Let `close` end what waits for this link."""
        with self._lock:
            if self._is_closed:
                raise SamovarError("closed")
            self._links.add(link)
        closing.callback(self._links.discard, link)

    def _hand_out(self, link: HostLink, token: str) -> None:
        with self._lock:
            known = self._offered[0] == token and self._offered[1] >= 0
            descriptor = os.dup(self._offered[1]) if known else -1
        if descriptor < 0:
            return
        try:
            size = os.fstat(descriptor).st_size
            link.send({"is": "state", "size": size}, Deadline.after(_PART_S))
            for start in range(0, size, MOST_BYTES):
                part = os.pread(descriptor, MOST_BYTES, start)
                link.send({"is": "part"}, Deadline.after(_PART_S), part)
        finally:
            os.close(descriptor)

    def _brought(self, place: StatePlace) -> int:
        descriptor = create_empty()
        try:
            assert place.address is not None, place
            link = link_to(place.address, self._key, "this host", Deadline.after(_HELLO_S))
            with ExitStack() as closing:
                closing.callback(link.close)
                self._note(link, closing)
                self._receive(link, place.token, descriptor)
        except (SamovarError, OSError, LookupError, TypeError, ValueError):  # OSError: there is no room for it
            os.close(descriptor)
            return -1
        return descriptor

    def _receive(self, link: HostLink, token: str, descriptor: int) -> None:
        link.send({"is": "state", "token": token}, Deadline.after(_PART_S))
        message, _ = link.receive(Deadline.after(_PART_S))
        size, received = int(message["size"]), 0
        while received < size:
            _, part = link.receive(Deadline.after(_PART_S))
            if not part:
                raise ValueError("a part without data")
            received += os.pwrite(descriptor, part, received)
