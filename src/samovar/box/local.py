"""A box of this host: its server, and its view for programs of the same user, which map the memory of buffers."""

import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from samovar.box.buffers import Buffer, BufferShape, NamedBuffers
from samovar.box.memory_holder import HeldMemory
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, SamovarError
from samovar.transports import unix_sockets
from samovar.transports.unix_sockets import LocalMessage

DEFAULT_BOX: Final = "default"
_ANSWER_S: Final = 2.0
_POLL_S: Final = 0.2
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def checked_name(box: str) -> str:
    """`box`, if a box can be called so: letters, digits and -_. of at most 64; else InputError."""
    if not _NAME.fullmatch(box):
        raise InputError(f"--box {box!r}: give letters, digits, '-', '_' and '.', at most 64 of them")
    return box


def server_address(box: str) -> str:
    return f"samovar-box-{os.getuid()}-{box}"


def holder_address(box: str) -> str:
    return f"samovar-box-keeper-{os.getuid()}-{box}"


class LocalBox:
    """The box called `box`. Only these methods need its server; members continue without it.

    All methods raise InputError if nobody serves the box or it refuses, DeadlineExceeded.
    """

    def __init__(self, box: str = DEFAULT_BOX) -> None:
        self._box = checked_name(box)

    def create(self, name: str, shape: BufferShape, deadline: Deadline) -> Buffer:
        """The buffer `name`, made of zeros if there is none; the caller owns its descriptors."""
        return self._buffer({"do": "create", "name": name, **asdict(shape)}, deadline)

    def attach(self, name: str, deadline: Deadline) -> Buffer:
        """The buffer `name`, which must be there; the caller owns its descriptors."""
        return self._buffer({"do": "attach", "name": name}, deadline)

    def drop(self, name: str, deadline: Deadline) -> None:
        """Delete it; members that have it mapped keep it."""
        self._ask({"do": "drop", "name": name}, deadline).close()

    def names(self, deadline: Deadline) -> list[str]:
        message = self._ask({"do": "names"}, deadline)
        message.close()
        return [str(name) for name in message.content.get("names", [])]

    def _buffer(self, content: dict[str, Any], deadline: Deadline) -> Buffer:
        message = self._ask(content, deadline)
        if len(message.descriptors) != 2:
            message.close()
            raise InputError(f"box {self._box!r} speaks another version's language; use one version of Samovar")
        center, board = message.descriptors
        return Buffer(center, board, message.content.get("is_new") is True)

    def _ask(self, content: dict[str, Any], deadline: Deadline) -> LocalMessage:
        connection = unix_sockets.connect(server_address(self._box), deadline)
        if connection is None:
            flag = "" if self._box == DEFAULT_BOX else f" --box {self._box}"
            raise InputError(f"nobody serves box {self._box!r} on this host; start it with `samovar box serve{flag}`")
        with connection:
            unix_sockets.send(connection, content, deadline)
            message = unix_sockets.receive(connection, deadline)
        if "error" in message.content:
            message.close()
            raise InputError(f"box {self._box!r}: {message.content['error']}")
        return message


class BoxServer:
    """Makes the buffers of the box called `box`, and hands them to programs of the same user on this host.

    It does nothing on the buffers itself, so its death stops no member. Their memory is held by another process as well
    (`samovar.box.memory_holder`): a server that is started within `keep_s` after this one was killed finds it again.

    Raises InputError if the box has a server already, or another user has its name.
    """

    def __init__(self, box: str, keep_s: float) -> None:
        address = server_address(checked_name(box))
        try:
            self._listener = unix_sockets.listen(address)
        except InputError as error:
            raise InputError(
                f"box {box!r} is served already ({error}); end that server, or give another name"
            ) from error
        self._memory = HeldMemory(holder_address(box), keep_s)
        self.was_held = self._memory.was_there  # left by a server that was killed
        self.buffers = NamedBuffers(self._memory)

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Answer local programs until `is_over`, asked five times a second. Then tell them that the box has ended."""
        self._listener.settimeout(_POLL_S)
        while not is_over():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # no descriptor is free
                time.sleep(_POLL_S)
                continue
            with connection:
                if (process := unix_sockets.user_process(connection)) is not None:
                    self._answer(connection, process)
        self.buffers.say_ended(is_ended=True)  # before the last snapshot, which has all that nobody was told of

    def close(self, *, keeps_memory: bool = False) -> None:
        """The end of the box: server and memory holder go, and the memory with the last member that has it mapped.

        With `keeps_memory` the holder keeps it for the next server, as if this one had been killed.
        """
        self._listener.close()
        self.buffers.say_ended(is_ended=not keeps_memory)
        self.buffers.close()
        (self._memory.close if keeps_memory else self._memory.end)()

    def _answer(self, connection: socket.socket, process: int) -> None:
        deadline = Deadline.after(_ANSWER_S)
        try:
            message = unix_sockets.receive(connection, deadline)
        except SamovarError:  # no message, or none in time
            return
        content, buffer = self._done(message, process)
        try:
            descriptors = () if buffer is None else (buffer.center, buffer.board)
            unix_sockets.send(connection, content, Deadline.after(_ANSWER_S), descriptors)
        except SamovarError:
            return  # the asking process went away
        finally:
            if buffer is not None:
                buffer.close()

    def _done(self, message: LocalMessage, process: int) -> tuple[dict[str, object], Buffer | None]:
        """The answer, and the buffer that goes with it, which is the caller's."""
        message.close()  # messages carry no descriptor here
        name, is_new = str(message.content.get("name")), False
        try:
            _require_own_numbers(process)
            match message.content.get("do"):
                case "create":
                    is_new = self.buffers.create(name, BufferShape.of(message.content)).is_new
                case "attach":
                    pass
                case "drop":
                    self.buffers.drop(name)
                    return {"done": True}, None
                case "names":
                    return {"names": self.buffers.names()}, None
                case other:
                    raise InputError(f"the box cannot {str(other)[:20]!r}; use one version of Samovar")
            return {"is_new": is_new}, self.buffers.held(name)
        except (SamovarError, OSError) as error:  # no descriptor is free, say
            return {"error": str(error)}, None


def _require_own_numbers(process: int) -> None:
    if not _shares_numbers(process):
        raise InputError(
            "this program's process numbers are another container's; reach the box by its address (--listen)"
        )


def _shares_numbers(process: int) -> bool:
    """Whether a process is in this one's namespace of process numbers, by which members are seen to live."""
    try:
        return Path(f"/proc/{process}/ns/pid").samefile("/proc/self/ns/pid")
    except PermissionError:  # of a process that nobody may look into
        return True
    except OSError:
        return False
