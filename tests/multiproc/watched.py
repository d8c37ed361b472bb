"""The board and the center of a run as they are in memory, seen past all that the run tells."""

import os
import re
from types import TracebackType

import numpy as np

from samovar.box.base import Versions
from samovar.box.board import Board, MemberProgress
from samovar.box.mapped import MappedCenter
from samovar.core.clock import Deadline
from tests.multiproc.command import TIMEOUT_S, Command

_DESCRIPTOR = r"--{}=(\d+)"


class WatchedBox:
    """The box of a running run; its last values can still be read after the end of the run."""

    def __init__(self, command: Command) -> None:
        words = " ".join(command.wait_for_rank(0).cmdline())
        self._descriptors = {name: _opened(command, name, words) for name in ("board", "center")}
        self._board = Board(self._descriptors["board"])

    def __enter__(self) -> "WatchedBox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def progress(self, rank: int) -> MemberProgress:
        """The last post of the rank."""
        return self._board.row(rank).progress

    def steps(self, rank: int) -> int:
        return self.progress(rank).steps

    def versions(self) -> Versions:
        """How often each chunk of the center has been changed."""
        with MappedCenter(self._descriptors["center"]) as center:
            return center.read(np.empty(center.num_elements, np.float32), Deadline.after(TIMEOUT_S))


def _opened(command: Command, name: str, words: str) -> int:
    """A descriptor of the launcher's memory of that name."""
    found = re.search(_DESCRIPTOR.format(name), words)
    assert found, words
    return os.open(f"/proc/{command.process.pid}/fd/{found[1]}", os.O_RDWR)
