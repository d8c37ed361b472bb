"""A rank's membership at a center: it takes a seat, fills the center or waits for that, leaves, and comes back."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

from samovar.box.base import Center
from samovar.box.board import Board
from samovar.box.buffers import BufferShape
from samovar.box.endpoints import Endpoints, create_shards, drop_shards, take_shards
from samovar.box.job_server import BUFFER
from samovar.box.joining import BoxSeat, Endpoint, take_seat
from samovar.box.mapped import MappedCenter, fill_center, is_filled
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.membership.ranks import Ranks
from samovar.strategies.base import CenterSeat
from samovar.strategies.box_terms import BoxWord, Readiness, say_filled

_POLL_S = 0.002
_DROP_S = 5.0


class CenterPlace(Protocol):
    """The place of a center, and the way of a rank to it: each kind has ranks of its own."""

    def __str__(self) -> str:
        """Its name, to be read in the middle of a sentence."""

    @property
    def way_out(self) -> str:
        """The advice for a user if the center never gets its first weights."""

    def seat(self, ranks: Any, shape: BufferShape, deadline: Deadline, /, *, joins: bool) -> BoxSeat:
        """Take this rank's seat. Rank 0 makes the center first, unless it `joins` one, or an earlier life made it.

        Raises InputError if the center cannot be used, RankFailed if the rank that makes it is gone for good.
        """

    def drop(self) -> None:
        """Delete a center that will never be filled: others would wait for it."""


class OwnCenter:
    """The base of centers that a launch or a job has for itself. They go with it."""

    way_out = "see the logs of the other ranks"

    def __str__(self) -> str:
        return "the center"

    def drop(self) -> None:
        """It goes with those who made it."""


class LaunchCenter(OwnCenter):
    """A center in memory that the launcher keeps for ranks that are started again: descriptors of board and center."""

    way_out = "see its log, or raise --timeout, in a script timeout_s"

    def __init__(self, board: int, center: int) -> None:
        self._board, self._center = board, center

    def seat(self, ranks: Ranks, shape: BufferShape, deadline: Deadline, *, joins: bool) -> BoxSeat:
        """Take the seat in the row of the rank's number. Raises RankFailed if its earlier process still lives."""
        assert not joins, "a launch joins a box"
        board = Board(self._board)
        member = board.join(ranks.rank)
        if ranks.rank == 0 and not is_filled(self._center):
            fill_center(self._center, shape.num_elements, shape.max_members, shape.with_velocity, shape.with_locks)
        if not polled(lambda: is_filled(self._center) or ranks.is_gone(0), deadline, _POLL_S):
            raise DeadlineExceeded(f"rank 0 did not make the center; {self.way_out}")
        if not is_filled(self._center):
            raise RankFailed(_no_weights(self))
        center = MappedCenter(self._center, member)
        # No rank leaves: its row shows its work to the end of the run.
        return BoxSeat(center, board, member, BufferShape.of_mapped(center), lambda: None)


class KeptCenter(LaunchCenter):
    """The center that `samovar run --keep-going` keeps. `life` counts how often this rank was started again."""

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


class ServedCenter(LaunchCenter):
    """The same center for a rank of another host, to which host 0's launcher serves it at `place`."""

    def __init__(self, place: Endpoint, timeout_s: float) -> None:
        self._place, self._timeout_s = place, timeout_s

    def seat(self, ranks: Ranks, _shape: BufferShape, deadline: Deadline, *, joins: bool) -> BoxSeat:
        """Take the seat in the row of the rank's number, once rank 0 has made the center."""
        assert not joins, "a launch joins a box"
        _await_first(self, ranks, deadline)
        return take_seat(self._place, BUFFER, f"rank {ranks.rank}", deadline, ranks.rank, self._timeout_s)


