"""Run a benchmark by name: `benchmarks/run.py lenet`.

Both sides of a figure run interleaved in one run, and the result is the median of the pairs' ratios. If that is by the
clock, the ratio of CPU time follows, for which other programs on the machine matter less. It prints a table, writes
benchmarks/out/NAME.json, and exits 1 if a bar does not hold.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import box
import checks
import collectives
import convergence
import crowded
import data
import elastic
import emulated
import faults
import foreseen
import gpu
import host_faults
import host_overlap
import host_train
import learning
import learning_sim
import learning_torch
import lenet
import nets
import predicted
import remote
import streaming
import sync
import times
import torch_sync
import two_hosts
from figures import Figure
from rich.console import Console
from rich.table import Table

# Each takes `short`: a few steps, to see that everything runs.
BENCHMARKS: dict[str, Callable[[bool], list[Figure]]] = {
    "box": box.run,
    "checks": checks.run,
    "lenet": lenet.run,
    "collectives": collectives.run,
    "collectives-mpi": collectives.run_mpi,
    "collectives-mpi-hosts": collectives.run_mpi_hosts,
    "collectives-network": collectives.run_network,
    "collectives-pair": collectives.run_pair,
    "collectives-sweep": collectives.run_sweep,
    "crowded": crowded.run,
    "data": data.run,
    "emulated": emulated.run,
    "faults": faults.run,
    "faults-hosts": host_faults.run,
    "gpu": gpu.run,
    "nets": nets.run,
    "predicted": predicted.run,
    "remote": remote.run,
    "streaming": streaming.run,
    "streaming-loss": streaming.run_loss,
    "round-trips": collectives.run_round_trips,
    "sync": sync.run,
    "sync-lenet": sync.run_lenet,
    "sync-cifar10": sync.run_cifar10,
    "sync-alexnet": sync.run_alexnet,
    "times": times.run,
    "torch": torch_sync.run,
    "two-hosts": two_hosts.run_speed,
    "two-hosts-box": two_hosts.run_box,
    "two-hosts-gradients": two_hosts.run_gradients,
    "two-hosts-overlap": host_overlap.run,
    "two-hosts-scaling": host_train.run_scaling,
    "two-hosts-train": host_train.run_ddp,
    "two-hosts-train-easgd": host_train.run_easgd,
    "two-hosts-train-easgd-int8": host_train.run_easgd_int8,
    "two-hosts-train-sync": host_train.run_sync,
}
ON_MNIST: dict[str, Callable[[Path | None, bool], list[Figure]]] = {
    **{name: partial(convergence.run, name=name) for name in convergence.STUDIES},
    "elastic-plain": elastic.run_plain,
    **{f"elastic-{name}": partial(elastic.run_plain, names=[name]) for name in elastic.PAIRS},
    "elastic-turns": elastic.run_turns,
    "foreseen": foreseen.run,
    "two-hosts-accuracy": two_hosts.run_accuracy,
}
# Each takes `finished`: only the tables of what is finished.
ON_CIFAR10: dict[str, Callable[[Path | None, bool, bool], list[Figure]]] = {
    **{name: partial(learning.run, name=name) for name in learning.STUDIES},
    "learning-simulated": learning_sim.run_many,
    "learning-slow": learning_sim.run_slow,
    "learning-time": learning_torch.run_time,
    "learning-torch": learning_torch.run_nets,
}
OUT = Path(__file__).parent / "out"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted([*BENCHMARKS, *ON_MNIST, *ON_CIFAR10]))
    parser.add_argument("--mnist", type=Path, help=f"the folder of MNIST's four IDX files, for {', '.join(ON_MNIST)}")
    parser.add_argument("--cifar10", type=Path, help=f"the folder of CIFAR-10's files, for {', '.join(ON_CIFAR10)}")
    parser.add_argument("--short", action="store_true", help="a few steps, to see that it runs; no bar, no file")
    parser.add_argument("--finished", action="store_true", help="of learning-...: no run, the tables of finished ones")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what it has made goes with it
    figures = figures_of(given.name, given)
    show(given.name, figures)
    if given.short:
        return 0
    OUT.mkdir(exist_ok=True)
    (OUT / f"{given.name}.json").write_text(json.dumps([figure.to_json() for figure in figures], indent=2) + "\n")
    return 0 if all(figure.holds for figure in figures) else 1


def figures_of(name: str, given: argparse.Namespace) -> list[Figure]:
    if name in ON_CIFAR10:
        return ON_CIFAR10[name](given.cifar10, given.short, given.finished)
    return ON_MNIST[name](given.mnist, given.short) if name in ON_MNIST else BENCHMARKS[name](given.short)


def show(name: str, figures: list[Figure]) -> None:
    table = Table(
        "figure", "ours", "theirs", "unit", "ratio (median)", "spread", "of CPU time", "bar", "holds", title=name
    )
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.ours:,.4g}",
            f"{figure.theirs:,.4g}",
            figure.unit,
            f"{figure.ratio:.3f}",
            f"{figure.lowest:.3f} .. {figure.highest:.3f}",
            "-" if figure.cpu_ratio is None else f"{figure.cpu_ratio:.3f}",
            f"{figure.bar:.3g}" if figure.bar is not None else "-",
            "yes" if figure.holds else "NO",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
