"""The box of its own process, or several, that a run trains at, alone or with others (`samovar train --box`)."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from samovar.box.buffers import BufferShape
from samovar.box.endpoints import create_parts, drop_parts, parse_places, take_parts
from samovar.box.joining import BoxSeat
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.core.layout import Layout
from samovar.frontends.caffe.solver import CaffeSolver
from samovar.launcher.box_plan import drop_command, there_already
from samovar.membership.box_members import BoxMembers, RunSteps, Seats
from samovar.membership.members import first_left
from samovar.membership.progress_table import ProgressTable
from samovar.report.records import Notice
from samovar.strategies.box_terms import MEAN, BoxWord, Readiness, Terms
from samovar.strategies.center_steps import CenterSeat
from samovar.strategies.config import StrategyConfig
from samovar.training.context import RankContext
from samovar.training.evaluated import CenterWeights
from samovar.training.schedule import num_steps_of

# A board on this host costs microseconds, one elsewhere a round trip.
_LOOK_EVERY_S: Final = 0.02
_LOOK_FAR_EVERY_S: Final = 0.2
_POLL_S: Final = 0.02
_DROP_S: Final = 5.0


class JoinedBox:
    """See `samovar.training.center_box.CenterBox`; this rank's seat at the buffer, which `stack` gives back.

    Without --join rank 0 makes the buffer and fills it with what the run starts from, at `first_step`; with it, or when
    they were started again, all ranks start from what is learned, where the run is now. Each rank takes the first row
    that is free, or again the one of its earlier life. Raises InputError where the buffer is not what the flags say,
    RankFailed where nobody is left to fill it.
    """

    def __init__(
        self, context: RankContext, caffe: CaffeSolver, layout: Layout, first_step: int, stack: contextlib.ExitStack
    ) -> None:
        config = context.config
        assert config.box is not None
        assert config.buffer is not None
        self._context, self._name = context, config.buffer
        self._places = parse_places(config.box, config.key_file)
        self._goal = num_steps_of(config, caffe)
        self._terms = Terms.of(config.strategy, layout)
        self._seats = Seats(context.transport)
        self._opened: BoxSeat | None = None
        self._is_to_fill = False
        stack.callback(self._drop_unfilled)
        # The same for all of a group, which comes back together, wherever each of them was.
        self.goes_on = config.join or context.life > 0
        self._had_seat = self._seats.own is not None
        if not (config.join or self._had_seat):
            self._make(_shape_for(config.strategy, layout))
        self._opened = self._take_seat(stack)
        self._is_to_fill = not config.join and context.is_first and not self._is_filled
        is_behind_others = self.goes_on and not self._is_to_fill
        self._start_step = self._step_of_others(layout) if is_behind_others else first_step
        if self._seat.board.word(BoxWord.GOAL) < self._goal:
            self._seat.board.set_word(BoxWord.GOAL, self._goal)
        self._seats.take(self._seat.member, self._start_step)
        self._crew: ProgressTable | None = None

    @property
    def first_step(self) -> int:
        return self._seats.first_step

    @property
    def order_index(self) -> int:
        return self._seat.member.index

    @property
    def transports(self) -> frozenset[str]:
        return self._places.transports

    @property
    def crew(self) -> ProgressTable:
        assert self._crew is not None, "evaluated comes first"
        return self._crew

    def seat(self, _strategy: StrategyConfig, _layout: Layout) -> CenterSeat:
        if self._is_to_fill:
            self._terms.say(self._seat.board)
            self._seat.board.set_word(BoxWord.STEPS, self._start_step)
        else:
            self._wait_until_filled()
        return CenterSeat(self._seat.center, self._is_to_fill, life=self._context.life)

    def is_filled(self) -> None:
        if self._is_to_fill:
            self._seat.board.set_word(BoxWord.IS_READY, Readiness.FILLED)
            self._is_to_fill = False

    def lock_wait_s(self) -> float:
        return self._seat.center.lock_wait_s

    def evaluated(
        self, weights: FlatBuffer, statistics: Sequence[str], deadline: Callable[[], Deadline]
    ) -> CenterWeights:
        context, seat = self._context, self._seat
        steps = RunSteps(context.config.stop_rule or MEAN, self._start_step)
        every_s = _LOOK_FAR_EVERY_S if self._places.is_far else _LOOK_EVERY_S
        members = BoxMembers(seat.board, seat.member, self._seats, steps, self._goal, every_s)
        num_statistics = sum(weights.view(name).numel() for name in statistics)
        self._crew = ProgressTable(context.transport, members, context.is_gone, self._start_step, num_statistics)
        evaluated = CenterWeights(seat.center, seat.shape.with_velocity, weights, statistics, self._crew, deadline)
        if self._had_seat:
            evaluated.take_statistics()
        return evaluated

    @property
    def _seat(self) -> BoxSeat:
        assert self._opened is not None, "the seat is taken first"
        return self._opened

    @property
    def _where(self) -> str:
        return f"buffer {self._name!r} of {self._places}"

    @property
    def _who(self) -> str:
        return f"rank {self._context.transport.group.rank}"

    @property
    def _deadline(self) -> Deadline:
        return Deadline.after(self._context.config.timeout_s)

    @property
    def _is_filled(self) -> bool:
        return self._seat.board.word(BoxWord.IS_READY) == Readiness.FILLED

    def _make(self, shape: BufferShape) -> None:
        """Rank 0 makes the buffer, unless an earlier life has; the others wait for its seat."""
        if not self._context.is_first:
            self._wait(lambda: self._seats.of(0) is not None, "rank 0 did not take its seat")
            return
        was_making = self._seats.begin_to_make()
        there = create_parts(self._places, self._name, shape, self._who, self._deadline, goes_on=was_making)
        if there is not None:
            raise InputError(there_already(there, self._name))
        self._is_to_fill = True

    def _drop_unfilled(self) -> None:
        """A run that cannot begin leaves no buffer behind for which others would wait."""
        if self._is_to_fill:
            with contextlib.suppress(SamovarError):
                drop_parts(self._places, self._name, self._who, Deadline.after(_DROP_S))

    def _take_seat(self, stack: contextlib.ExitStack) -> BoxSeat:
        """The row of this rank's earlier life, where it has one and nobody else has it; else any."""
        deadline, timeout_s = self._deadline, self._context.config.timeout_s
        take = partial(take_parts, self._places, self._name, self._who, deadline, timeout_s=timeout_s)
        earlier = self._seats.own
        try:
            try:
                seat = take(index=None if earlier is None else earlier.index)
            except RankFailed:
                seat = take()
        except InputError as error:
            if earlier is None:
                raise
            raise RankFailed(f"{error}; this rank cannot come back") from error  # which concerns no other rank
        stack.callback(self._leave, seat)
        return seat

    def _leave(self, seat: BoxSeat) -> None:
        """What this rank learned is in the center by now; without its word the box gives up its place after a while."""
        try:
            if self._is_to_fill:
                seat.board.set_word(BoxWord.IS_READY, Readiness.GIVEN_UP)
            seat.close()
        except SamovarError as error:
            self._context.writer.write(Notice(level="warning", text=f"{error}; this rank left without a word"))

    def _step_of_others(self, layout: Layout) -> int:
        """Where the run is that this rank joins, when it is there and by the same terms."""
        if self._seat.shape.num_elements != layout.num_elements:
            raise InputError(
                f"{self._where} holds {self._seat.shape.num_elements:,} elements, and this net has "
                f"{layout.num_elements:,}; train its net, or give --buffer NAME"
            )
        self._wait_until_filled()
        self._terms.require_same(self._seat.board, self._where)
        steps = self._seat.board.word(BoxWord.STEPS)
        if steps >= self._goal and not self._context.life:
            raise InputError(
                f"--join: the run at {self._where} has {steps:,} steps behind it, and this one ends at "
                f"{self._goal:,}; raise --iterations"
            )
        return steps

    def _wait_until_filled(self) -> None:
        self._wait(
            lambda: self._is_filled, f"{self._where} did not get its first weights; is its first run still starting?"
        )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        if not polled(lambda: condition() or self._is_given_up, self._deadline, _POLL_S):
            raise DeadlineExceeded(
                f"{what} ({self._context.config.timeout_s:g} s waited; raise --timeout, or delete the buffer with "
                f"`{drop_command(self._places, self._name)}`, and start anew)"
            )
        if not condition():
            self._take_over()
            raise RankFailed(f"{self._where} gets no first weights: the rank that was to give it some is gone for good")

    @property
    def _is_given_up(self) -> bool:
        """Whether the rank that fills the buffer is gone: the first of this launch, or that of the one to join."""
        if not self._context.config.join and self._context.is_gone(0):
            return True
        return self._opened is not None and self._seat.board.word(BoxWord.IS_READY) == Readiness.GIVEN_UP

    def _take_over(self) -> None:
        """What a dead first rank cannot do, the first that is left does: see `_drop_unfilled`.

        It needs a seat for that: else the buffer may be another run's, which rank 0 did not live to find there.
        """
        context = self._context
        rank, world_size = context.transport.group.rank, context.transport.group.world_size
        is_first = not context.config.join and rank == first_left(world_size, context.is_gone, rank)
        self._is_to_fill = is_first and self._opened is not None


def _shape_for(strategy: StrategyConfig, layout: Layout) -> BufferShape:
    return BufferShape(
        layout.num_elements, with_velocity=strategy.traits.has_velocity, with_locks=strategy.traits.has_locks
    )
