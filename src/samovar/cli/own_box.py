"""The box that a run makes for itself: the launcher keeps its memory, ranks come and go."""

import time
from collections.abc import Callable, Sequence

from samovar.box.base import Center
from samovar.box.board import Board
from samovar.box.mapped import MappedCenter, fill_center, is_filled
from samovar.cli.rank_process import RankContext
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.strategies.center_steps import CenterSeat
from samovar.strategies.config import StrategyConfig
from samovar.strategies.stop_rule import MEAN
from samovar.worker.crew import Crew
from samovar.worker.free_evaluated import CenterWeights

_IS_READY_WORD = 0  # of the board: 1 when the center holds the weights that the run starts from
_POLL_S = 0.002


class OwnBox:
    """Board and center as this rank sees them; it stands in the row of its number. The run starts at `first_step`;
    `seen(center)` is what strategies get as the center.

    `is_back`: an earlier process of this rank has been here. Raises SamovarError where it still lives.
    """

    def __init__(
        self,
        context: RankContext,
        first_step: int = 0,
        seen: Callable[[MappedCenter], Center] = lambda center: center,
    ) -> None:
        assert context.box is not None
        self._context, self._first_step, self._seen = context, first_step, seen
        self._board = Board(context.box.board)
        row = self._board.row(context.transport.group.rank)
        self.is_back, self._earlier = row.member.incarnation > 0, row.progress
        self._member = self._board.join(context.transport.group.rank)
        self._center: MappedCenter | None = None
        self.crew: Crew | None = None

    def seat(self, strategy: StrategyConfig, num_elements: int) -> CenterSeat:
        """This rank's access to the center, which rank 0 makes the first time; the others wait until it `is_filled`."""
        assert self._context.box is not None
        is_first = self._context.is_first and not self._board.word(_IS_READY_WORD)
        if is_first:
            self._fill(strategy, num_elements)
        else:
            self._wait_until_filled()
        self._center = MappedCenter(self._context.box.center, self._member)
        return CenterSeat(self._seen(self._center), is_first)

    def is_filled(self) -> None:
        """Rank 0 says: the center holds what the run starts from."""
        if self._context.is_first:
            self._board.set_word(_IS_READY_WORD, 1)

    def lock_wait_s(self) -> float:
        """What this rank lost to others at the center so far."""
        assert self._center is not None
        return self._center.lock_wait_s

    def evaluated(
        self, weights: FlatBuffer, statistics: Sequence[str], deadline: Callable[[], Deadline]
    ) -> CenterWeights:
        """The center for tests and snapshots while others go on; gives the rank its crew."""
        assert self._context.box is not None
        config = self._context.config
        num_statistics = sum(weights.view(name).numel() for name in statistics)
        self.crew = Crew(
            self._context.transport,
            self._board,
            self._member,
            self._context.is_gone,
            config.stop_rule or MEAN,
            self._first_step,
            num_statistics,
            self._earlier,
        )
        evaluated = CenterWeights(MappedCenter(self._context.box.center), weights, statistics, self.crew, deadline)
        if self.is_back:
            evaluated.take_statistics()
        return evaluated

    def _fill(self, strategy: StrategyConfig, num_elements: int) -> None:
        """Make the center, if an earlier life of rank 0 did not come that far."""
        assert self._context.box is not None
        descriptor = self._context.box.center
        if not is_filled(descriptor):
            fill_center(
                descriptor,
                num_elements,
                max_members=self._context.transport.group.world_size,
                with_velocity=strategy.center_has_velocity,
                with_locks=strategy.center_has_locks,
            )

    def _wait_until_filled(self) -> None:
        deadline = Deadline.after(self._context.config.timeout_s)
        while not self._board.word(_IS_READY_WORD):
            if deadline.passed():
                raise DeadlineExceeded(
                    f"rank 0 did not give the center its weights within {self._context.config.timeout_s:g} s; "
                    "see its log, or raise --timeout"
                )
            time.sleep(_POLL_S)
