"""A measured comparison: pairs of rates taken one after the other in one run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median, quantiles

from ranks import Rates


@dataclass(frozen=True, slots=True)
class Figure:
    """`ratio` is the median over pairs of ours / theirs; `lowest` and `highest` are their quartiles.

    `cpu_ratio` is the same of what the processes computed: other programs on the machine count less there, and waiting
    counts only where it spins.
    """

    name: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    lowest: float
    highest: float
    num_pairs: int
    bar: float | None
    cpu_ratio: float | None = None

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


def compare_both(name: str, ours: Rates, theirs: Rates, bar: float | None, unit: str = "samples/s") -> Figure:
    """A figure by the clock, with the ratio of CPU time as `cpu_ratio`."""
    cpu_ratio = compare(name, ours.cpu, theirs.cpu, unit, None).ratio
    return replace(compare(name, ours.wall, theirs.wall, unit, bar), cpu_ratio=cpu_ratio)
