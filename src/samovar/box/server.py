"""The server of a box: makes named buffers, and hands them to programs of the same user on this host.

It does nothing on the buffers itself, so its death stops no member. Their memory is held by a keeper as well: a server
that is started after a kill finds it all again.
"""

import socket
from collections.abc import Callable

from samovar.box import local_wire
from samovar.box.buffers import Buffer, BufferShape, NamedBuffers
from samovar.box.local import checked_name, keeper_address, server_address
from samovar.box.local_wire import LocalMessage
from samovar.box.memory_holder_client import KeptMemory
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, SamovarError

_ANSWER_S = 2.0
_POLL_S = 0.2


class BoxServer:
    """Serves the box called `box`; its keeper waits `keep_s` for the next server if this one is killed.

    Raises InputError where the box has a server already, or another user has its name.
    """

    def __init__(self, box: str, keep_s: float) -> None:
        address = server_address(checked_name(box))
        try:
            self._listener = local_wire.listen(address)
        except InputError as error:
            raise InputError(
                f"box {box!r} is served already ({error}); end that server, or give another name"
            ) from error
        self._memory = KeptMemory(keeper_address(box), keep_s)
        self.buffers = NamedBuffers(self._memory)

    @property
    def was_kept(self) -> bool:
        """Whether a keeper was there, left by a server that was killed."""
        return self._memory.was_there

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Answer local programs until `is_over`, which is asked five times a second."""
        self._listener.settimeout(_POLL_S)
        while not is_over():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection:
                if local_wire.is_ours(connection):
                    self._answer(connection)

    def close(self) -> None:
        """The end of the box: server and keeper go, and the memory with the last member that has it mapped."""
        self._listener.close()
        self.buffers.close()
        self._memory.end()

    def _answer(self, connection: socket.socket) -> None:
        deadline = Deadline.after(_ANSWER_S)
        try:
            message = local_wire.receive(connection, deadline)
        except SamovarError:  # no message, or none in time
            return
        content, descriptors = self._done(message)
        try:
            local_wire.send(connection, content, Deadline.after(_ANSWER_S), descriptors)
        except SamovarError:
            return  # whoever asked went away; it will say so itself

    def _done(self, message: LocalMessage) -> tuple[dict[str, object], list[int]]:
        message.close()  # nobody has a descriptor to give
        name = str(message.content.get("name"))
        buffer: Buffer | None = None
        try:
            match message.content.get("do"):
                case "create":
                    buffer = self.buffers.create(name, BufferShape.of(message.content))
                case "attach":
                    buffer = self.buffers.get(name)
                case "drop":
                    self.buffers.drop(name)
                case "names":
                    return {"names": self.buffers.names()}, []
                case other:
                    raise InputError(f"the box cannot {str(other)[:20]!r}; use one version of Samovar")
        except SamovarError as error:
            return {"error": str(error)}, []
        if buffer is None:
            return {"done": True}, []
        return {"is_new": buffer.is_new}, [buffer.center, buffer.board]
