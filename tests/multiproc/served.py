"""A box that a test serves, for launches that train there."""

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from samovar.box.board import Board
from samovar.box.joining import look_at, parse_endpoint
from samovar.box.local import LocalBox
from samovar.core.clock import Deadline
from samovar.strategies.box_terms import BoxWord
from tests.multiproc.command import TIMEOUT_S, Command, succeed
from tests.multiproc.ports import reserved_port

Arguments = tuple[object, ...]


class Served:
    """A box of this test's own, which programs of this host find by its name, others at an address."""

    def __init__(self, folder: Path) -> None:
        self.name = f"test-{uuid.uuid4().hex}"
        self.key = folder / "key"
        self._folder = folder
        self._port = 0

    @contextmanager
    def running(self) -> Iterator[Command]:
        """Its server; one that is started within, when that one is gone, listens where it did."""
        with ExitStack() as stack:
            if not self._port:
                self._port = stack.enter_context(reserved_port())
            network = ("--listen", f"127.0.0.1:{self._port}", "--key-file", self.key)
            with Command("box", "serve", "--box", self.name, *network, folder=self._folder) as server:
                server.until(lambda: f"come in at 127.0.0.1:{self._port}" in server.output, "the box is served")
                yield server

    @property
    def here(self) -> Arguments:
        return ("--box", self.name)

    @property
    def there(self) -> Arguments:
        return ("--box", f"127.0.0.1:{self._port}", "--key-file", self.key)

    def members(self) -> list[dict[str, Any]]:
        """The members of the only buffer, by `samovar box list`."""
        listed = succeed("box", "list", "--box", self.name, "--json", folder=self._folder)
        (buffer,) = json.loads(listed.output)
        members: list[dict[str, Any]] = buffer["members"]
        return members

    def names(self) -> list[str]:
        """Its buffers'."""
        return LocalBox(self.name).names(Deadline.after(TIMEOUT_S))

    @contextmanager
    def buffer(self) -> Iterator[str]:
        """A name for a buffer, which is deleted afterwards."""
        name = f"narrow-{uuid.uuid4().hex[:8]}"
        yield name
        if name in self.names():
            LocalBox(self.name).drop(name, Deadline.after(TIMEOUT_S))

    def run_steps(self, buffer: str) -> int:
        """How many steps the run at `buffer` has behind it, as its members say; 0 before there is one."""
        if buffer not in self.names():
            return 0
        with LocalBox(self.name).attach(buffer, Deadline.after(TIMEOUT_S)) as attached:
            return Board(attached.board).word(BoxWord.STEPS)

    def num_training(self, buffer: str) -> int:
        """How many members of `buffer` are there and get on."""
        rows = look_at(parse_endpoint(self.name, None), buffer, "test", Deadline.after(TIMEOUT_S)).rows
        return sum(row.is_alive and row.progress.samples_per_s > 0 for row in rows)
