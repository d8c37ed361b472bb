"""Tables of published and simulated figures, and the source of each input of a simulation."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

PUBLISHED, FITTED, OURS = "published", "fitted", "ours"


@dataclass(frozen=True)
class Input:
    """A number that the simulation is given: from the paper, fitted to named rows of it, or our own."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class PaperRow:
    """A simulated figure. It is compared with the published one, or with a limit.

    A figure to which an input was fitted is `is_fitted`: it claims nothing.
    """

    name: str
    simulated: float
    published: float | None = None
    within: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    is_fitted: bool = False

    @property
    def error(self) -> float | None:
        return None if not self.published else self.simulated / self.published - 1

    @property
    def holds(self) -> bool:
        is_near = self.within is None or self.error is None or abs(self.error) <= self.within
        is_high = self.at_least is None or self.simulated >= self.at_least
        return is_near and is_high and (self.at_most is None or self.simulated <= self.at_most)

    @property
    def bar(self) -> str:
        words = [f"within {self.within:.0%}"] if self.within is not None else []
        words += [f"at least {self.at_least:g}"] if self.at_least is not None else []
        words += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        return "fitted to it" if self.is_fitted else ", ".join(words)


def show(title: str, inputs: Sequence[Input], rows: Sequence[PaperRow]) -> int:
    """Print both tables; 1 if a bar does not hold, else 0."""
    console = Console(width=120)
    given = Table("input", "value", "from", title=f"{title}: inputs")
    for one in inputs:
        given.add_row(one.name, one.value, one.source)
    console.print(given)
    table = Table("figure", "published", "simulated", "error", "bar", "holds", title=f"{title} (simulated)")
    for row in rows:
        table.add_row(
            row.name,
            "-" if row.published is None else f"{row.published:.4g}",
            f"{row.simulated:.4g}",
            "-" if row.error is None else f"{row.error:+.1%}",
            row.bar or "-",
            "yes" if row.holds else "NO",
        )
    console.print(table)
    failed = [row.name for row in rows if not row.holds]
    if failed:
        print(f"does not hold: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
