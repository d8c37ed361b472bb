"""The hosts that the ranks of a group run on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """Ranks that share memory, in rising order; the first one speaks for all."""

    name: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.ranks))
        return f"{self.name} (rank{'s' if len(self.ranks) > 1 else ''} {numbers})"
