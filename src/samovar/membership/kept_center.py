"""The center that `samovar run --keep-going` keeps, so that ranks find it when they are started again."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from samovar.box.board import Member, Rows
from samovar.box.buffers import BufferShape
from samovar.box.joining import BoxSeat
from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.membership.ranks import JobRanks, Ranks
from samovar.membership.session import LaunchCenter


class KeptCenter(LaunchCenter):
    """The one center of the job. `life` counts how often this rank was started again."""

    def __init__(self, board: int, center: int, life: int) -> None:
        super().__init__(board, center)
        self.life = life
        self._is_taken = False

    def seat(self, ranks: Ranks, shape: BufferShape, deadline: Deadline, *, joins: bool) -> BoxSeat:
        """Raises InputError if this process has had the center before."""
        if self._is_taken:
            raise InputError(
                "replicate: samovar run --keep-going keeps one center, and this process has it already; make one "
                "replica at a center, or start without --keep-going"
            )
        self._is_taken = True
        return super().seat(ranks, shape, deadline, joins=joins)


class KeptRanks(JobRanks):
    """The ranks of such a job: each has the board's row of its number, over all its lives.

    At the start all wait for all. A rank that is started again is not awaited, and does not wait for others.
    """

    def __init__(self, collectives: Collectives, deadline: Callable[[], Deadline], life: int) -> None:
        super().__init__(collectives, deadline)
        self.board: Rows | None = None
        self._life = life

    def show(self, *row: float) -> npt.NDArray[np.float64]:
        return np.zeros((self.world_size, self._NUM_FIELDS)) if self._life else super().show(*row)

    def all(self) -> list[Member]:
        """The members that the ranks are now."""
        board = self.board
        return [] if board is None else [board.row(rank).member for rank in range(self.world_size)]
