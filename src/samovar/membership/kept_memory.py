"""Memory for a center, which a launcher keeps for ranks that it starts again."""

import os
from collections.abc import Mapping
from types import TracebackType

from samovar.box.board import Board, create_board
from samovar.core.host import create_empty
from samovar.strategies.box_terms import BoxWord, Readiness


class KeptMemory:
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

    def __enter__(self) -> "KeptMemory":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
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
