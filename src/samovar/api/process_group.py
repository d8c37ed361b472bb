"""The ranks that a process trains with, all or those that step together, and the state that its replicas share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Protocol, cast

import torch

from samovar.api.emulated import Emulated
from samovar.api.heartbeats import Heartbeats
from samovar.api.uneven_inputs import Call, Event, Leaving, Rows, UnevenInputs
from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.collectives.hierarchical import HierarchicalCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, ReplicasDiffer
from samovar.core.group import Group
from samovar.frontends.torch.state import Broadcast
from samovar.membership.job_center import Home
from samovar.strategies.base import kind_of
from samovar.strategies.config import StrategyConfig
from samovar.strategies.hybrid_easgd import GroupCollectives
from samovar.transports.base import PeerTransport
from samovar.transports.hosts import HostsTransport
from samovar.transports.torch_dist import ConnectNear, NearCollectives


class UnevenReplica(Protocol):
    """A replica whose ranks may have uneven inputs."""

    config: StrategyConfig

    def shadow(self, call: Call) -> None:
        """Take part, without data, in what the active ranks do."""

    def even_out(self) -> None:
        """All ranks' data has ended: come to the same step, and to the same weights if these must be equal."""


class ProcessGroup:
    """A group of ranks, beginning with `first_rank`. Every rank makes one, and its replicas in the same order.

    `home` is the place for centers of the job's own; None if all ranks share a host. `local_rank` is this rank's number
    on its host. `heartbeats` says which waits continue after `timeout_s`. `connect_near` connects
    the devices of all ranks, if each has one that can be reached. `emulated` is set where a described cluster is.
    """

    def __init__(
        self,
        collectives: Collectives,
        timeout_s: float,
        first_rank: int = 0,
        home: Home | None = None,
        local_rank: int | None = None,
        heartbeats: Heartbeats | None = None,
        connect_near: ConnectNear | None = None,
        emulated: Emulated | None = None,
    ) -> None:
        self.collectives = collectives
        self.timeout_s = timeout_s
        self.first_rank = first_rank
        self.home = home
        self.local_rank = collectives.group.rank if local_rank is None else local_rank
        self.heartbeats = heartbeats or Heartbeats()
        self.emulated = emulated
        self.uneven = UnevenInputs(collectives, first_rank)
        self.broadcast = Broadcast(collectives)
        self._connect_near = connect_near
        self._near: NearCollectives | None = None
        self._members: dict[int, UnevenReplica] = {}
        self._numbers = count()  # of replicas, also those of its step groups
        self._step_groups: dict[int, ProcessGroup] = {}

    @property
    def group(self) -> Group:
        return self.collectives.group

    def collectives_for(self, config: StrategyConfig, device: torch.device | None) -> Collectives:
        """Collectives for models on `device` (None: the CPU): of its own memory if ranks and strategy allow it.

        The first call connects the devices: all ranks make it together. Other devices of a rank are not connected.
        """
        if device is None or self._connect_near is None or not kind_of(config.name).computes_near(config):
            return self.collectives
        if self._near is None:
            self._near = self._connect_near(self.collectives)
        return cast(Collectives, self._near) if self._near.device == device else self.collectives

    @property
    def is_back(self) -> bool:
        """Whether this process was started again alone, and the others train already."""
        return self.home is not None and self.home.kept is not None and self.home.kept.life > 0

    def step_group(self, size: int, make: Callable[[], "ProcessGroup"]) -> "ProcessGroup":
        """The `size` ranks that step together with this one: all, or what `make` gives the first time.

        A loop over data belongs to one such group. Raises InputError if an open replica has another.
        """
        for other, group in self._step_groups.items():
            if other != size and group._members:
                raise InputError(
                    f"replicate: a step of this strategy waits for {size} rank(s), and that of an earlier replica for "
                    f"{other}; close() that replica first, or give both strategies of one kind"
                )
        if size not in self._step_groups:
            self._step_groups[size] = self if size == self.group.world_size else make()
            self._step_groups[size]._numbers = self._numbers
        return self._step_groups[size]

    def announcer(self, member: UnevenReplica, timeout_s: float) -> "Announcer":
        """The announcer of the next replica, which tells the other ranks of its steps."""
        number = next(self._numbers)
        self._members[number] = member
        return Announcer(self.uneven, number, partial(self.heartbeats.deadline, timeout_s))

    def counter(self, name: str, mark: float, deadline: Callable[[], Deadline]) -> Callable[[], int]:
        """A count from 0 that all ranks share under `name`: each call gives the next number.

        Raises ReplicasDiffer if a rank that came before has another `mark`, InputError if the count might be lost, and
        what `Rendezvous` raises. Cost: a question to the job's store for each call.
        """
        if self.group.world_size == 1:
            return count().__next__
        store = self.heartbeats.store
        if store is None or (self.home is not None and self.home.kept is not None):
            raise InputError(
                "shard: on_demand: under samovar run --keep-going the count of batches would be lost with rank 0; "
                "leave on_demand or --keep-going out"
            )
        # The first rank of each mark claims the name, so there is one mark.
        if store.claim(f"{name}/{mark!r}", deadline()) and not store.claim(f"{name}/first", deadline()):
            raise ReplicasDiffer(
                f"rank {self.group.rank}: shard: on_demand: another rank divides this epoch in another order, or in "
                "batches of another size; give all ranks the same data, batch_size, sampler and seed"
            )
        return lambda: store.count(name, 1, deadline()) - 1

    def forget(self, announcer: "Announcer") -> None:
        """A replica takes part in nothing any more."""
        del self._members[announcer.number]
        self.uneven.forget(announcer.number)

    def shadow_until_all_end(self) -> None:
        """After this rank's data has ended, answer the others until theirs has. They call at exchanges alone."""
        periods = [member.config.sync_period_steps or 1 for member in self._members.values()]
        patience = partial(self.heartbeats.deadline, self.timeout_s * max(periods, default=1))
        while True:
            heard = self.uneven.shadow(patience)
            if isinstance(heard, Call):
                self._member(heard).shadow(heard)
            elif heard is not Leaving.NOT_YET:
                break
        if heard is Leaving.ALL:
            for member in list(self._members.values()):
                member.even_out()

    def _member(self, call: Call) -> UnevenReplica:
        if call.replica not in self._members:
            raise ReplicasDiffer(
                f"rank {self.first_rank + self.group.rank}: other ranks are at {call}, which is closed here; close "
                "replicas at the same place on all ranks"
            )
        return self._members[call.replica]


