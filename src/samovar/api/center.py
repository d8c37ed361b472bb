"""The center that workers at their own speed share: in memory that the ranks of a job hand each other, or in a box."""

import hashlib
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from samovar.api.team import Team
from samovar.box.base import SeatCenter
from samovar.box.board import MAX_MEMBERS, Board, Member, Progress, Row, Rows, create_board
from samovar.box.buffers import BufferShape
from samovar.box.joining import BoxPlace, create_buffer, parse_place, take_seat
from samovar.box.mapped import MappedCenter, create_center
from samovar.collectives.records import digest_record
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.core.layout import Layout
from samovar.strategies.center_steps import CenterSeat, CenterSteps
from samovar.strategies.config import StrategyConfig
from samovar.transports.join import join_files, offer_files

_READY_WORD, _MODEL_WORD = 0, 14  # of the board: 1 when the center holds weights; whose weights
_LOOK_S, _POLL_S = 0.25, 0.02
_LEAVE_S = 5.0
_SECRET_BYTES = 16
_TABLE_FIELDS = 4


@dataclass(frozen=True, slots=True)
class BoxChoice:
    """A buffer of a box: a new one, or with `joins` one that is there, from whose weights this job goes on."""

    place: BoxPlace
    buffer: str
    joins: bool


def box_choice(
    box: str | None, buffer: str | None, key_file: str | Path | None, join: bool, model_name: str
) -> BoxChoice | None:
    """None without `box`. Raises InputError where these do not belong together."""
    if box is not None:
        place = parse_place(box, None if key_file is None else Path(key_file))
        return BoxChoice(place, buffer or model_name, join)
    for name, value in (("buffer", buffer), ("key_file", key_file), ("join", join or None)):
        if value is not None:
            raise InputError(f"replicate: {name}={value!r} belongs to a box; give box='NAME' or 'HOST:PORT' too")
    return None


class Seat(Protocol):
    """A member's place: `samovar.box.joining.BoxSeat`, or `OwnSeat`."""

    @property
    def center(self) -> SeatCenter: ...
    @property
    def board(self) -> Rows: ...
    @property
    def member(self) -> Member: ...

    def close(self) -> None: ...


class OwnSeat:
    """A place in memory without a name, in row `rank`; takes the two descriptors over."""

    def __init__(self, center: int, board: int, rank: int) -> None:
        try:
            self.board = Board(board)
            self.member = self.board.join(rank)
            self.center = MappedCenter(center, self.member)
        finally:
            os.close(center)
            os.close(board)

    def close(self) -> None:
        self.center.close()
        self.board.leave(self.member)


class _Table:
    """All ranks of the job show each other a row of numbers; each time, all wait for all."""

    def __init__(self, team: Team, deadline: Callable[[], Deadline]) -> None:
        self._records = team.collectives.records(_TABLE_FIELDS)
        self._deadline = deadline

    def show(self, *row: float) -> npt.NDArray[np.float64]:
        self._records.post([*row, *(0.0,) * (_TABLE_FIELDS - len(row))])
        return self._records.collect(self._deadline())


