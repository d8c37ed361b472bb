"""The board of a box: its members, whether they live, and their progress.

A member is a row of the board and an incarnation, a number that no other member of this board ever has. A row belongs
to a process of this machine. When that process is dead, another one may take the row. A member's post is read whole or
not at all, even if its process is killed.
"""

import os
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Protocol

from samovar import _native
from samovar.core.errors import InputError, RankFailed
from samovar.core.host import create_empty, seal

MAX_MEMBERS: Final = 64
NUM_WORDS: Final = 15  # that all members share
ENDED_WORD: Final = 11  # of these: not 0 once the box has ended, and the memory is nobody else's
_TOKEN_WORD: Final = 15  # the number of the maker, set once
_PROGRESS = struct.Struct("<2Q3d2QdQ")
_INCARNATION = struct.Struct("<Q")
_ORIGIN = struct.Struct("<16sI")
_POSTED_WORDS = 16
_WORDS = struct.Struct(f"<{_POSTED_WORDS}Q")
_FINISHED, _STOPPED, _AWAY, _FLAG_BITS = 1, 2, 4, 8
PROGRESS_BYTES: Final = _PROGRESS.size


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a box; `incarnation` is larger than that of every earlier member in this row."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """A member's report. Losses are of its own weights; staleness counts updates of others.

    The server sets `away` for a member of another host without a connection. `num_meetings` counts the calls of this
    member in which it waits for all others.
    """

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
    away: bool = False
    num_meetings: int = 0

    def pack(self) -> bytes:
        flags = _FINISHED * self.finished | _STOPPED * self.stopped | _AWAY * self.away
        training = self.steps, self.samples, self.samples_per_s, self.loss
        center = self.staleness_mean, self.staleness_max, self.updates, self.lock_wait_s
        return _PROGRESS.pack(*training, *center, flags | self.num_meetings << _FLAG_BITS)

    @classmethod
    def unpack(cls, data: bytes) -> "MemberProgress":
        steps, samples, samples_per_s, loss, mean, largest, updates, wait_s, flags = _PROGRESS.unpack_from(data)
        ends = bool(flags & _FINISHED), bool(flags & _STOPPED), bool(flags & _AWAY)
        return cls(steps, samples, samples_per_s, loss, mean, largest, updates, wait_s, *ends, flags >> _FLAG_BITS)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a member of another host is: that host's numeric address, and its process there."""

    host: str
    process_id: int

    def pack(self) -> bytes:
        address = ip_address(self.host.partition("%")[0])
        if isinstance(address, IPv4Address):
            address = IPv6Address(f"::ffff:{address}")
        return _ORIGIN.pack(address.packed, self.process_id)

    @classmethod
    def unpack(cls, data: bytes) -> "Origin | None":
        """None if nothing was packed."""
        packed, process_id = _ORIGIN.unpack_from(data)
        address = IPv6Address(packed)
        return cls(str(address.ipv4_mapped or address), process_id) if any(packed) else None


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the board: the last member that had it, its process (0: it has left), and its last post.

    `host` is the host of the member and its process, "" for this one. A member that is away does not count as alive,
    but keeps the row.
    """

    member: Member
    process_id: int
    is_alive: bool
    progress: MemberProgress
    host: str = ""


class Rows(Protocol):
    """A board as its members see it, on this host or another. Implementations document their errors."""

    @property
    def max_members(self) -> int: ...

    def row(self, index: int) -> Row:
        """Row `index`, read whole."""

    def rows(self) -> list[Row]:
        """The rows that have or had a member."""

    def post(self, member: Member, progress: MemberProgress) -> None:
        """Show `progress` in the member's row."""

    def word(self, index: int) -> int:
        """One of the NUM_WORDS words that all members share, of 64 bits; 0 at the start."""

    def set_word(self, index: int, value: int) -> None: ...

    def claim_word(self, index: int, value: int) -> int:
        """Set the word if it is 0; return its value now, `value` or that of a faster member."""


def create_board(max_members: int = MAX_MEMBERS) -> int:
    """A new board; returns its descriptor, which the caller owns. Raises InputError if shared memory is short."""
    descriptor = create_empty()
    try:
        _native.CenterBoard.create(descriptor, max_members)
        seal(descriptor)
    except (OSError, ValueError) as error:
        os.close(descriptor)
        raise InputError(f"a board for {max_members} members cannot be had: {error}") from error
    return descriptor