@dataclass(frozen=True, slots=True)
class Announcer:
    """Replica number `number` tells the other ranks its next call, and learns which of them take part."""

    uneven: UnevenInputs
    number: int
    deadline: Callable[[], Deadline]

    def among(self, processes: ProcessGroup) -> "Announcer":
        """The announcer of the same replica among these ranks."""
        return replace(self, uneven=processes.uneven)

    def listen(self, hear: Callable[[Rows], None]) -> None:
        self.uneven.listen(self.number, hear)

    def show_figures(self, figures: Sequence[float]) -> None:
        self.uneven.show_figures(self.number, figures)

    def announce(self, event: Event, step: int, detail: float = 0.0) -> None:
        self.uneven.announce(Call(self.number, event, step, detail), self.deadline)

    def num_active(self, event: Event, step: int, detail: float = 0.0) -> int:
        return self.uneven.num_active(Call(self.number, event, step, detail), self.deadline)

    def agree(self, event: Event, step: int, detail: float = 0.0) -> int:
        """Meet all ranks here: how many have data. Raises ReplicasDiffer if one is at another call, or detail."""
        self.announce(event, step, detail)
        return self.num_active(event, step, detail)

    def gathered(self, step: int, detail: float) -> list[tuple[int, float]]:
        """Every rank's step and detail, after all data has ended."""
        rows = self.uneven.gather(Call(self.number, Event.EVEN_OUT, step, detail), self.deadline)
        return [(int(row[3]), float(row[4])) for row in rows]


def step_group_of(processes: ProcessGroup, config: StrategyConfig) -> ProcessGroup:
    """The ranks that step together with this one by the resolved `config`. They are the same for all open replicas.

    Raises InputError if groups do not fit into hosts, or an open replica has another step group.
    """
    if not config.is_async:
        return processes.step_group(processes.group.world_size, lambda: processes)
    size = config.group_size or 1
    _require_whole_groups(processes.collectives, size)
    return processes.step_group(size, lambda: _group(processes, size, config.collective))


def by_windows(collectives: Collectives) -> PlannedCollectives:
    """Collectives among the ranks whose windows this one reaches: with gloo those of its host, else all."""
    if isinstance(collectives, HierarchicalCollectives):
        return PlannedCollectives(collectives.local, lambda _num_bytes: "direct")
    assert isinstance(collectives, PlannedCollectives), collectives
    return collectives


def lasting_ranks(collectives: PlannedCollectives) -> Sequence[int]:
    """The ranks whose part of a window stays readable if they die: those that share this rank's host."""
    transport = collectives.transport
    if isinstance(transport, HostsTransport):
        return tuple(transport.places)
    return (transport.group.rank,) if isinstance(transport, PeerTransport) else range(transport.group.world_size)


def _group(processes: ProcessGroup, size: int, collective: str) -> ProcessGroup:
    reached = by_windows(processes.collectives)
    group = GroupCollectives.among(reached, size, collective, reached.region("probe", 0).window)
    first_rank = processes.group.rank - group.group.rank
    heartbeats, emulated = processes.heartbeats, processes.emulated
    return ProcessGroup(group, processes.timeout_s, first_rank, heartbeats=heartbeats, emulated=emulated)


def _require_whole_groups(collectives: Collectives, size: int) -> None:
    for host in collectives.hosts if isinstance(collectives, HierarchicalCollectives) else ():
        if len(host.ranks) % size:
            raise InputError(
                f"hybrid-easgd: a group of {size} must be inside one host, and {host} are not a whole number of "
                "groups; give a group_size that divides the ranks of every host"
            )
