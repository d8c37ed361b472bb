"""Who trains at a center: the workers of one launch, or of several that come and go."""

from collections.abc import Callable
from typing import Protocol

from samovar.box.board import Board, Member, MemberProgress
from samovar.core.clock import Deadline
from samovar.strategies.box_terms import run_steps


class Members(Protocol):
    """All who train at the center, as one worker sees them."""

    @property
    def num_living(self) -> int:
        """So many share the center now."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this launch has the master: it tests and saves during the run, for all."""
        ...

    def run_steps(self) -> int:
        """The steps of the run as a whole, by the stop rule."""
        ...

    def post(self, progress: MemberProgress) -> None:
        """Show the others how far this worker is."""
        ...

    def wait_for_others(self, deadline: Deadline) -> str:
        """Return when members of other launches that end with this one have finished, or the deadline has passed.

        Who was missing then, for people; else nothing.
        """
        ...


def first_left(world_size: int, is_gone: Callable[[int], bool], otherwise: int) -> int:
    """The first worker of a launch that is not gone; it acts for all."""
    return next((rank for rank in range(world_size) if not is_gone(rank)), otherwise)


class OwnMembers:
    """The workers of one launch at a center of its own: each stands in the board's row of its rank, all the time.

    `is_gone(rank)` tells what the launcher knows of the others; what a dead one leaves undone they do.
    """

    leads = True

    def __init__(
        self,
        board: Board,
        member: Member,
        world_size: int,
        is_gone: Callable[[int], bool],
        rule: str,
        first_step: int,
    ) -> None:
        self.num_living = world_size
        self._board, self._member, self._is_gone = board, member, is_gone
        self._rule, self._first_step = rule, first_step

    def run_steps(self) -> int:
        master = first_left(self.num_living, self._is_gone, self._member.index)
        progresses = (self._board.row(rank).progress for rank in range(self.num_living))
        return run_steps(self._rule, [max(progress.steps, self._first_step) for progress in progresses], master)

    def post(self, progress: MemberProgress) -> None:
        self._board.post(self._member, progress)

    def wait_for_others(self, _deadline: Deadline) -> str:
        return ""
