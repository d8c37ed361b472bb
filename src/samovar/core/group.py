"""The ordered set of ranks that train together."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """`world_size` ranks, of which this is number `rank` (0-based)."""

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size, (self.rank, self.world_size)


@dataclass(frozen=True, slots=True)
class Host:
    """Ranks that share memory, in rising order; the first one speaks for all."""

    name: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.ranks))
        return f"{self.name} (rank{'s' if len(self.ranks) > 1 else ''} {numbers})"


def rank_names(hosts: Sequence[Host]) -> list[str]:
    """Each rank's name in errors, in the order of ranks."""
    of_rank = {rank: host.name for host in hosts for rank in host.ranks}
    return [f"rank {rank} on {of_rank[rank]}" for rank in sorted(of_rank)]


def consecutive_sizes(hosts: Sequence[Host]) -> tuple[int, ...] | None:
    """The number of ranks of each host, if each host has consecutive ranks in the order of hosts."""
    ranks = [rank for host in hosts for rank in host.ranks]
    return tuple(len(host.ranks) for host in hosts) if ranks == sorted(ranks) else None


@dataclass(frozen=True, slots=True)
class JobHosts:
    """The hosts of a job with several, and the address and port at which each rank listens.

    `job` tells jobs apart that have the same key. Each worker has at least
    `threads` cores for computing, and `spare` more. If host 0's launcher keeps a center, `home` has the two places
    where it serves that, and windows that outlive their ranks.
    """

    job: str
    hosts: tuple[Host, ...]
    addresses: tuple[tuple[str, int], ...]
    threads: int = 1
    spare: int = 0
    home: tuple[tuple[str, int], ...] = ()

    def of(self, rank: int) -> Host:
        """The host of `rank`."""
        return next(host for host in self.hosts if rank in host.ranks)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of ranks of each host."""
        return tuple(len(host.ranks) for host in self.hosts)
