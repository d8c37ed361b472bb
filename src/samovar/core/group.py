"""The ordered set of ranks that train together."""

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
