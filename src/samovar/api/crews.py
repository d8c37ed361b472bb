"""Which ranks step together: all, a group of them, or each by itself."""

from collections.abc import Sequence

from samovar.api.process_group import ProcessGroup
from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.collectives.hierarchical import HierarchicalCollectives
from samovar.core.errors import InputError
from samovar.strategies.config import StrategyConfig
from samovar.strategies.hybrid_easgd import GroupCollectives
from samovar.strategies.traits import AUTO
from samovar.transports.base import MappedWindow
from samovar.transports.hosts import HostsTransport
from samovar.transports.tcp import TcpTransport


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
