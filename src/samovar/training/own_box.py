"""The box that a run makes for itself: the launcher keeps its memory, ranks come and go."""

from collections.abc import Callable, Sequence

from samovar.box.base import Center
from samovar.box.board import Board
from samovar.box.mapped import MappedCenter, fill_center, is_filled
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, RankFailed
from samovar.core.layout import Layout
from samovar.membership.members import OwnMembers
from samovar.membership.progress_table import ProgressTable
from samovar.strategies.box_terms import MEAN, BoxWord, Readiness
from samovar.strategies.center_steps import CenterSeat
from samovar.strategies.config import StrategyConfig
from samovar.training.context import RankContext
from samovar.training.evaluated import CenterWeights

_POLL_S = 0.002


class OwnBox:
    """See `CenterBox`. A rank stands in the row of its number; the run starts at `first_step`; `seen(center)` is what
    strategies get as the center.

    Raises SamovarError where an earlier process of this rank still lives.
    """

    order_index = None
    transports = frozenset({"shm"})

    def __init__(
        self,
        context: RankContext,
        first_step: int = 0,
        seen: Callable[[MappedCenter], Center] = lambda center: center,
    ) -> None:
        assert context.box is not None
        self._context, self.first_step, self._seen = context, first_step, seen
        self._board = Board(context.box.board)
        self.goes_on = context.life > 0
        self._member = self._board.join(context.transport.group.rank)
        self._center: MappedCenter | None = None
        self._crew: ProgressTable | None = None

    @property
    def crew(self) -> ProgressTable:
        assert self._crew is not None, "evaluated comes first"
        return self._crew

    def seat(self, strategy: StrategyConfig, layout: Layout) -> CenterSeat:
        """Rank 0 makes the center the first time; the others wait until it `is_filled`."""
        assert self._context.box is not None
        is_first = self._context.is_first and not self._is_filled
        if is_first:
            self._fill(strategy, layout.num_elements)
        else:
            self._wait_until_filled()
        self._center = MappedCenter(self._context.box.center, self._member)
        return CenterSeat(self._seen(self._center), is_first, life=self._context.life)

    def is_filled(self) -> None:
        if self._context.is_first:
            self._board.set_word(BoxWord.IS_READY, Readiness.FILLED)

    def lock_wait_s(self) -> float:
        assert self._center is not None
        return self._center.lock_wait_s

    def evaluated(
        self, weights: FlatBuffer, statistics: Sequence[str], deadline: Callable[[], Deadline]
    ) -> CenterWeights:
        assert self._context.box is not None
        transport, is_gone, rule = self._context.transport, self._context.is_gone, self._context.config.stop_rule
        world_size = transport.group.world_size
        members = OwnMembers(self._board, self._member, world_size, is_gone, rule or MEAN, self.first_step)
        num_statistics = sum(weights.view(name).numel() for name in statistics)
        self._crew = ProgressTable(transport, members, is_gone, self.first_step, num_statistics)
        center = MappedCenter(self._context.box.center)
        evaluated = CenterWeights(center, center.with_velocity, weights, statistics, self._crew, deadline)
        if self.goes_on:
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
                with_velocity=strategy.traits.has_velocity,
                with_locks=strategy.traits.has_locks,
            )

    def _wait_until_filled(self) -> None:
        timeout_s, is_gone = self._context.config.timeout_s, self._context.is_gone
        if not polled(lambda: self._is_filled or is_gone(0), Deadline.after(timeout_s), _POLL_S):
            raise DeadlineExceeded(
                f"rank 0 did not give the center its weights within {timeout_s:g} s; see its log, or raise --timeout"
            )
        if not self._is_filled:
            raise RankFailed("the center gets no first weights: rank 0 is gone for good; see its log")

    @property
    def _is_filled(self) -> bool:
        return self._board.word(BoxWord.IS_READY) == Readiness.FILLED