class Board:
    """The board behind `descriptor`, which may be closed afterwards. Raises InputError if it is none."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._native = _native.CenterBoard(descriptor)
        except ValueError as error:
            raise InputError(f"{error}; was it handed out by another version of Samovar?") from error
        self.max_members = self._native.max_members

    def join(self, index: int | None = None) -> Member:
        """Become a member, in row `index` or in the first one that no living process has.

        Raises InputError if there is no such row, RankFailed if `index` belongs to a living process.
        """
        if index is not None:
            self._check_row(index)
        for row in range(self.max_members) if index is None else [index]:
            incarnation = self._native.join(row)
            if incarnation:
                return Member(row, incarnation)
        if index is None:
            raise InputError(f"the box has {self.max_members} members, all alive, and no room for one more")
        raise RankFailed(
            f"member {index} of the box is process {self._native.seen(index)[1]}, which is alive; end it or join again"
        )

    def adopt(self, member: Member) -> None:
        """Continue as `member`, whose process is dead. A restarted server does this for its remote members.

        Raises InputError if there is no such row, RankFailed if it has a newer incarnation or a living process.
        """
        self._check_row(member.index)
        if not self._native.resume(member.index, member.incarnation):
            incarnation, process_id, _is_alive = self._native.seen(member.index)
            raise RankFailed(
                f"member {member.index}, incarnation {member.incarnation}, is over: its row belongs to incarnation "
                f"{incarnation}, process {process_id}; join again"
            )

    def leave(self, member: Member) -> None:
        """Give the row back; nothing happens where it is another's by now."""
        self._native.leave(member.index, member.incarnation)

    def post(self, member: Member, progress: MemberProgress, origin: Origin | None = None) -> None:
        """Show `progress` in the member's row. Raises RankFailed if the row is another's by now."""
        posted = _INCARNATION.pack(member.incarnation) + progress.pack() + (b"" if origin is None else origin.pack())
        words = _WORDS.unpack(posted.ljust(_WORDS.size, b"\0"))
        if not self._native.post(member.index, member.incarnation, list(words)):
            raise RankFailed(f"member {member.index} of the box is another process by now; join again")

    def row(self, index: int) -> Row:
        """Row `index`, read whole."""
        incarnation, process_id, is_alive = self._native.seen(index)
        posted = _WORDS.pack(*self._native.read(index))
        member = Member(index, incarnation)
        if _INCARNATION.unpack_from(posted) != (incarnation,):  # an earlier member's
            return Row(member, process_id, is_alive, MemberProgress())
        progress = MemberProgress.unpack(posted[_INCARNATION.size :])
        origin = Origin.unpack(posted[_INCARNATION.size + _PROGRESS.size :])
        if origin is None:
            return Row(member, process_id, is_alive, progress)
        is_here = is_alive and not progress.away
        return Row(member, origin.process_id if process_id else 0, is_here, progress, origin.host)

    def rows(self) -> list[Row]:
        """The rows that have or had a member."""
        rows = [self.row(index) for index in range(self.max_members)]
        return [row for row in rows if row.member.incarnation > 0]

    def word(self, index: int) -> int:
        """One of the words that all members share, of 64 bits; 0 at the start."""
        return self._native.word(_checked(index))

    def set_word(self, index: int, value: int) -> None:
        self._native.set_word(_checked(index), value)

    @property
    def has_ended(self) -> bool:
        """Whether the box has ended in order: nobody else will see what is changed from now on."""
        return self._native.word(ENDED_WORD) != 0

    def claim_word(self, index: int, value: int) -> int:
        """Set the word if it is 0; return its value now, `value` or that of a faster member."""
        return self._native.claim_word(_checked(index), value)

    def _check_row(self, index: int) -> None:
        if not 0 <= index < self.max_members:
            raise InputError(f"member {index}: the box has members 0 to {self.max_members - 1}")

    def claim_token(self, token: int) -> int:
        """The board's unique number, set by the first caller. 0: none was set."""
        return self._native.claim_word(_TOKEN_WORD, token)


def _checked(index: int) -> int:
    assert 0 <= index < NUM_WORDS, f"no such word: {index}"
    return index
