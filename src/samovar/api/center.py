"""The center that workers at their own speed share, in memory of the job's ranks or in a box."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from samovar.api.figures import ReplicaFigures
from samovar.api.figures_wanted import say
from samovar.api.process_group import ProcessGroup
from samovar.box.board import MAX_MEMBERS, MemberProgress, Row
from samovar.box.buffers import BufferShape
from samovar.box.endpoints import Endpoints, parse_endpoints
from samovar.box.joining import Endpoint
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, ReplicasDiffer, SamovarError
from samovar.core.layout import Layout
from samovar.frontends.torch.optimizers import Optimizers
from samovar.membership.job_center import Home, JobCenter, WindowsCenter
from samovar.membership.members import BoxMembers, Headcount, RunSteps, still_lagging
from samovar.membership.ranks import JobRanks, KeptRanks
from samovar.membership.session import BoxCenter, CenterPlace, KeptCenter, Session
from samovar.strategies.base import CenterSeat
from samovar.strategies.box_terms import MEAN, Terms
from samovar.strategies.center_steps import CenterSteps
from samovar.strategies.config import StrategyConfig

_LOOK_S, _MEET_S = 0.25, 0.05
_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class BoxChoice:
    """A buffer in one or several boxes: a new one, or with `joins` one that exists and that this job starts from."""

    places: Endpoints
    buffer: str
    joins: bool


def box_choice(
    box: str | Sequence[str] | None, buffer: str | None, key_file: str | Path | None, join: bool, model_name: str
) -> BoxChoice | None:
    """The choice of a box; None without `box`. Raises InputError if the arguments do not belong together."""
    if box is not None:
        named = ",".join(map(str, box)) if isinstance(box, list | tuple) else str(box)
        endpoints = parse_endpoints(named, None if key_file is None else Path(key_file))
        return BoxChoice(endpoints, buffer or model_name, join)
    for name, value in (("buffer", buffer), ("key_file", key_file), ("join", join or None)):
        if value is not None:
            raise InputError(f"replicate: {name}={value!r} belongs to a box; give box='NAME' or 'HOST:PORT' too")
    return None


class _Patience:
    """The deadline of a wait of the strategy. It is short once this rank leaves."""

    def __init__(self, given: Callable[[], Deadline]) -> None:
        self.is_leaving = False
        self._given = given

    def __call__(self) -> Deadline:
        return Deadline.after(_LEAVE_S) if self.is_leaving else self._given()


class SharedCenter:
    """One rank's part in the center of one replica: its session, its duties besides its steps, and the other members.

    All ranks of the job make it together and call `filled`. Only these two and `finish` wait for them.

    Nothing that it holds refers to it: the memory of the center goes back with the last reference, without a collection
    of cycles. `deadline` gives the deadline of a wait of the `strategy`, which is set when it is made, on its seat.
    """

    strategy: CenterSteps

    def __init__(
        self,
        processes: ProcessGroup,
        config: StrategyConfig,
        layout: Layout,
        choice: BoxChoice | None,
        deadline: Callable[[], Deadline],
        figures: ReplicaFigures,
    ) -> None:
        self._figures, self._emulated = figures, processes.emulated
        self._name = f"rank {processes.group.rank}"
        self.deadline = _Patience(deadline)
        self._kept = None if processes.home is None else processes.home.kept
        self._ranks = _ranks(processes, self._kept, self.deadline)
        self.joins = processes.is_back or (choice is not None and choice.joins)
        self._session = self._open(processes, config, layout, choice)
        self._member_process, self._num_meetings = os.getpid(), 0
        seat = self._session.seat
        own, steps = choice is None, RunSteps(MEAN, 0)
        self._members = BoxMembers(seat.board, seat.member, self._ranks.all, steps, 0, _LOOK_S, counts_ended=own)
        self._pushers = partial(_pushers, config.group_size or 1)
        self._follows = config.is_async  # where speeds are equal all stay to the end
        self._headcount = Headcount(self._members, self._members.num_living, self._pushers)

    @property
    def num_pushers(self) -> int:
        """The number of workers, or of groups, that change the center."""
        return self._pushers(self._headcount.count)

    def strategy_seat(self) -> CenterSeat:
        center, emulated = self._session.seat.center, self._emulated
        return self._session.center_seat(center if emulated is None else emulated.center(center), self.num_pushers)

    def filled(self) -> None:
        """Say that the first rank has given the center its weights. Waits for all ranks of the job."""
        self._session.filled()
        self._ranks.show()

    def meet(self, what: str, step: int, run: float) -> None:
        """Wait until all ranks of the job are at the call `what`, each at its own `step`, for a state of this `run`.

        The board shows which ranks have come, so no exchange begins that some will not join. Raises SamovarError if
        another rank trains on or is gone, ReplicasDiffer if its state is of another run, DeadlineExceeded.
        """
        before = {rank: row.progress.steps for rank, row in self._rows().items()}
        self._num_meetings += 1
        self._post(step)
        have_come = partial(self._have_all_come, what, step, before)
        if not polled(have_come, self.deadline(), _MEET_S):
            raise DeadlineExceeded(
                f"{self._name}: {what}: others neither make this call nor take steps; see their logs"
            )
        runs = self._ranks.show(run)[:, 0]
        if differing := [rank for rank, other in enumerate(runs) if other != runs[0]]:
            raise ReplicasDiffer(
                f"{self._name}: {what}: the states that ranks {differing} load are of another run than that "
                "of rank 0; give every rank the file that it saved"
            )

    def _have_all_come(self, what: str, step: int, before: Mapping[int, int]) -> bool:
        """Whether all have come to this meeting. Raises SamovarError if one will not."""
        rows, waits = self._rows(), False
        for rank in range(self._ranks.world_size):
            row = rows.get(rank)
            if row is not None and row.progress.num_meetings >= self._num_meetings:
                continue
            if row is None or not row.is_alive or row.progress.finished:
                does = "has ended"
            elif row.progress.steps > max(step, before.get(rank, 0)):
                does = f"trains on, at step {row.progress.steps}"
            else:
                waits = True
                continue
            raise SamovarError(
                f"{self._name}: at step {step} this rank is at {what}, and rank {rank} {does}; all ranks make this "
                "call together. If some make more steps than others, call replica.barrier() first"
            )
        return not waits

    def look(self, step: int, optimizers: Optimizers) -> None:
        """After a step: report this rank's progress from time to time, follow the number of members, tell notices.

        Raises NotFinite if the center refused too many updates in a row.
        """
        if self.strategy.has_started_anew():
            optimizers.begin_again()
        if self._members.is_due:
            self._post(step)
            if self._follows and (notice := self._headcount.follow(self.strategy)) and self._ranks.rank == 0:
                self._say(notice)
        for notice in self.strategy.take_notices():
            self._say(notice)
        if self.strategy.is_lost:
            raise NotFinite(
                f"{self._name}: step {step}: the center refused {self.strategy.num_refused} updates that were not "
                "finite, the last of them in a row; lower the learning rate, or look at this rank's data"
            )

    def finish(self, step: int) -> None:
        """Wait until every rank of the job has called this or is gone.

        Raises DeadlineExceeded if none of the others takes a step for as long as a wait may last.
        """
        self.drain()
        self._post(step, is_finished=True)
        if lagging := still_lagging(self._lagging, self.deadline):
            raise DeadlineExceeded(
                f"{self._name}: rank(s) {', '.join(map(str, lagging))} neither take steps nor call finish(); are they "
                "stopped, or did their loops end without it? See their logs"
            )
        gone = [rank for rank, row in self._rows().items() if not row.progress.finished]
        if gone and self._ranks.rank == 0:
            self._say(f"rank(s) {', '.join(map(str, gone))} ended before; their updates stay in the center")

    def leave(self) -> None:
        """At the end of the replica or the process: bring updates under way to the center, and give the seat back.

        Waits for no other rank. A forked process does neither: the seat is its parent's.
        """
        if self._member_process != os.getpid():
            return
        self.deadline.is_leaving = True
        try:
            try:
                self.drain()
            finally:
                self.close()
        except SamovarError as error:
            self._say(f"the last update did not come to the center: {error}")

    def close(self) -> None:
        """Give the seat back, once."""
        if self._member_process == os.getpid():
            self._member_process = 0
            self._session.close()

    def drain(self) -> None:
        """Bring updates under way to the center. If ranks take turns, none are, and this does nothing."""
        if self._follows:
            self.strategy.drain()

    def _open(
        self, processes: ProcessGroup, config: StrategyConfig, layout: Layout, choice: BoxChoice | None
    ) -> Session:
        traits, size = config.traits, layout.num_elements
        world_size = processes.group.world_size
        if choice is None:
            shape = BufferShape(size, world_size, traits.has_velocity, traits.has_locks)
            if self._kept is not None:
                admit = partial(self._admitted_again, self._kept, shape)
                return Session(self._kept, self._ranks, shape, self.deadline, admit, life=self._kept.life)
            home = processes.home or Home(tuple(range(world_size)))
            place = JobCenter(home) if home.windows is None else WindowsCenter(home.windows)
            return Session(place, self._ranks, shape, self.deadline, lambda _session: 0)
        shape = BufferShape(size, MAX_MEMBERS, traits.has_velocity, traits.has_locks)
        way_out = "drop it, and start without join"
        timeout_s, there_already = processes.timeout_s, partial(_there_already, self._name)
        box = BoxCenter(choice.places, choice.buffer, self._name, timeout_s, there_already, way_out)
        admit = partial(self._admitted, box, shape, Terms.of(config, layout))
        return Session(box, self._ranks, shape, self.deadline, admit, joins=choice.joins)

    def _admitted(self, place: CenterPlace, wanted: BufferShape, terms: Terms, session: Session) -> int:
        """Check that the buffer and its training fit, and wait until a center that is joined has been filled."""
        self._require_fit(place, session.seat.shape, wanted, "give another buffer")
        if self.joins:
            session.await_filled()
        terms.claim(session.seat.board, f"{self._name}: {place}")
        return 0

    def _admitted_again(self, kept: KeptCenter, wanted: BufferShape, session: Session) -> int:
        """Check that the center is the one of this rank's earlier life."""
        if isinstance(self._ranks, KeptRanks):
            self._ranks.board = session.seat.board
        self._require_fit(kept, session.seat.shape, wanted, "make the same model in every life")
        if kept.life:
            session.await_filled()
        return 0

    def _require_fit(self, place: object, found: BufferShape, wanted: BufferShape, advice: str) -> None:
        for what in ("num_elements", "with_velocity", "with_locks"):
            if getattr(found, what) != getattr(wanted, what):
                raise InputError(
                    f"{self._name}: {place} has {what} {getattr(found, what)}, and this model and strategy need "
                    f"{getattr(wanted, what)}; {advice}"
                )

    def _post(self, step: int, *, is_finished: bool = False) -> None:
        staleness = self.strategy.staleness
        progress = MemberProgress(
            steps=step,
            samples=self._figures.num_samples,
            samples_per_s=self._figures.samples_per_s(),
            loss=self._figures.loss,
            staleness_mean=staleness.mean,
            staleness_max=staleness.largest,
            updates=self.strategy.num_updates,
            lock_wait_s=self._session.seat.center.lock_wait_s,
            finished=is_finished,
            num_meetings=self._num_meetings,
        )
        self._members.post(progress)
        self._figures.see_workers(step, self._rows, is_finished=is_finished)

    def _say(self, sentence: str) -> None:
        say(f"{self._name}: {sentence}")

    def _rows(self) -> dict[int, Row]:
        """The rows of the job's ranks, except those that another member has taken."""
        board, members = self._session.seat.board, self._ranks.all()
        rows = ((rank, member, board.row(member.index)) for rank, member in enumerate(members))
        return {rank: row for rank, member, row in rows if row.member == member}

    def _lagging(self) -> dict[int, int]:
        """The ranks that still train, and the steps that they have reported."""
        rows = self._rows().items()
        return {rank: row.progress.steps for rank, row in rows if row.is_alive and not row.progress.finished}


def _ranks(processes: ProcessGroup, kept: KeptCenter | None, deadline: Callable[[], Deadline]) -> JobRanks:
    if kept is None:
        return JobRanks(processes.collectives, deadline)
    return KeptRanks(processes.collectives, deadline, kept.life)


def _pushers(group_size: int, num_members: int) -> int:
    return max(1, num_members // group_size)


def _there_already(who: str, place: Endpoint, buffer: str) -> str:
    return f"{who}: {place} has a buffer {buffer!r} already; join=True trains on it, buffer=... makes another"
