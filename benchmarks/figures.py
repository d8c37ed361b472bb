"""A measured comparison: pairs of rates taken one after the other in one run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles


@dataclass(frozen=True, slots=True)
class Figure:
    """`ratio` is the median over pairs of ours / theirs; `lowest` and `highest` are their quartiles."""

    name: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    lowest: float
    highest: float
    num_pairs: int
    bar: float | None

    @property
    def holds(self) -> bool:
        return self.bar is None or self.ratio >= self.bar

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "holds": self.holds}


def compare(name: str, ours: Sequence[float], theirs: Sequence[float], unit: str, bar: float | None) -> Figure:
    """A figure from paired rates (higher is better)."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    lowest, _, highest = quantiles(ratios, n=4)
    return Figure(name, median(ours), median(theirs), unit, median(ratios), lowest, highest, len(ratios), bar)
