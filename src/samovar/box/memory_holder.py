"""A small process that holds a box's memory for its server, and the server's end of it.

`python -P -m samovar.box.memory_holder LISTENER KEEP_S`: LISTENER is the descriptor of a socket that listens. The
server stores descriptors under keys. If it is killed, the next server gets them all back. The process ends when the
server asks for it, or KEEP_S after the last server disappeared, which may have told another time. The memory ends with
it, except for members that have it mapped.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.transports import unix_sockets
from samovar.transports.unix_sockets import ConnectionEnded, LocalMessage

_ANSWER_S = 30.0  # a process that is just started answers when its interpreter is up
_SEND_S = 10.0
_POLL_S = 3600.0  # a server that lives need not say anything


class MemoryHolder:
    """The keys and their descriptors, and one server at a time."""

    def __init__(self, listener: socket.socket, keep_s: float) -> None:
        self._listener = listener
        self._keep_s = keep_s
        self._held: dict[str, int] = {}

    def run(self) -> None:
        """Until a server says so, or none has been here for long."""
        while True:
            self._listener.settimeout(self._keep_s)
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                return
            with connection:
                if unix_sockets.user_process(connection) and self._serve(connection):
                    return

    def _serve(self, connection: socket.socket) -> bool:
        """One server's requests until it is gone; whether it said that all is over."""
        while True:
            try:
                message = unix_sockets.receive(connection, Deadline.after(_POLL_S))
                if message.content.get("do") == "end":
                    return True
                self._answer(connection, message)
            except DeadlineExceeded:
                continue
            except SamovarError:
                return False

    def _answer(self, connection: socket.socket, message: LocalMessage) -> None:
        key, deadline = str(message.content.get("key")), Deadline.after(_SEND_S)
        match message.content.get("do"):
            case "put" if len(message.descriptors) == 1:
                self._discard(key)
                self._held[key] = message.descriptors.pop()
            case "keep":
                self._keep_s = float(str(message.content.get("seconds")))
            case "discard":
                self._discard(key)
            case "get":
                for name, descriptor in self._held.items():
                    unix_sockets.send(connection, {"key": name}, deadline, [descriptor])
        message.close()
        unix_sockets.send(connection, {"done": True}, deadline)

    def _discard(self, key: str) -> None:
        with suppress(KeyError):
            os.close(self._held.pop(key))


class HeldMemory:
    """Descriptors that outlive this process, held by the process at `address`, which is started if needed.

    Raises InputError if that process belongs to another user or cannot be started.
    """

    def __init__(self, address: str, keep_s: float) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        connection = unix_sockets.connect(address, Deadline.after(_ANSWER_S))
        self.was_there = connection is not None
        self._connection = connection or self._start(address, keep_s)
        if self.was_there:
            self._ask({"do": "keep", "seconds": str(keep_s)})

    def _start(self, address: str, keep_s: float) -> socket.socket:
        """It gets a socket that listens already, so no caller waits for its start."""
        with unix_sockets.listen(address) as listener:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "samovar.box.memory_holder", str(listener.fileno()), str(keep_s)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[listener.fileno()],
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                raise InputError(f"the process that holds the box's memory cannot be started: {error}") from error
            connection = unix_sockets.connect(address, Deadline.after(_ANSWER_S))
        assert connection is not None, "our own listener"
        return connection

    def put(self, key: str, descriptor: int) -> None:
        """Have `descriptor` held too; the caller keeps its own."""
        self._ask({"do": "put", "key": key}, [descriptor])

    def discard(self, key: str) -> None:
        self._ask({"do": "discard", "key": key})

    def get(self) -> dict[str, int]:
        """Everything that is held; the caller owns the descriptors."""
        return self._ask({"do": "get"})

    def end(self) -> None:
        """End the process, and with it the memory. Raises SamovarError if that of an earlier server is stopped."""
        deadline = Deadline.after(_ANSWER_S)
        if self._process is not None:
            self._process.kill()  # which ends a stopped one, too
            self._process.wait(_ANSWER_S)
        try:
            unix_sockets.send(self._connection, {"do": "end"}, deadline)
            while True:  # late answers: if they are not read, closing makes it miss the request
                unix_sockets.receive(self._connection, deadline)
        except ConnectionEnded:
            pass
        except SamovarError as error:
            raise SamovarError(
                f"the process that holds the box's memory: {error}; it ends when it continues"
            ) from error
        finally:
            self.close()

    def close(self) -> None:
        """Leave the process alone: it waits for the next server."""
        self._connection.close()

    def _ask(self, content: Mapping[str, str], descriptors: list[int] | None = None) -> dict[str, int]:
        deadline = Deadline.after(_ANSWER_S)
        found: dict[str, int] = {}
        try:
            unix_sockets.send(self._connection, content, deadline, descriptors or [])
            while True:
                message = unix_sockets.receive(self._connection, deadline)
                if "key" not in message.content or len(message.descriptors) != 1:
                    return found
                found[str(message.content["key"])] = message.descriptors.pop()
        except SamovarError as error:
            for descriptor in found.values():
                os.close(descriptor)
            hint = "let it continue, or end it" if isinstance(error, DeadlineExceeded) else "start the box again"
            raise SamovarError(f"the process that holds the box's memory: {error}; {hint}") from error


def main() -> None:
    """Signals of the terminal are for the server; this process hears of its end."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    MemoryHolder(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2])).run()


if __name__ == "__main__":
    main()
