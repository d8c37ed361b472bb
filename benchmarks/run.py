"""Run a benchmark by name: `benchmarks/run.py lenet`.

Both sides of a figure run interleaved in one run; what is reported is the median of the pairs' ratios. Prints
a table, writes benchmarks/out/NAME.json, exits 1 where a bar does not hold.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import collectives
import lenet
import nets
import sync
import torch_sync
import two_hosts
from figures import Figure
from rich.console import Console
from rich.table import Table

BENCHMARKS: dict[str, Callable[[], list[Figure]]] = {
    "lenet": lenet.run,
    "collectives": collectives.run,
    "collectives-pair": collectives.run_pair,
    "collectives-sweep": collectives.run_sweep,
    "nets": nets.run,
    "round-trips": collectives.run_round_trips,
    "sync": sync.run,
    "torch": torch_sync.run,
    "two-hosts": two_hosts.run_speed,
}
ON_MNIST = "two-hosts-accuracy"
OUT = Path(__file__).parent / "out"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted([*BENCHMARKS, ON_MNIST]))
    parser.add_argument("--mnist", type=Path, help=f"the folder of MNIST's four IDX files, for {ON_MNIST}")
    given = parser.parse_args()
    name = given.name
    figures = two_hosts.run_accuracy(given.mnist) if name == ON_MNIST else BENCHMARKS[name]()
    show(name, figures)
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps([figure.to_json() for figure in figures], indent=2) + "\n")
    return 0 if all(figure.holds for figure in figures) else 1


def show(name: str, figures: list[Figure]) -> None:
    table = Table("figure", "ours", "theirs", "unit", "ratio (median)", "spread", "bar", "holds", title=name)
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.ours:,.4g}",
            f"{figure.theirs:,.4g}",
            figure.unit,
            f"{figure.ratio:.3f}",
            f"{figure.lowest:.3f} .. {figure.highest:.3f}",
            f"{figure.bar:.2f}" if figure.bar is not None else "-",
            "yes" if figure.holds else "NO",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
