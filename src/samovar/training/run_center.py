"""The center of a training run as one rank uses it: the run's own, or a buffer of a box at which several train."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import numpy as np

from samovar.box.base import Center
from samovar.box.board import MAX_MEMBERS, Board, MemberProgress
from samovar.box.buffers import BufferShape
from samovar.box.endpoints import drop_command, parse_endpoints, there_already
from samovar.box.joining import Endpoint
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, SamovarError
from samovar.core.layout import Layout
from samovar.membership.job_center import WindowsCenter
from samovar.membership.members import BoxMembers, Headcount, LaunchMembers, Members, RunSteps
from samovar.membership.progress_table import ProgressTable
from samovar.membership.ranks import LaunchRanks
from samovar.membership.session import BoxCenter, LaunchCenter, ServedCenter, Session
from samovar.membership.statistics import NUM_MARKS, ShownStatistics
from samovar.strategies.base import CenterSeat
from samovar.strategies.box_terms import MEAN, BoxWord, Terms, raise_goal
from samovar.training.context import RankContext
from samovar.training.evaluation import CenterWeights, StatisticViews
from samovar.training.ordered_centers import Order
from samovar.transports.base import Region
from samovar.transports.looking import LookingTransport

# A board on this host costs microseconds, one elsewhere a round trip.
_LOOK_EVERY_S: Final = 0.02
_LOOK_FAR_EVERY_S: Final = 0.2


class RunCenter:
    """This rank's session at the center, and the progress that workers of its launch share.

    The run starts at `first_step`, and this launch ends at step `goal`. `order` may watch the strategy's use of the
    center. `stack` gives the seat back. Raises SamovarError.
    """

    def __init__(
        self,
        context: RankContext,
        layout: Layout,
        first_step: int,
        goal: int,
        stack: ExitStack,
        order: Order | None = None,
    ) -> None:
        config, transport = context.config, context.transport
        self._context, self._layout, self._goal = context, layout, goal
        self._ranks = LaunchRanks(context.lasting, context.is_gone)
        self._terms = Terms.of(config.strategy, layout)
        self._own_first_step = first_step
        self._place = self._center_place()
        self._session = Session(
            self._place,
            self._ranks,
            self._shape(),
            partial(Deadline.after, config.timeout_s),
            self._admitted,
            joins=config.join,
            life=context.life,
        )
        stack.callback(self._leave)
        seat = self._session.seat
        self._center: Center = (order or Order()).seen(seat.center)
        self._members = self._all_members()
        own_host = config.host_of(transport.group.rank).ranks
        self.table = ProgressTable(context.lasting, self._members, context.is_gone, self._session.start_step, own_host)
        if not isinstance(self._place, BoxCenter):  # one that comes back, and dies before it trains, keeps its steps
            self._members.post(MemberProgress(steps=self.table.earlier_steps()))
        self.headcount = Headcount(self._members, transport.group.world_size)

    @property
    def goes_on(self) -> bool:
        """Whether this rank starts from the center: it was started again, or joins others."""
        return self._session.goes_on

    @property
    def first_step(self) -> int:
        """The step from which this launch trains."""
        return self._ranks.first_step

    @property
    def order_index(self) -> int | None:
        """The number that gives this rank its own order of all data; None if ranks share one order."""
        return self._session.seat.member.index if isinstance(self._place, BoxCenter) else None

    @property
    def transports(self) -> frozenset[str]:
        """The ways of this rank to the center: "shm" if it maps a box, "tcp" for one over the network, or a library."""
        if isinstance(self._place, WindowsCenter):
            return frozenset({self._context.config.transport})
        if self._context.config.hosts is not None:
            return frozenset({"shm", "tcp"})
        return self._place.places.transports if isinstance(self._place, BoxCenter) else frozenset({"shm"})

    def seat(self) -> CenterSeat:
        """The seat for the strategy."""
        return self._session.center_seat(self._center)

    def filled(self) -> None:
        """The center holds the first weights when this returns. The rank that fills it has made its strategy before.

        Others wait only now: they made theirs together with that rank, in windows that all open.
        """
        if self._session.fills:
            self._session.filled()
        else:
            self._session.await_filled()

    def lock_wait_s(self) -> float:
        """The seconds that this rank has lost to others at the center."""
        return self._session.seat.center.lock_wait_s

    def evaluated(
        self, weights: FlatBuffer, last: FlatBuffer, statistics: Sequence[str], deadline: Callable[[], Deadline]
    ) -> CenterWeights:
        """The center for tests and snapshots, with the statistics that an earlier life of this rank showed.

        `last` are the weights of the last exchange, if `weights` are on a device.
        """
        views, group = StatisticViews(weights, statistics), self._context.transport.group
        size = views.num_elements + NUM_MARKS
        window = self._context.lasting.open_window("statistics", 4 * size, 0)
        shown = ShownStatistics(Region.of(window, 0, size, np.float32), range(group.world_size))
        seat = self._session.seat
        evaluated = CenterWeights(seat.center, seat.shape.with_velocity, weights, last, views, shown, deadline)
        if self._session.had_seat:
            evaluated.take_statistics()
        return evaluated

    def _shape(self) -> BufferShape:
        config, size = self._context.config, self._layout.num_elements
        max_members = self._ranks.world_size if config.box is None else MAX_MEMBERS
        return BufferShape(size, max_members, config.strategy.traits.has_velocity, config.strategy.traits.has_locks)

    def _center_place(self) -> BoxCenter | LaunchCenter | ServedCenter | WindowsCenter:
        config, box, transport = self._context.config, self._context.box, self._context.transport
        if config.box is not None:
            return self._box_center()
        if config.hosts is not None and isinstance(transport, LookingTransport):
            return WindowsCenter(transport)
        if box is not None:
            return LaunchCenter(box.board, box.center)
        assert config.hosts is not None, "the center of one host is in the launcher's memory"
        return ServedCenter(Endpoint(None, config.hosts.home[0], self._context.key), config.timeout_s)

    def _box_center(self) -> BoxCenter:
        config = self._context.config
        assert config.box is not None
        assert config.buffer is not None
        places = parse_endpoints(config.box, config.key_file)
        way_out = f"raise --timeout, or delete the buffer with `{drop_command(places, config.buffer)}` and start again"
        who = f"rank {self._ranks.rank}"
        return BoxCenter(places, config.buffer, who, config.timeout_s, there_already, way_out)

    def _admitted(self, session: Session) -> int:
        """The step where this rank starts: the configured one, or that of the run that it joins on the same terms."""
        if not isinstance(self._place, BoxCenter):
            return self._own_first_step
        board = session.seat.board
        start_step = self._own_first_step
        if session.fills:
            self._terms.say(board)
            board.set_word(BoxWord.STEPS, start_step)
        elif session.goes_on:
            start_step = self._step_of_others(session)
        raise_goal(board, self._goal)
        return start_step

    def _step_of_others(self, session: Session) -> int:
        """The step of the run that this rank joins, once it has its weights; checks that the terms are the same."""
        where, found = str(self._place), session.seat.shape.num_elements
        if found != self._layout.num_elements:
            raise InputError(
                f"{where} holds {found:,} elements, but this net has {self._layout.num_elements:,}; train the same "
                "net, or give --buffer NAME"
            )
        session.await_filled()
        self._terms.require_same(session.seat.board, where)
        steps = session.seat.board.word(BoxWord.STEPS)
        if steps >= self._goal and not self._context.life:
            raise InputError(
                f"--join: the run at {where} has done {steps:,} steps, and this one ends at {self._goal:,}; raise "
                "--iterations"
            )
        return min(steps, self._goal)

    def _all_members(self) -> Members:
        seat, rule = self._session.seat, self._context.config.stop_rule or MEAN
        start_step, ranks = self._session.start_step, self._ranks
        if not isinstance(self._place, BoxCenter):
            every_s = 0.0 if isinstance(seat.board, Board) else _LOOK_FAR_EVERY_S
            common = (ranks.world_size, ranks.first_left, rule, start_step, every_s)
            return LaunchMembers(seat.board, seat.member, *common)
        every_s = _LOOK_FAR_EVERY_S if self._place.places.is_far else _LOOK_EVERY_S
        return BoxMembers(seat.board, seat.member, ranks.all, RunSteps(rule, start_step), self._goal, every_s)

    def _leave(self) -> None:
        """Give the seat back. If that fails, a box frees the place after a while; the center has all updates."""
        try:
            self._session.close()
        except SamovarError as error:
            self._context.tell("warning", f"{error}; this rank left without notice")
