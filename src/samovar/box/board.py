"""The board of a box: who its members are, whether they live, and how far each of them is.

A member is a row of the board and an incarnation, a number that no other member of this board ever has. A row belongs
to a process of this machine; when that process is dead, the row may be taken by the next one to come. What a member
posts is read whole or not at all, whenever its process is killed.
"""

import os
import struct
from dataclasses import dataclass
from typing import Final

from samovar import _native
from samovar.box.memory import create_empty, seal
from samovar.core.errors import InputError, RankFailed

MAX_MEMBERS: Final = 64
NUM_WORDS: Final = 16  # that all members share
_POST = struct.Struct("<3Q3d2Qd2Q")
_POSTED_WORDS = 16
_WORDS = struct.Struct(f"<{_POSTED_WORDS}Q")
_FINISHED, _STOPPED = 1, 2


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a box; `incarnation` is larger than that of every earlier member in this row."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What a member tells of itself. Losses are of its own weights; staleness counts updates of others."""

    steps: int = 0
    samples: int = 0
    samples_per_s: float = 0.0
    loss: float = float("nan")
    staleness_mean: float = 0.0
    staleness_max: int = 0
    updates: int = 0
    lock_wait_s: float = 0.0
    finished: bool = False
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the board: the last member that had it, its process (0: it has left), and its last post."""

    member: Member
    process_id: int
    is_alive: bool
    progress: Progress


def create_board(max_members: int = MAX_MEMBERS) -> int:
    """A new board; returns its descriptor, which the caller owns. Raises InputError where shared memory is short."""
    descriptor = create_empty()
    try:
        _native.CenterBoard.create(descriptor, max_members)
        seal(descriptor)
    except (OSError, ValueError) as error:
        os.close(descriptor)
        raise InputError(f"a board for {max_members} members cannot be had: {error}") from error
    return descriptor


class Board:
    """The board behind `descriptor`, which may be closed afterwards. Raises InputError where it is none."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._native = _native.CenterBoard(descriptor)
        except ValueError as error:
            raise InputError(f"{error}; was it handed out by another version of Samovar?") from error

    @property
    def max_members(self) -> int:
        return self._native.max_members

    def join(self, index: int | None = None) -> Member:
        """Become a member, in row `index` or in the first one that no living process has.

        Raises InputError where there is no such row, RankFailed where `index` belongs to a living process.
        """
        for row in range(self.max_members) if index is None else [index]:
            incarnation = self._native.join(row)
            if incarnation:
                return Member(row, incarnation)
        if index is None:
            raise InputError(f"the box has {self.max_members} members, all alive, and no room for one more")
        raise RankFailed(
            f"member {index} of the box is process {self._native.seen(index)[1]}, which is alive; end it or join anew"
        )

    def adopt(self, member: Member) -> None:
        """Go on as `member`, whose process is dead: what a restarted server does for those it acts for.

        Raises RankFailed where the row has a newer incarnation or belongs to a living process.
        """
        if not self._native.resume(member.index, member.incarnation):
            incarnation, process_id, _is_alive = self._native.seen(member.index)
            raise RankFailed(
                f"member {member.index}, incarnation {member.incarnation}, is over: its row belongs to incarnation "
                f"{incarnation}, process {process_id}; join anew"
            )

    def leave(self, member: Member) -> None:
        """Give the row back; nothing happens where it is another's by now."""
        self._native.leave(member.index, member.incarnation)

    def post(self, member: Member, progress: Progress) -> None:
        """Show `progress` in the member's row. Raises RankFailed where the row is another's by now."""
        flags = _FINISHED * progress.finished | _STOPPED * progress.stopped
        numbers = (
            *(member.incarnation, progress.steps, progress.samples),
            *(progress.samples_per_s, progress.loss, progress.staleness_mean),
            *(progress.staleness_max, progress.updates, progress.lock_wait_s, flags, 0),
        )
        words = _WORDS.unpack(_POST.pack(*numbers).ljust(_WORDS.size, b"\0"))
        if not self._native.post(member.index, member.incarnation, list(words)):
            raise RankFailed(f"member {member.index} of the box is another process by now; join anew")

    def row(self, index: int) -> Row:
        """Row `index`, read whole."""
        incarnation, process_id, is_alive = self._native.seen(index)
        posted = _POST.unpack_from(_WORDS.pack(*self._native.read(index)))
        steps, samples, samples_per_s, loss, mean, largest, updates, wait_s, flags, _ = posted[1:]
        progress = Progress(steps, samples, samples_per_s, loss, mean, largest, updates, wait_s)
        if posted[0] != incarnation:  # an earlier member's
            progress = Progress()
        elif flags:
            finished, stopped = bool(flags & _FINISHED), bool(flags & _STOPPED)
            progress = Progress(steps, samples, samples_per_s, loss, mean, largest, updates, wait_s, finished, stopped)
        return Row(Member(index, incarnation), process_id, is_alive, progress)

    def rows(self) -> list[Row]:
        """The rows that somebody has or had."""
        rows = [self.row(index) for index in range(self.max_members)]
        return [row for row in rows if row.member.incarnation > 0]

    def word(self, index: int) -> int:
        """One of the words that all members share, of 64 bits; 0 at the start."""
        return self._native.word(index)

    def set_word(self, index: int, value: int) -> None:
        self._native.set_word(index, value)

    def claim_word(self, index: int, value: int) -> int:
        """Set the word if it is 0; returns what stands there now, `value` or what another was quicker to set."""
        return self._native.claim_word(index, value)
