"""The ranks that a process trains with, all of them or those that step together, and what all its replicas share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from samovar.api.uneven_inputs import Call, Event, Leaving, UnevenInputs
from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.collectives.hierarchical import HierarchicalCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.frontends.torch.buffers import Broadcast
from samovar.membership.job_center import Home
from samovar.strategies.config import StrategyConfig
from samovar.strategies.hybrid_easgd import GroupCollectives
from samovar.strategies.traits import AUTO
from samovar.transports.base import MappedWindow
from samovar.transports.hosts import HostsTransport
from samovar.transports.tcp import TcpTransport


class Member(Protocol):
    """A replica, as the ranks' roll call sees it."""

    def answer(self, call: Call) -> None:
        """Take part, without data, in what the active ranks do."""
        ...

    def level(self) -> None:
        """All ranks' data has ended: come to the same step, and to the same weights where they must be equal."""
        ...


class ProcessGroup:
    """Every rank makes one team per process, and its replicas in the same order. `first_rank` is its first one's.

    `home` is where centers lie that the job makes for itself; None: all ranks share a host.
    """

    def __init__(
        self, collectives: Collectives, timeout_s: float, first_rank: int = 0, home: Home | None = None
    ) -> None:
        self.collectives = collectives
        self.timeout_s = timeout_s
        self.first_rank = first_rank
        self.home = home
        self.roll_call = UnevenInputs(collectives, first_rank)
        self.broadcast = Broadcast(collectives)
        self._deadline = partial(Deadline.after, timeout_s)
        self._members: list[Member] = []
        self._depth = 0
        self._crew: ProcessGroup | None = None

    @property
    def group(self) -> Group:
        return self.collectives.group

    def crew(self, size: int, make: Callable[[], "ProcessGroup"]) -> "ProcessGroup":
        """Those `size` ranks, this one among them, that step together: this team, or what `make` gives the first time.

        A loop over data belongs to one crew. Raises InputError where an earlier replica's is another.
        """
        if self._crew is None:
            self._crew = self if size == self.group.world_size else make()
        if self._crew.group.world_size != size:
            raise InputError(
                f"replicate: steps of this strategy wait for {size} rank(s), those of an earlier replica here for "
                f"{self._crew.group.world_size}, and a loop over data cannot do both; give all replicas of a script "
                "strategies of one kind"
            )
        return self._crew

    def seat(self, member: Member, timeout_s: float) -> "ReplicaSeat":
        """The next replica's place in the roll call."""
        self._members.append(member)
        return ReplicaSeat(self.roll_call, len(self._members) - 1, partial(Deadline.after, timeout_s))

    def enter_loop(self) -> None:
        """A loop over divided data begins."""
        self._depth += 1

    def leave_loop(self) -> None:
        self._depth -= 1

    def answer_until_all_end(self) -> None:
        """This rank's data has ended: answer the others until theirs has."""
        while True:
            heard = self.roll_call.answer(self._depth, self._deadline)
            if isinstance(heard, Call):
                self._members[heard.replica].answer(heard)
            elif heard is not Leaving.NOT_YET:
                break
        if heard is Leaving.ALL:
            for member in self._members:
                member.level()


@dataclass(frozen=True, slots=True)
class ReplicaSeat:
    """Replica number `number` in the roll call."""

    roll_call: UnevenInputs
    number: int
    deadline: Callable[[], Deadline]

    def announce(self, event: Event, step: int, detail: float = 0.0) -> None:
        self.roll_call.announce(Call(self.number, event, step, detail), self.deadline)

    def num_active(self, event: Event, step: int, detail: float = 0.0) -> int:
        return self.roll_call.num_active(Call(self.number, event, step, detail), self.deadline)

    def levels(self, step: int, detail: float) -> list[tuple[int, float]]:
        """Every rank's step and detail, where nobody has data any more."""
        rows = self.roll_call.gather(Call(self.number, Event.LEVEL, step, detail), self.deadline)
        return [(int(row[3]), float(row[4])) for row in rows]


def crew_of(team: ProcessGroup, config: StrategyConfig) -> ProcessGroup:
    """Those of the team's ranks that step together by the resolved `config`; the same team for all replicas.

    Raises InputError where groups do not fit into hosts, or an earlier replica's crew is another.
    """
    if not config.is_async:
        return team.crew(team.group.world_size, lambda: team)
    size = config.group_size or 1
    _require_whole_groups(team.collectives, size)
    return team.crew(size, lambda: _group(team, size, config.collective))


def by_windows(collectives: Collectives) -> PlannedCollectives:
    """Collectives among the ranks whose windows this one reaches: by gloo those of its host, else all."""
    if isinstance(collectives, HierarchicalCollectives):
        return PlannedCollectives(collectives.local, lambda _num_bytes: "direct")
    assert isinstance(collectives, PlannedCollectives), collectives
    return collectives


def lasting_ranks(collectives: PlannedCollectives) -> Sequence[int]:
    """Whose part of a window can be read whatever becomes of them: those that share this rank's host."""
    transport = collectives.transport
    if isinstance(transport, HostsTransport):
        return tuple(transport.places)
    return (transport.group.rank,) if isinstance(transport, TcpTransport) else range(transport.group.world_size)


def _group(team: ProcessGroup, size: int, collective: str) -> ProcessGroup:
    """Where memory is mapped a group adds up in place."""
    reached = by_windows(team.collectives)
    probe = reached.region("probe", 0)
    best = "direct" if isinstance(probe.window, MappedWindow) else "tree"
    group = GroupCollectives(reached, size, best if collective == AUTO else collective)
    return ProcessGroup(group, team.timeout_s, team.group.rank - group.group.rank)


def _require_whole_groups(collectives: Collectives, size: int) -> None:
    for host in collectives.hosts if isinstance(collectives, HierarchicalCollectives) else ():
        if len(host.ranks) % size:
            raise InputError(
                f"hybrid-easgd: a group of {size} lies within one host, and {host} are no whole number of groups; "
                "give a group_size that divides the ranks of every host"
            )
