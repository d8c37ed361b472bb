"""The members that train at a center, from one launch or from several that come and go; the steps of their run."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from samovar.box.board import Member, MemberProgress, Row, Rows
from samovar.core.clock import Deadline
from samovar.strategies.box_terms import BoxWord, raise_goal, run_steps
from samovar.strategies.center_steps import CenterSteps

_END_POLL_S = 0.01


class LaunchMembers:
    """The workers of one launch at its own center: each always has the board's row of its rank.

    `first_left()` is the first rank that is not gone. The others do the work that a dead one leaves. A worker looks at
    the board and posts every `every_s` at most, and posts its end at once.
    """

    leads = True  # no other launch trains here

    def __init__(
        self,
        board: Rows,
        member: Member,
        world_size: int,
        first_left: Callable[[], int],
        rule: str,
        first_step: int,
        every_s: float = 0.0,
    ) -> None:
        self.num_living = world_size
        self._board, self._member, self._first_left = board, member, first_left
        self._rule, self._first_step, self._every_s = rule, first_step, every_s
        self._looked_s = self._posted_s = float("-inf")
        self._steps = first_step

    def run_steps(self) -> int:
        """The steps of the run as a whole, by the stop rule."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= self._every_s:
            self._looked_s = now_s
            shown = {row.member.index: row.progress.steps for row in self._board.rows()}
            steps = [max(shown.get(rank, 0), self._first_step) for rank in range(self.num_living)]
            # A worker that comes back shows none for a moment.
            self._steps = max(self._steps, run_steps(self._rule, steps, self._first_left()))
        return self._steps

    def post(self, progress: MemberProgress) -> None:
        """Show this worker's progress to the others."""
        now_s = time.monotonic()
        if progress.finished or now_s - self._posted_s >= self._every_s:
            self._posted_s = now_s
            self._board.post(self._member, progress)

    def wait_for_others(self, _deadline: Deadline) -> str:
        """No other launch trains here."""
        return ""


class RunSteps:
    """The steps of a run by the stop rule `rule`, while members come and go. They start at `first_step` and never fall.

    The rule counts the steps that the present members have done since a member last came or went. These are added to
    the steps of the run until then. So a member that leaves does not change the steps already counted.
    """

    def __init__(self, rule: str, first_step: int) -> None:
        self._rule = rule
        self._steps = self._base = first_step
        self._begun: dict[Member, int] = {}  # what each had done when the last one came or went
        self._seen: dict[Member, int] = {}

    def take(self, members: Mapping[Member, int], said: int) -> int:
        """Return the run's steps, from the steps of each of the `members`, and `said`, which others have counted."""
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


