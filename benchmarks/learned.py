"""Tables and curves of finished runs, for the documents: mean and spread over seeds, next to one worker's.

A table has its place in docs/explanation/learning.md between `<!-- measured: NAME -->` and `<!-- end -->`, where
`into_page` puts it. Curves are kept in docs/pictures/learning.json, from which `tools/pictures.py learning` draws.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from figures import Figure
from ranks import FOLDER

PAGE = FOLDER.parent / "docs" / "explanation" / "learning.md"
CURVES = FOLDER.parent / "docs" / "pictures" / "learning.json"
LAST = 3  # tests, whose mean moves less than the last one


@dataclass(frozen=True)
class Test:
    """Accuracy, or loss, after `samples` of all workers and `seconds` of training."""

    samples: float
    value: float
    seconds: float = 0.0


Runs = Mapping[int, Sequence[Test]]  # of one strategy, by seed
Found = Mapping[str, Runs]


def end(tests: Sequence[Test]) -> float:
    return tests[-1].value


def last(tests: Sequence[Test]) -> float:
    return fmean(test.value for test in tests[-LAST:])


def against(found: Found, title: str, alone: str, tolerance: float | None) -> Figure:
    """The mean at the end over the seeds that both have; `tolerance` is how much lower it may be."""
    seeds = found[title].keys() & found[alone].keys()
    theirs = fmean(end(found[alone][seed]) for seed in seeds)
    ratios = [end(found[title][seed]) / theirs for seed in sorted(seeds)]
    bar, spread = None if tolerance is None else 1 - tolerance / theirs, (min(ratios), max(ratios))
    name = f"{title} / {alone}"
    return Figure(name, fmean(ratios) * theirs, theirs, "accuracy", fmean(ratios), *spread, len(ratios), bar)


def seconds_to(goal: float, tests: Sequence[Test]) -> float:
    """Of the first test that reaches it; infinity if none does."""
    return next((test.seconds for test in tests if test.value >= goal), math.inf)


def sooner(name: str, ours: Runs, theirs: Runs, goal: float, bar: float | None) -> Figure:
    """How many times as soon we reach the goal, on the seeds that both have."""
    seeds = sorted(ours.keys() & theirs.keys())
    our, their = ([seconds_to(goal, runs[seed]) for seed in seeds] for runs in (ours, theirs))
    ratios = [b / a for a, b in zip(our, their, strict=True)]
    spread = min(ratios), max(ratios)
    return Figure(name, fmean(our), fmean(their), "s", fmean(ratios), *spread, len(ratios), bar)


def compared(found: Found, alone: str, is_loss: bool = False) -> str:
    """Every run at its end, and over the last tests; differences to one worker rest on the seeds that both have."""
    unit = "Per cent" if is_loss else "Points"
    head = ["At the end, by seed", "Mean", f"{unit} to {alone}", f"Mean of the last {LAST} tests", f"{unit}"]
    rows = []
    for title, runs in found.items():
        ends = [end(runs[seed]) for seed in sorted(runs)]
        spread = f" ± {stdev(ends):.3f}" if len(ends) > 1 else ""
        differences = [_difference(runs, found.get(alone, {}), measure, is_loss) for measure in (end, last)]
        shown = ["" if title == alone else f"{difference:+.1f}" for difference in differences]
        each = ", ".join(f"{one:.3f}" for one in ends)
        of_last = f"{fmean(map(last, runs.values())):.3f}"
        rows.append([title, each, f"{fmean(ends):.3f}{spread}", shown[0], of_last, shown[1]])
    return as_table(["Strategy", *head], rows)


def _difference(ours: Runs, theirs: Runs, measure: object, is_loss: bool) -> float:
    seeds = ours.keys() & theirs.keys()
    if not seeds:
        return float("nan")
    our, their = (fmean(measure(runs[seed]) for seed in seeds) for runs in (ours, theirs))  # type: ignore[operator]
    return 100 * (our / their - 1 if is_loss else our - their)


def on_the_way(found: Found) -> str:
    """Means over seeds after equal parts of all samples."""
    samples = [test.samples for test in next(iter(next(iter(found.values())).values()))]
    rows = [[title, *(f"{value:.3f}" for _, value in mean_curve(runs))] for title, runs in found.items()]
    return as_table(["Samples", *(f"{count / 1000:,.0f}k" for count in samples)], rows)


def mean_curve(runs: Runs, by_time: bool = False) -> list[tuple[float, float]]:
    """(samples or seconds, value), as means over the seeds of each test."""
    tests = list(zip(*runs.values(), strict=False))
    return [
        (fmean(one.seconds if by_time else one.samples for one in same), fmean(one.value for one in same))
        for same in tests
    ]


def as_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_code(line[0], *line[1:]))} |" for line in lines)


def _code(title: str, *rest: str) -> tuple[str, ...]:
    """The name of a strategy as code."""
    return (re.sub(r"^([a-z]+(-[a-z]+)*)(?=$|,)", r"`\1`", title), *rest)


def into_page(name: str, *tables: str) -> None:
    """Replace what the page has for `name`; print it, too."""
    text = "\n\n".join(tables)
    print(text, flush=True)
    require_place(name)
    PAGE.write_text(_place(name).sub(lambda found: f"{found[1]}{text}\n{found[2]}", PAGE.read_text()))


def require_place(name: str) -> None:
    """Raises SystemExit if the page has no place for `name`: before runs that take hours."""
    if not _place(name).search(PAGE.read_text()):
        raise SystemExit(f"{PAGE.name} has no place for {name}: put <!-- measured: {name} --> and <!-- end --> there")


def _place(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- measured: {name} -->\n).*?(<!-- end -->)", re.DOTALL)


def keep_curves(panel: str, found: Found, by_time: bool = False) -> None:
    """The points of a panel of the picture, not rounded: picture and tables round the same values, once."""
    kept = json.loads(CURVES.read_text()) if CURVES.exists() else {}
    kept[panel] = {
        title: [[round(x, 1), value] for x, value in mean_curve(runs, by_time)] for title, runs in found.items()
    }
    CURVES.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
