"""Members of a buffer in a box that several launches train at: they come, leave and die, and the run goes on."""

import time
from collections.abc import Mapping

import numpy as np

from samovar.box.board import Member, MemberProgress, Row, Rows
from samovar.core.clock import Deadline
from samovar.strategies.box_terms import BoxWord, run_steps
from samovar.transports.base import Region, Transport


class RunSteps:
    """The steps of a run, by the stop rule `rule`, whoever comes and goes; from `first_step` on, never back.

    They are what the rule makes of the steps that the present members have done since one came or went last, beside
    those of the run until then. So one that leaves, with many steps or few, changes nothing that was.
    """

    def __init__(self, rule: str, first_step: int) -> None:
        self._rule = rule
        self._steps = self._base = first_step
        self._begun: dict[Member, int] = {}  # what each had done when the last one came or went
        self._seen: dict[Member, int] = {}

    def take(self, members: Mapping[Member, int], said: int) -> int:
        """`members` have done so many steps each, others say that the run has `said`; what it has."""
        since = {member: members.get(member, self._seen[member]) - begun for member, begun in self._begun.items()}
        order = sorted(since, key=_index)
        own = self._base + run_steps(self._rule, [since[member] for member in order], 0) if order else self._base
        self._steps = max(self._steps, said, own)
        if members.keys() != self._begun.keys():
            self._base = self._steps
            self._begun = {
                member: steps if member in self._begun else min(steps, self._steps) for member, steps in members.items()
            }
        self._seen = dict(members)
        return self._steps


class Seats:
    """Which member of the box each worker of a launch is, for all of them to see; over all its lives.

    A window of `transport`; all ranks must make it at the same place of their lives.
    """

    _NUM_WORDS = 4
    _INDEX, _INCARNATION, _FIRST_STEP, _IS_MAKER = range(_NUM_WORDS)

    def __init__(self, transport: Transport) -> None:
        self._window = transport.open_window("seats", 8 * self._NUM_WORDS, 0)
        self._own = Region.of(self._window, 0, self._NUM_WORDS, np.float64).array
        self._rank, self._world_size = transport.group.rank, transport.group.world_size

    @property
    def own(self) -> Member | None:
        """The member that this worker is, or an earlier life of it was."""
        return self.of(self._rank)

    @property
    def first_step(self) -> int:
        """Where the worker's first life began."""
        return int(self._own[self._FIRST_STEP])

    def take(self, member: Member, first_step: int) -> None:
        """This worker is that member now."""
        if self.own is None:
            self._own[self._FIRST_STEP] = first_step
        self._own[self._INDEX] = member.index
        self._own[self._INCARNATION] = member.incarnation

    def begin_to_make(self) -> bool:
        """This worker is about to make the buffer; whether an earlier life was already."""
        was_maker, self._own[self._IS_MAKER] = self._own[self._IS_MAKER] > 0, 1.0
        return bool(was_maker)

    def of(self, rank: int) -> Member | None:
        """None where that worker has not taken a seat yet."""
        words = np.empty_like(self._own)
        self._window.get(rank, 0, words)
        incarnation = int(words[self._INCARNATION])
        return Member(int(words[self._INDEX]), incarnation) if incarnation else None

    def all(self) -> list[Member]:
        """Those of the launch so far."""
        return [member for rank in range(self._world_size) if (member := self.of(rank)) is not None]


class BoxMembers:
    """See `samovar.membership.members.Members`; the board is looked at every `look_every_s` at most.

    In between, the steps of others are what they were; its own are what they are, so that a member alone ends with
    its last step. `goal` is the number of steps at which this launch ends.
    """

    def __init__(
        self, board: Rows, member: Member, seats: Seats, steps: RunSteps, goal: int, look_every_s: float
    ) -> None:
        self._board, self._member, self._seats = board, member, seats
        self._run, self._goal, self._every_s = steps, goal, look_every_s
        self._looked_s = self._posted_s = float("-inf")
        self._rows: dict[Member, Row] = {}
        self._own = MemberProgress()
        self._said = self._steps = 0

    @property
    def num_living(self) -> int:
        self._look()
        return max(1, len(self._living()))

    @property
    def leads(self) -> bool:
        self._look()
        living = self._living()
        return not living or min(living, key=_index) in self._seats.all()

    def run_steps(self) -> int:
        self._look()
        return self._steps

    def post(self, progress: MemberProgress) -> None:
        """As often as it is looked at; the last time at once."""
        self._own, now_s = progress, time.monotonic()
        if progress.finished or now_s - self._posted_s >= self._every_s:
            self._board.post(self._member, progress)
            self._posted_s = now_s

    def wait_for_others(self, deadline: Deadline) -> str:
        self._look(is_due=True)
        while missing := sorted(self._living().keys() - set(self._seats.all()), key=_index):
            if self._board.word(BoxWord.GOAL) > self._goal:  # they go on
                return ""
            if deadline.passed():
                return ", ".join(f"member {member.index}" for member in missing)
            time.sleep(self._every_s)
            self._look(is_due=True)
        return ""

    def _living(self) -> dict[Member, Row]:
        """Those that train."""
        rows = self._rows.items()
        return {member: row for member, row in rows if row.is_alive and not self._progress_in(row).finished}

    def _progress_in(self, row: Row) -> MemberProgress:
        return self._own if row.member == self._member else row.progress

    def _look(self, *, is_due: bool = False) -> None:
        now_s = time.monotonic()
        if is_due := is_due or now_s - self._looked_s >= self._every_s:
            self._looked_s = now_s
            self._rows = {row.member: row for row in self._board.rows()}
            self._said = self._board.word(BoxWord.STEPS)
        self._count()
        if is_due and self._steps > self._said:
            self._board.set_word(BoxWord.STEPS, self._steps)

    def _count(self) -> None:
        steps = {member: self._progress_in(row).steps for member, row in self._living().items()}
        told = {member: done for member, done in steps.items() if done > 0}  # others have not begun
        # Steps beyond this launch's end are nobody's unless others go on.
        self._steps = min(self._run.take(told, self._said), max(self._said, self._goal))


def _index(member: Member) -> int:
    return member.index