class BoxMembers:
    """Members of a buffer in a box, which come and go. This reads the board every `look_every_s` at most.

    In between it knows the others' steps of the last read, and its own steps as they are now. So a member alone ends
    with its last step. `goal` is the number of steps at which this launch ends, `of_launch()` gives its members.
    With `counts_ended` a member that ended in order is one of `num_living`: a center that followed the last worker
    alone would lose what the mean of all had learned.
    """

    def __init__(
        self,
        board: Rows,
        member: Member,
        of_launch: Callable[[], Sequence[Member]],
        steps: RunSteps,
        goal: int,
        look_every_s: float,
        *,
        counts_ended: bool = False,
    ) -> None:
        self._board, self._member, self._of_launch = board, member, of_launch
        self._counts_ended = counts_ended
        self._run, self._goal, self._every_s = steps, goal, look_every_s
        self._looked_s = self._posted_s = float("-inf")
        self._rows: dict[Member, Row] = {}
        self._own = MemberProgress()
        self._said = self._steps = 0

    @property
    def num_living(self) -> int:
        """The number of members that share the center now."""
        self._look()
        rows = self._rows.values() if self._counts_ended else ()
        ended = [row for row in rows if row.process_id == 0 or self._progress_in(row).finished]
        return max(1, len(self._living()) + len(ended))

    @property
    def leads(self) -> bool:
        """Whether this launch has the master: it tests and saves during the run, for all."""
        self._look()
        members = self._training() or self._living()
        return not members or min(members, key=_index) in self._of_launch()

    def run_steps(self) -> int:
        self._look()
        return self._steps

    @property
    def is_due(self) -> bool:
        """Whether it is time to show this member's progress to the others."""
        return time.monotonic() - self._posted_s >= self._every_s

    def post(self, progress: MemberProgress) -> None:
        """Post as often as the board is read; post the end, and a meeting, immediately."""
        is_news = progress.finished or progress.num_meetings > self._own.num_meetings
        self._own = progress
        if is_news or self.is_due:
            self._board.post(self._member, progress)
            self._posted_s = time.monotonic()

    def wait_for_others(self, deadline: Deadline) -> str:
        """Wait for members of other launches that end with this one, until the deadline at most.

        Returns the members that were still missing, as text; "" if none was.
        """
        self._look(is_due=True)
        while missing := sorted(self._training().keys() - set(self._of_launch()), key=_index):
            if self._board.word(BoxWord.GOAL) > self._goal:  # they continue
                return ""
            if deadline.passed():
                return ", ".join(f"member {member.index}" for member in missing)
            time.sleep(self._every_s)
            self._look(is_due=True)
        return ""

    def _training(self) -> dict[Member, Row]:
        """Those that have made a step: a program that only changes the buffer makes none."""
        return {member: row for member, row in self._living().items() if self._progress_in(row).steps > 0}

    def _living(self) -> dict[Member, Row]:
        """The members that share the center."""
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
            raise_goal(self._board, self._goal)  # a launch that joined at the same moment may have lowered it
        self._count()
        if is_due and self._steps > self._said:
            self._board.set_word(BoxWord.STEPS, self._steps)

    def _count(self) -> None:
        begun = {member: self._progress_in(row).steps for member, row in self._training().items()}
        # Steps beyond this launch's end count only if others continue.
        self._steps = min(self._run.take(begun, self._said), max(self._said, self._goal))


def _index(member: Member) -> int:
    return member.index


Members: TypeAlias = LaunchMembers | BoxMembers  # all that train at the center, as one worker sees them


class Headcount:
    """The number of members that share the center, as the strategy knows it: a default moving rate follows it.

    The center counts a group that steps together as one worker: `count` members make `num_pushers(count)` workers.
    """

    def __init__(self, members: Members, count: int, num_pushers: Callable[[int], int] = lambda count: count) -> None:
        self._members, self._num_pushers = members, num_pushers
        self.count = count

    def follow(self, strategy: CenterSteps, *, tells_before: bool = True) -> str:
        """A sentence for the user if members came or went since the last call; else ""."""
        now, before = self._members.num_living, self.count
        if now == before:
            return ""
        self.count = now
        strategy.resize(self._num_pushers(now))
        who = "1 worker trains" if now == 1 else f"{now} workers train"
        earlier = f", {before} did before" if tells_before else ""
        rate = f"; moving rate {strategy.moving_rate:.4g}" if strategy.moving_rate else ""
        return f"{who} at this center now{earlier}{rate}"


def still_lagging(
    lagging: Callable[[], Mapping[int, int]],
    deadline: Callable[[], Deadline],
    sleep: Callable[[float], None] = time.sleep,
) -> list[int]:
    """Wait until no rank lags: `lagging()` gives the ranks that do, with their steps.

    Returns the ranks that still lag when none of them has made a step for as long as a wait may last. It polls, since
    it happens only at the start and the end of a run.
    """
    seen, until = lagging(), deadline()
    while now := lagging():
        if now != seen:
            seen, until = now, deadline()
        if until.passed():
            return sorted(now)
        sleep(_END_POLL_S)
    return []
