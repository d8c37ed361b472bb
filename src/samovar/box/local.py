"""A box of this host as a program of the same user sees it: buffers by name, whose memory it maps itself."""

import os
import re
from dataclasses import asdict
from typing import Any, Final

from samovar.box import local_wire
from samovar.box.buffers import Buffer, BufferShape
from samovar.box.local_wire import LocalMessage
from samovar.core.clock import Deadline
from samovar.core.errors import InputError

DEFAULT_BOX: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def checked_name(box: str) -> str:
    """`box`, if a box can be called so: letters, digits and -_. of at most 64; else InputError."""
    if not _NAME.fullmatch(box):
        raise InputError(f"--box {box!r}: give letters, digits, '-', '_' and '.', at most 64 of them")
    return box


def server_address(box: str) -> str:
    return f"samovar-box-{os.getuid()}-{box}"


def keeper_address(box: str) -> str:
    return f"samovar-box-keeper-{os.getuid()}-{box}"


class LocalBox:
    """The box called `box`. Only what is asked here needs its server: members go on without it.

    Errors of all methods: InputError where nobody serves the box or it refuses, DeadlineExceeded.
    """

    def __init__(self, box: str = DEFAULT_BOX) -> None:
        self._box = checked_name(box)

    def create(self, name: str, shape: BufferShape, deadline: Deadline) -> Buffer:
        """The buffer `name`, made of zeros where there is none; the caller owns its descriptors."""
        return self._buffer({"do": "create", "name": name, **asdict(shape)}, deadline)

    def attach(self, name: str, deadline: Deadline) -> Buffer:
        """The buffer `name`, which must be there; the caller owns its descriptors."""
        return self._buffer({"do": "attach", "name": name}, deadline)

    def drop(self, name: str, deadline: Deadline) -> None:
        """Delete it; who has it mapped keeps it."""
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
        connection = local_wire.connect(server_address(self._box), deadline)
        if connection is None:
            flag = "" if self._box == DEFAULT_BOX else f" --box {self._box}"
            raise InputError(f"nobody serves box {self._box!r} on this host; start it with `samovar box serve{flag}`")
        with connection:
            local_wire.send(connection, content, deadline)
            message = local_wire.receive(connection, deadline)
        if "error" in message.content:
            message.close()
            raise InputError(f"box {self._box!r}: {message.content['error']}")
        return message
