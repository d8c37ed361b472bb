"""The server's end of its keeper (see `samovar.box.memory_holder`)."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from samovar.box import local_wire
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, SamovarError

_ANSWER_S = 30.0  # a keeper that is just started answers when its interpreter is up


class KeptMemory:
    """Descriptors that outlive this process, held by the keeper at `address`, which is started where there is none.

    Raises InputError where the keeper belongs to another user or cannot be started.
    """

    def __init__(self, address: str, keep_s: float) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        connection = local_wire.connect(address, Deadline.after(_ANSWER_S))
        self.was_there = connection is not None
        self._connection = connection or self._start(address, keep_s)

    def _start(self, address: str, keep_s: float) -> socket.socket:
        """The keeper gets a socket that listens already: nobody need wait for it to come."""
        with local_wire.listen(address) as listener:
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
                raise InputError(f"the keeper of the box's memory cannot be started: {error}") from error
            connection = local_wire.connect(address, Deadline.after(_ANSWER_S))
        assert connection is not None, "our own listener"
        return connection

    def put(self, key: str, descriptor: int) -> None:
        """Have the keeper hold `descriptor` too; the caller keeps its own."""
        self._ask({"do": "put", "key": key}, [descriptor])

    def discard(self, key: str) -> None:
        self._ask({"do": "discard", "key": key})

    def get(self) -> dict[str, int]:
        """Everything that is held; the caller owns the descriptors."""
        return self._ask({"do": "get"})

    def end(self) -> None:
        """The keeper ends, and what it holds goes with it."""
        try:
            local_wire.send(self._connection, {"do": "end"}, Deadline.after(_ANSWER_S))
        except SamovarError:  # it has ended already
            pass
        finally:
            self.close()
        if self._process is not None:
            self._process.wait(_ANSWER_S)

    def close(self) -> None:
        """Leave the keeper alone: it waits for the next server."""
        self._connection.close()

    def _ask(self, content: Mapping[str, str], descriptors: list[int] | None = None) -> dict[str, int]:
        deadline = Deadline.after(_ANSWER_S)
        found: dict[str, int] = {}
        try:
            local_wire.send(self._connection, content, deadline, descriptors or [])
            while True:
                message = local_wire.receive(self._connection, deadline)
                if "key" not in message.content or len(message.descriptors) != 1:
                    return found
                found[str(message.content["key"])] = message.descriptors.pop()
        except SamovarError as error:
            for descriptor in found.values():
                os.close(descriptor)
            raise SamovarError(f"the keeper of the box's memory: {error}; start the box anew") from error
