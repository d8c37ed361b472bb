"""A box that a test serves, for launches that train there."""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samovar.box.joining import look_at, parse_place
from samovar.core.clock import Deadline
from tests.multiproc.command import TIMEOUT_S, Command, succeed

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
        """Its server; the second one listens where the first did."""
        network = ("--listen", f"127.0.0.1:{self._port}", "--key-file", self.key)
        with Command("box", "serve", "--box", self.name, *network, folder=self._folder) as server:
            server.until(lambda: "come in at" in server.output, "the box is served")
            found = re.search(r"come in at 127\.0\.0\.1:(\d+)", server.output)
            assert found, server.output
            self._port = int(found[1])
            yield server

    @property
    def here(self) -> Arguments:
        return ("--box", self.name)

    @property
    def there(self) -> Arguments:
        return ("--box", f"127.0.0.1:{self._port}", "--key-file", self.key)

    def members(self) -> list[dict[str, Any]]:
        """What `samovar box list` tells of the only buffer's members."""
        listed = succeed("box", "list", "--box", self.name, "--json", folder=self._folder)
        (buffer,) = json.loads(listed.output)
        members: list[dict[str, Any]] = buffer["members"]
        return members

    def num_training(self, buffer: str) -> int:
        """How many members of `buffer` are there and get on."""
        rows = look_at(parse_place(self.name, None), buffer, "test", Deadline.after(TIMEOUT_S)).rows
        return sum(row.is_alive and row.progress.samples_per_s > 0 for row in rows)
