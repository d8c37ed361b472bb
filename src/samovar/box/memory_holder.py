"""A small process that holds a box's memory for its server: `python -P -m samovar.box.memory_holder LISTENER KEEP_S`.

LISTENER is the descriptor of a socket that listens. The server puts descriptors in under keys; one that comes after it
was killed gets them all back. The keeper ends when the server tells it to, or KEEP_S after the last server went without
a word; the memory goes with it, but for members that have it mapped.
"""

import os
import signal
import socket
import sys
from contextlib import suppress

from samovar.box import local_wire
from samovar.box.local_wire import LocalMessage
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError

_ANSWER_S = 10.0
_POLL_S = 3600.0  # a server that lives need not say anything


class Keeper:
    """The keys and their descriptors, and one server at a time."""

    def __init__(self, listener: socket.socket, keep_s: float) -> None:
        self._listener = listener
        self._keep_s = keep_s
        self._kept: dict[str, int] = {}

    def run(self) -> None:
        """Until a server says so, or none has been here for long."""
        while True:
            self._listener.settimeout(self._keep_s)
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                return
            with connection:
                if local_wire.is_ours(connection) and self._serve(connection):
                    return

    def _serve(self, connection: socket.socket) -> bool:
        """One server's requests until it is gone; whether it said that all is over."""
        while True:
            try:
                message = local_wire.receive(connection, Deadline.after(_POLL_S))
                if message.content.get("do") == "end":
                    return True
                self._answer(connection, message)
            except DeadlineExceeded:
                continue
            except SamovarError:
                return False

    def _answer(self, connection: socket.socket, message: LocalMessage) -> None:
        key, deadline = str(message.content.get("key")), Deadline.after(_ANSWER_S)
        match message.content.get("do"):
            case "put" if len(message.descriptors) == 1:
                self._discard(key)
                self._kept[key] = message.descriptors.pop()
            case "discard":
                self._discard(key)
            case "get":
                for name, descriptor in self._kept.items():
                    local_wire.send(connection, {"key": name}, deadline, [descriptor])
        message.close()
        local_wire.send(connection, {"done": True}, deadline)

    def _discard(self, key: str) -> None:
        with suppress(KeyError):
            os.close(self._kept.pop(key))


def main() -> None:
    """Signals of the terminal are for the server; this process hears of its end."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    Keeper(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2])).run()


if __name__ == "__main__":
    main()
