"""The center that workers at their own speed share: in memory that the ranks of a job hand each other, or in a box."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from samovar.api.job_center import RankTable, own_seat
from samovar.api.metrics import ReplicaMetrics
from samovar.api.process_group import ProcessGroup
from samovar.box.board import MAX_MEMBERS, Member, MemberProgress, Row
from samovar.box.buffers import BufferShape
from samovar.box.endpoints import Places, create_parts, parse_places, take_parts
from samovar.box.joining import BoxSeat
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed
from samovar.core.layout import Layout
from samovar.strategies.box_terms import BoxWord, Readiness, word_of
from samovar.strategies.center_steps import CenterSeat, CenterSteps
from samovar.strategies.config import StrategyConfig

_LOOK_S, _POLL_S = 0.25, 0.02
_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class BoxChoice:
    """A buffer of a box, or of several: a new one, or with `joins` one that is there; this job goes on from it."""

    places: Places
    buffer: str
    joins: bool


def box_choice(
    box: str | Sequence[str] | None, buffer: str | None, key_file: str | Path | None, join: bool, model_name: str
) -> BoxChoice | None:
    """None without `box`. Raises InputError where these do not belong together."""
    if box is not None:
        named = box if isinstance(box, str) else ",".join(box)
        return BoxChoice(parse_places(named, None if key_file is None else Path(key_file)), buffer or model_name, join)
    for name, value in (("buffer", buffer), ("key_file", key_file), ("join", join or None)):
        if value is not None:
            raise InputError(f"replicate: {name}={value!r} belongs to a box; give box='NAME' or 'HOST:PORT' too")
    return None


class SharedCenter:
    """One rank's part in the center of one replica: its seat, what it tells of itself, and who else is there.

    All ranks of the job make it together, and call `filled`; nothing else waits for them but `finish`.
    """

    def __init__(
        self,
        team: ProcessGroup,
        config: StrategyConfig,
        layout: Layout,
        choice: BoxChoice | None,
        deadline: Callable[[], Deadline],
        doings: ReplicaMetrics,
    ) -> None:
        self._doings = doings
        self._rank, self._name = team.group.rank, f"rank {team.group.rank}"
        self._patience_s: float | None = None
        self._given_deadline = deadline
        self._table = RankTable(team, self.deadline)
        self.joins = choice is not None and choice.joins
        shape = BufferShape(
            layout.num_elements,
            max_members=team.group.world_size if choice is None else MAX_MEMBERS,
            with_velocity=config.traits.has_velocity,
            with_locks=config.traits.has_locks,
        )
        if choice is None:
            self.seat = own_seat(self._table, team, shape)
        else:
            self.seat = self._seat_in_box(choice, shape, layout)
        rows = self._table.show(self.seat.member.index, self.seat.member.incarnation)
        self._members = [Member(int(index), int(incarnation)) for index, incarnation, *_ in rows]
        self._group_size = config.group_size or 1
        self._follows = config.is_async  # where speeds are equal all stay to the end
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
            self.seat.board.set_word(BoxWord.IS_READY, Readiness.FILLED)
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
        return f"workers at the center: {count} now, {before} before{rate}"

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

    def _seat_in_box(self, choice: BoxChoice, shape: BufferShape, layout: Layout) -> BoxSeat:
        """Rank 0 makes the buffer, unless it is joined."""
        places, name = choice.places, choice.buffer
        there = None
        if self._rank == 0 and not choice.joins:
            there = create_parts(places, name, shape, self._name, self.deadline())
        if there is not None:
            raise InputError(
                f"{self._name}: {there} has a buffer {name!r} already; join=True trains on it, buffer=... makes another"
            )
        self._table.show()
        seat = take_parts(places, name, self._name, self.deadline())
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
                    f"{self._name}: buffer {choice.buffer!r} of {choice.places} has {what} {getattr(found, what)}, and "
                    f"this model and strategy need {getattr(wanted, what)}; give another buffer"
                )

    def _require_same_model(self, seat: BoxSeat, choice: BoxChoice, layout: Layout) -> None:
        number = word_of(layout.fingerprint())
        if seat.board.claim_word(BoxWord.NET, number) != number:
            raise InputError(
                f"{self._name}: buffer {choice.buffer!r} of {choice.places} holds a model whose parameters have other "
                "names, shapes or another order; give another buffer"
            )

    def _wait_until_ready(self, seat: BoxSeat, choice: BoxChoice) -> None:
        where = f"buffer {choice.buffer!r} of {choice.places}"
        if not polled(lambda: seat.board.word(BoxWord.IS_READY) != 0, self.deadline(), _POLL_S):
            raise DeadlineExceeded(
                f"{self._name}: nobody gives {where} its first weights; did who made it die before? Drop it, and start "
                "without join"
            )
        if seat.board.word(BoxWord.IS_READY) == Readiness.GIVEN_UP:
            raise RankFailed(
                f"{self._name}: {where} gets no first weights: the rank that was to give it some is gone for good"
            )

    def _post(self, strategy: CenterSteps, step: int, *, is_finished: bool = False) -> None:
        staleness = strategy.staleness
        progress = MemberProgress(
            steps=step,
            samples=self._doings.num_samples,
            samples_per_s=self._doings.samples_per_s(),
            loss=self._doings.loss,
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
