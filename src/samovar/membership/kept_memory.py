"""Memory for a center, which a launcher keeps for ranks that it starts again."""

import os
from collections.abc import Mapping
from contextlib import ExitStack

from samovar.box.board import Board, create_board
from samovar.box.buffers import new_token
from samovar.box.job_server import served
from samovar.core.closing import Closing
from samovar.core.group import Group
from samovar.core.host import create_empty
from samovar.strategies.box_terms import BoxWord, Readiness
from samovar.transports.keys import Key
from samovar.transports.secure import Address
from samovar.transports.tcp import TcpTransport
from samovar.transports.tcp_listen import address_of, listen
from samovar.transports.tcp_service import TcpConfig


class KeptMemory(Closing):
    """The board of `num_ranks` ranks and an empty file, of which rank 0 makes the center. Use as a context manager.

    Ranks inherit the descriptors `files`, and find them by `variables`.
    """

    def __init__(self, num_ranks: int) -> None:
        self._board = create_board(num_ranks)
        try:
            self._center = create_empty()
        except BaseException:
            os.close(self._board)
            raise
        self._rows = Board(self._board)

    def close(self) -> None:
        for descriptor in self.files:
            os.close(descriptor)

    @property
    def files(self) -> tuple[int, int]:
        return self._board, self._center

    @property
    def variables(self) -> Mapping[str, str]:
        return {"SAMOVAR_BOARD_FD": str(self._board), "SAMOVAR_CENTER_FD": str(self._center)}

    def ended(self, _end: object) -> None:
        """Do nothing: the others see its row."""

    def is_filled(self) -> bool:
        """Whether the center has its first weights."""
        return self._rows.word(BoxWord.IS_READY) == Readiness.FILLED


class ServedMemory(KeptMemory):
    """The same, served to ranks of other hosts with the job's `key`, by threads of this process.

    At the second of the `places` are windows that outlive their ranks (`samovar.transports.hosts.LastingTransport`).
    A rank that was started again connects again. A member that is silent for `timeout_s` loses its place.
    """

    def __init__(self, num_ranks: int, job: str, address: str, key: Key, timeout_s: float) -> None:
        super().__init__(num_ranks)
        board, center = self.files
        self._rows.claim_token(new_token())
        with ExitStack() as closing:
            closing.callback(super().close)
            sockets = [closing.enter_context(listen(address)) for _ in range(2)]
            self.places: tuple[Address, ...] = tuple(map(address_of, sockets))
            closing.enter_context(served(sockets[0], key, os.dup(center), os.dup(board), timeout_s))
            config = TcpConfig(job, timeout_s, peers_return=True)
            own = Group(num_ranks, num_ranks + 1)
            windows = TcpTransport(own, config, key, sockets[1], [self.places[1]] * own.world_size)
            closing.callback(windows.close)
            self._closing = closing.pop_all()

    def close(self) -> None:
        self._closing.close()