class SharedCenter:
    """One rank's part in the center of one replica: its seat, what it tells of itself, and who else is there.

    All ranks of the job make it together, and call `filled`; nothing else waits for them but `finish`.
    """

    def __init__(
        self,
        team: Team,
        config: StrategyConfig,
        layout: Layout,
        choice: BoxChoice | None,
        deadline: Callable[[], Deadline],
    ) -> None:
        self._rank, self._name = team.group.rank, f"rank {team.group.rank}"
        self._patience_s: float | None = None
        self._given_deadline = deadline
        self._table = _Table(team, self.deadline)
        self.joins = choice is not None and choice.joins
        shape = BufferShape(
            layout.num_elements,
            max_members=team.group.world_size if choice is None else MAX_MEMBERS,
            with_velocity=config.center_has_velocity,
            with_locks=config.center_has_locks,
        )
        if choice is None:
            self.seat: Seat = self._own_seat(shape)
        else:
            self.seat = self._seat_in_box(choice, shape, layout)
        rows = self._table.show(self.seat.member.index, self.seat.member.incarnation)
        self._members = [Member(int(index), int(incarnation)) for index, incarnation, *_ in rows]
        self._group_size = config.group_size or 1
        self._follows = config.name != "round-robin-easgd"  # where speeds are equal all stay to the end
        self.num_workers = self._count()
        self._look_s = 0.0

    def deadline(self) -> Deadline:
        """For every wait of the strategy: short once this rank leaves."""
        return self._given_deadline() if self._patience_s is None else Deadline.after(self._patience_s)

    @property
    def num_pushers(self) -> int:
        """Workers, or groups of them, that change the center."""
        return max(1, self.num_workers // self._group_size)

    def strategy_seat(self) -> CenterSeat:
        return CenterSeat(self.seat.center, self._rank == 0 and not self.joins, self.num_pushers)

    def filled(self) -> None:
        """The first rank has given the center its weights. Waits for all ranks of the job."""
        if self._rank == 0:
            self.seat.board.set_word(_READY_WORD, 1)
        self._table.show()

    def look(self, strategy: CenterSteps, step: int) -> str:
        """Now and then: tell the others how far this rank is; what to tell the user of how many they are, or ""."""
        now_s = time.monotonic()
        if now_s < self._look_s:
            return ""
        self._look_s = now_s + _LOOK_S
        self._post(strategy, step)
        before, count = self.num_workers, self._count()
        if count == before or not self._follows:
            return ""
        self.num_workers = count
        strategy.resize(self.num_pushers)
        rate = f"; moving rate {strategy.moving_rate:.4g}" if strategy.moving_rate else ""
        return f"{count} workers share the center now, {before} before{rate}"

    def finish(self, strategy: CenterSteps, step: int) -> list[int]:
        """Wait until every rank of the job has called this or is gone; those that are gone.

        Raises DeadlineExceeded where none of the others makes a step for as long as a wait may last.
        """
        self._post(strategy, step, is_finished=True)
        seen, deadline = None, self.deadline()
        while lagging := self._lagging():
            if lagging != seen:
                seen, deadline = lagging, self.deadline()
            if deadline.passed():
                ranks = ", ".join(map(str, lagging))
                raise DeadlineExceeded(
                    f"{self._name}: rank(s) {ranks} neither make steps nor call finish(); are they stopped, or did "
                    "their loops end without it? See their logs"
                )
            time.sleep(_POLL_S)
        rows = [self._row(rank) for rank in range(len(self._members))]
        return [
            rank
            for rank, (row, member) in enumerate(zip(rows, self._members, strict=True))
            if row.member == member and not row.progress.finished
        ]

    def leave(self, strategy: CenterSteps) -> None:
        """Bring what is under way to the center, and give the seat back; waits for no other rank."""
        self._patience_s = _LEAVE_S
        try:
            self.drain(strategy)
        finally:
            self.seat.close()

    def drain(self, strategy: CenterSteps) -> None:
        """Bring what is under way to the center, unless that waits for other ranks: then nothing is."""
        if self._follows:
            strategy.drain()

    def _own_seat(self, shape: BufferShape) -> Seat:
        secret = secrets.token_bytes(_SECRET_BYTES)
        if self._rank:
            words = np.array(self._table.show()[0], dtype=">u4")
            files = join_files(words.tobytes(), 2, self.deadline())
            self._table.show()
            return OwnSeat(files[0], files[1], self._rank)
        with ExitStack() as unmade:
            center = create_center(**asdict(shape))
            unmade.callback(os.close, center)
            board = create_board(shape.max_members)
            unmade.callback(os.close, board)
            with offer_files(secret, (center, board)):
                self._table.show(*digest_record(secret))
                self._table.show()  # all have them
            unmade.pop_all()
        return OwnSeat(center, board, self._rank)

    def _seat_in_box(self, choice: BoxChoice, shape: BufferShape, layout: Layout) -> Seat:
        """Rank 0 makes the buffer, unless it is joined."""
        place, name = choice.place, choice.buffer
        if self._rank == 0 and not choice.joins and not create_buffer(place, name, shape, self._name, self.deadline()):
            raise InputError(
                f"{self._name}: {place} has a buffer {name!r} already; join=True trains on it, buffer=... makes another"
            )
        self._table.show()
        seat = take_seat(place, name, self._name, self.deadline())
        try:
            self._require_fit(choice, shape, seat.shape)
            if choice.joins:
                self._wait_until_ready(seat, choice)
            self._require_same_model(seat, choice, layout)
        except BaseException:
            seat.close()
            raise
        return seat

    def _require_fit(self, choice: BoxChoice, wanted: BufferShape, found: BufferShape) -> None:
        for what in ("num_elements", "with_velocity", "with_locks"):
            if getattr(found, what) != getattr(wanted, what):
                raise InputError(
                    f"{self._name}: buffer {choice.buffer!r} of {choice.place} has {what} {getattr(found, what)}, and "
                    f"this model and strategy need {getattr(wanted, what)}; give another buffer"
                )

    def _require_same_model(self, seat: Seat, choice: BoxChoice, layout: Layout) -> None:
        digest = hashlib.sha256(layout.fingerprint().encode()).digest()
        number = int.from_bytes(digest[:7]) + 1
        if seat.board.claim_word(_MODEL_WORD, number) != number:
            raise InputError(
                f"{self._name}: buffer {choice.buffer!r} of {choice.place} holds a model whose parameters have other "
                "names, shapes or another order; give another buffer"
            )

    def _wait_until_ready(self, seat: Seat, choice: BoxChoice) -> None:
        deadline = self.deadline()
        while not seat.board.word(_READY_WORD):
            if deadline.passed():
                raise DeadlineExceeded(
                    f"{self._name}: nobody gives buffer {choice.buffer!r} of {choice.place} its first weights; did "
                    "who made it die before? Drop it, and start without join"
                )
            time.sleep(_POLL_S)

    def _post(self, strategy: CenterSteps, step: int, *, is_finished: bool = False) -> None:
        staleness = strategy.staleness
        progress = Progress(
            steps=step,
            staleness_mean=staleness.mean,
            staleness_max=staleness.largest,
            updates=strategy.num_updates,
            lock_wait_s=self.seat.center.lock_wait_s,
            finished=is_finished,
        )
        self.seat.board.post(self.seat.member, progress)

    def _count(self) -> int:
        """Who lives and has not finished, this rank at least."""
        rows = self.seat.board.rows()
        return max(1, sum(row.is_alive and not row.progress.finished for row in rows))

    def _row(self, rank: int) -> Row:
        return self.seat.board.row(self._members[rank].index)

    def _lagging(self) -> dict[int, int]:
        """The ranks that still train, and the steps that they have shown."""
        rows = {rank: self._row(rank) for rank in range(len(self._members))}
        return {
            rank: row.progress.steps
            for rank, row in rows.items()
            if row.is_alive and row.member == self._members[rank] and not row.progress.finished
        }