class BoxCenter:
    """A buffer of one or more boxes that runs join and leave. Boxes name this rank `who` in their messages."""

    def __init__(
        self,
        places: Endpoints,
        name: str,
        who: str,
        timeout_s: float,
        there_already: Callable[[Endpoint, str], str],
        way_out: str,
    ) -> None:
        self.places = places
        self.way_out = way_out
        self._name, self._who, self._timeout_s = name, who, timeout_s
        self._there_already = there_already

    def __str__(self) -> str:
        return f"buffer {self._name!r} of {self.places}"

    def seat(self, ranks: Ranks, shape: BufferShape, deadline: Deadline, *, joins: bool) -> BoxSeat:
        """Take the seat of this rank's earlier life if it is free, else any seat."""
        earlier = ranks.own
        if earlier is not None:
            try:
                return self._take_again(earlier.index, deadline)
            except InputError as error:
                raise RankFailed(f"{error}; this rank cannot come back") from error  # which concerns no other rank
        if joins:
            return self._take(None, deadline)
        self._make(ranks, shape, deadline)
        try:
            return self._take(None, deadline)
        except SamovarError:
            if ranks.rank == 0:
                self.drop()
            raise

    def drop(self) -> None:
        with contextlib.suppress(SamovarError):
            drop_shards(self.places, self._name, self._who, Deadline.after(_DROP_S))

    def _make(self, ranks: Ranks, shape: BufferShape, deadline: Deadline) -> None:
        """Make the buffer on rank 0; wait for its seat on the others."""
        if ranks.rank == 0:
            goes_on = ranks.begins_again()
            there = create_shards(self.places, self._name, shape, self._who, deadline, goes_on=goes_on)
            if there is not None:
                raise InputError(self._there_already(there, self._name))
        _await_first(self, ranks, deadline)

    def _take_again(self, index: int, deadline: Deadline) -> BoxSeat:
        try:
            return self._take(index, deadline)
        except RankFailed:
            return self._take(None, deadline)

    def _take(self, index: int | None, deadline: Deadline) -> BoxSeat:
        return take_shards(self.places, self._name, self._who, deadline, index, self._timeout_s)


class Session:
    """One rank's membership at the center `place`. `ranks` are those of its launch; every wait ends by `deadline()`.

    A rank that does not fill the center starts from the weights in it. `admit(session)` returns the step where it
    starts, or raises InputError if the center is not this run's. `life` counts how often the rank was started again.
    """

    def __init__(
        self,
        place: CenterPlace,
        ranks: Ranks,
        shape: BufferShape,
        deadline: Callable[[], Deadline],
        admit: Callable[["Session"], int],
        *,
        joins: bool = False,
        life: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.place = place
        self._sleep = sleep
        self._ranks, self._deadline, self._joins, self._life = ranks, deadline, joins, life
        # The same for all ranks of a group, which comes back together, even if they died at different places.
        self.goes_on = joins or life > 0
        self.had_seat = ranks.own is not None
        self.seat = place.seat(ranks, shape, deadline(), joins=joins)
        self.fills = not joins and ranks.rank == 0 and not self._is_filled
        try:
            self.start_step = admit(self)
            ranks.take(self.seat.member, self.start_step)
        except BaseException:
            with contextlib.suppress(SamovarError):
                self.close()
            raise

    def center_seat(self, center: Center, num_workers: int | None = None) -> CenterSeat:
        """The seat for the strategy, which writes the first weights if this rank fills the center.

        `center` is the seat's own, or one that watches it.
        """
        return CenterSeat(center, self.fills, num_workers, self._life)

    def filled(self) -> None:
        """Announce that the center holds the first weights, if this rank is the one that fills it."""
        if self.fills:
            say_filled(self.seat.board)
            self.fills = False

    def await_filled(self) -> None:
        """Wait for the first weights. Raises DeadlineExceeded, or RankFailed if no rank is left to fill the center."""
        deadline = self._deadline()
        waiting_s = deadline.remaining_s()
        if not polled(lambda: self._is_filled or self._is_given_up, deadline, _POLL_S, self._sleep):
            raise DeadlineExceeded(
                f"{self.place} did not get its first weights; is its first run still starting? "
                f"({waiting_s:g} s waited; {self.place.way_out})"
            )
        if not self._is_filled:
            # The first rank that is left deletes a center that the dead first rank did not fill.
            self.fills = not self._joins and self._ranks.rank == self._ranks.first_left()
            raise RankFailed(_no_weights(self.place))

    def close(self) -> None:
        """Give the seat back; the center has all that this rank learned. Delete a center that it did not fill."""
        gives_up = self.fills
        try:
            if gives_up:
                self.seat.board.set_word(BoxWord.IS_READY, Readiness.GIVEN_UP)
            self.seat.close()
        finally:
            if gives_up:
                self.place.drop()

    @property
    def _is_filled(self) -> bool:
        return self.seat.board.word(BoxWord.IS_READY) == Readiness.FILLED

    @property
    def _is_given_up(self) -> bool:
        """Whether the rank that fills the center is gone: the first of this launch, or of the launch to join."""
        if not self._joins and self._ranks.is_gone(0):
            return True
        return self.seat.board.word(BoxWord.IS_READY) == Readiness.GIVEN_UP


def _await_first(place: CenterPlace, ranks: Ranks, deadline: Deadline) -> None:
    if not ranks.await_first(deadline):
        raise DeadlineExceeded(f"rank 0 did not take its seat at {place}; {place.way_out}")
    if not ranks.is_first_there:
        raise RankFailed(_no_weights(place))


def _no_weights(place: object) -> str:
    return f"{place} gets no first weights: the rank that should write them has ended for good"
