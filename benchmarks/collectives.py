"""All-reduce against gloo, MPI and the memory's floor; put + notify against a bare futex.

`run.py collectives` has these rows, each also with its own name (see `benchmarks/run.py`):

- Two pinned ranks.
- 2, 4 and 8 ranks over five sizes: `--collective auto` against the better of gloo and MPI, and every other plan.
- Round trips.
- Two and four ranks over a network: every plan and gloo (`run.py collectives-network`).
- Two and four ranks over windows of MPI against its own all-reduce (`run.py collectives-mpi`).
- The same for two ranks on two hosts (`run.py collectives-mpi-hosts`).

MPI needs the extra `mpi` (mpi4py and mpich). Without it the comparison is with gloo alone, and says so.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from figures import Figure, compare
from hosts import ETHERNET_MTU, require_namespaces
from namespaces import NamespaceHost, mpiexec_over, two_hosts
from ranks import Ranks, own_cpus

from samovar.collectives.cost import choose_all_reduce, choose_between
from samovar.collectives.plan import Operation
from samovar.collectives.plans import ALL_REDUCES
from samovar.core.machine import NOMINAL
from samovar.launch.numa import place
from samovar.transports.keys import make_key
from samovar.transports.shm import create_segment

FOLDER = Path(__file__).parent
TIMEOUT_S = 900.0
WORLD_SIZES = (2, 4, 8)
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
PAIR_BARS = {4 << 10: 20.0, 28 << 20: 5.0, 244 << 20: 5.0}
MPI_SIZES = (28 << 20, 244 << 20)
NETWORK_SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
LARGE_BYTES = 32 << 20
# Beyond these the memory of one machine is short: every plan has staging areas of its own.
MAX_STAGING_BYTES = 2 << 30

Times = Mapping[str, Sequence[float]]  # side -> seconds of one all-reduce, a pair each


def run(short: bool = False) -> list[Figure]:
    return [*run_pair(short), *run_sweep(short), *run_round_trips(short)]


def run_pair(short: bool = False) -> list[Figure]:
    """Rows 1 and 2: two ranks on a core each."""
    bars = {size: bar for size, bar in PAIR_BARS.items() if not short or size < LARGE_BYTES}
    cells = [
        cell(size, ["direct", "gloo", "copy"] if size == max(bars) else ["direct", "gloo"], 2 if short else 11)
        for size in bars
    ]
    figures = []
    for times, (size, bar) in zip(measure(2, cells, with_mpi=False), bars.items(), strict=True):
        rates = {side: [1 / second for second in seconds] for side, seconds in times.items()}
        figures.append(compare(f"all-reduce {shown(size)}, 2 ranks / gloo", rates["direct"], rates["gloo"], "1/s", bar))
        if "copy" in rates:
            # A copy of one rank reads and writes N bytes each: 4N in all, what the sum in place has to move.
            ours, floor = (in_gigabytes(rates[side], 4 * size) for side in ("direct", "copy"))
            figures.append(compare(f"all-reduce {shown(size)}, 2 ranks / copying 4N bytes", ours, floor, "GB/s", 0.7))
    return figures


def run_network(short: bool = False) -> list[Figure]:
    """Ranks over loopback: encrypted windows against gloo without encryption, and the chosen plan against all."""
    world_sizes, sizes = (WORLD_SIZES[:1], NETWORK_SIZES[:1]) if short else (WORLD_SIZES[:2], NETWORK_SIZES)
    return [figure for world_size in world_sizes for figure in network(world_size, sizes, 2 if short else 15)]


def network(world_size: int, sizes: Sequence[int], num_pairs: int) -> list[Figure]:
    chosen = [f"tcp {choose_between(NOMINAL, world_size, size)}" for size in sizes]
    sides = [
        [f"tcp {name}" for name in plans(world_size, size, auto.removeprefix("tcp ")) if name != "direct"]
        for size, auto in zip(sizes, chosen, strict=True)
    ]
    cells = [cell(size, [*names, "gloo"], num_pairs) for size, names in zip(sizes, sides, strict=True)]
    figures = []
    measured = measure(world_size, cells, with_mpi=False)
    for size, auto, names, times in zip(sizes, chosen, sides, measured, strict=True):
        rates = {side: [1 / second for second in seconds] for side, seconds in times.items()}
        best = max(names, key=lambda side: median(rates[side]))
        where = f"{shown(size)}, {world_size} ranks: auto ({auto})"
        figures.append(compare(f"{where} / gloo", rates[auto], rates["gloo"], "1/s", None))
        figures.append(compare(f"{where} / best ({best})", rates[auto], rates[best], "1/s", 0.9))
    return figures


def run_mpi(short: bool = False) -> list[Figure]:
    """Our plan over windows of MPI against `MPI_Allreduce` of the same MPI, on one host."""
    if not importlib.util.find_spec("mpi4py"):
        raise SystemExit("mpi4py is not installed; run `pip install 'samovar[mpi]'`")
    world_sizes, sizes = (WORLD_SIZES[:1], SIZES[:1]) if short else (WORLD_SIZES[:2], MPI_SIZES)
    return [figure for world_size in world_sizes for figure in mpi_windows(world_size, sizes, 2 if short else 11)]


def mpi_windows(world_size: int, sizes: Sequence[int], num_pairs: int) -> list[Figure]:
    oversubscribed = place(world_size, 1).oversubscribed
    names = [choose_all_reduce(NOMINAL, world_size, size, False, oversubscribed) for size in sizes]
    cells = [cell(size, [f"mpi {name}", "mpi"], num_pairs) for size, name in zip(sizes, names, strict=True)]
    figures = []
    measured = measure(world_size, cells, with_mpi=True)
    for times, size, name in zip(measured, sizes, names, strict=True):
        rates = {side: [1 / second for second in seconds] for side, seconds in times.items()}
        what = f"{shown(size)}, {world_size} ranks: {name} over windows / MPI_Allreduce"
        figures.append(compare(what, rates[f"mpi {name}"], rates["mpi"], "1/s", 1.0))
    return figures


def run_mpi_hosts(short: bool = False) -> list[Figure]:
    """The same between two hosts, one rank each, on a cable with Ethernet's packets."""
    require_namespaces()
    sizes = SIZES[:1] if short else MPI_SIZES
    return [figure for rate in (None, "10gbit", "1gbit") for figure in mpi_between(rate, sizes, 2 if short else 7)]


def mpi_between(rate: str | None, sizes: Sequence[int], num_pairs: int) -> list[Figure]:
    names = [choose_between(NOMINAL, 2, size) for size in sizes]
    cells = [
        {"num_bytes": size, "sides": [f"mpi {name}", "mpi"], "num_runs": 1, "num_pairs": num_pairs}
        for size, name in zip(sizes, names, strict=True)
    ]
    with two_hosts(rate, ETHERNET_MTU) as hosts:
        before = hosts[0].traffic()
        measured = measure(2, cells, with_mpi=True, hosts=hosts)
        if hosts[0].traffic().num_bytes - before.num_bytes < sum(2 * (1 + num_pairs) * size for size in sizes):
            raise SystemExit("the sums have not gone over the cable: MPI takes both hosts for one")
    figures = []
    for times, size, name in zip(measured, sizes, names, strict=True):
        rates = {side: [1 / second for second in seconds] for side, seconds in times.items()}
        what = f"{shown(size)}, 2 hosts, {rate or 'no limit'}: {name} over windows / MPI_Allreduce"
        figures.append(compare(what, rates[f"mpi {name}"], rates["mpi"], "1/s", 0.9))
    return figures


def in_gigabytes(rates: Sequence[float], num_bytes: int) -> list[float]:
    return [rate * num_bytes / 1e9 for rate in rates]


def run_sweep(short: bool = False) -> list[Figure]:
    """Row 3: the chosen plan against gloo, MPI and the other plans."""
    world_sizes, sizes = (WORLD_SIZES[:1], SIZES[:2]) if short else (WORLD_SIZES, SIZES)
    figures = [figure for world_size in world_sizes for figure in sweep(world_size, sizes)]
    outside = [figure.ratio for figure in figures if figure.bar == 0.95]
    over_all = geometric_mean(outside)
    name = f"geometric mean over {len(outside)} cells / better of {' and '.join(others())}"
    return [*figures, Figure(name, over_all, 1.0, "x", over_all, min(outside), max(outside), len(outside), 1.0)]


def sweep(world_size: int, sizes: Sequence[int]) -> list[Figure]:
    oversubscribed = place(world_size, 1).oversubscribed
    chosen_plans = [choose_all_reduce(NOMINAL, world_size, size, True, oversubscribed) for size in sizes]
    candidates = [plans(world_size, size, chosen) for size, chosen in zip(sizes, chosen_plans, strict=True)]
    cells = [cell(size, [*names, *others()], num_pairs(size)) for size, names in zip(sizes, candidates, strict=True)]
    figures = []
    measured = measure(world_size, cells, with_mpi="mpi" in others())
    for size, chosen, names, times in zip(sizes, chosen_plans, candidates, measured, strict=True):
        rates = {side: [1 / second for second in seconds] for side, seconds in times.items()}
        where = f"{shown(size)}, {world_size} ranks"
        other = max(others(), key=lambda side: median(rates[side]))
        best = max(names, key=lambda side: median(rates[side]))
        figures.append(compare(f"{where}: auto ({chosen}) / {other}", rates[chosen], rates[other], "1/s", 0.95))
        figures.append(compare(f"{where}: auto ({chosen}) / best ({best})", rates[chosen], rates[best], "1/s", 0.9))
    return figures


def num_pairs(num_bytes: int) -> int:
    return 5 if num_bytes > LARGE_BYTES else 9 if num_bytes > 1 << 20 else 21


@cache
def others() -> tuple[str, ...]:
    return ("gloo", "mpi") if importlib.util.find_spec("mpi4py") else ("gloo",)


def plans(world_size: int, num_bytes: int, chosen: str) -> list[str]:
    """The plans whose staging areas fit, equal ones once: under the chosen plan's name, else under the first."""
    found: dict[tuple[tuple[Operation, ...], ...], str] = {}
    for name in (chosen, *ALL_REDUCES):
        ranks = [ALL_REDUCES[name](rank, world_size) for rank in range(world_size)]
        staging_bytes = ranks[0].num_stagings * ranks[0].largest_cell(num_bytes) * world_size
        if staging_bytes <= MAX_STAGING_BYTES:
            found.setdefault(tuple(plan.operations for plan in ranks), name)
    return list(found.values())


def cell(num_bytes: int, sides: list[str], num_pairs: int) -> dict[str, Any]:
    num_runs = max(1, min(50, (2 << 20) // num_bytes))
    return {"num_bytes": num_bytes, "sides": sides, "num_runs": num_runs, "num_pairs": num_pairs}


def shown(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"


def measure(
    world_size: int, cells: list[dict[str, Any]], with_mpi: bool, hosts: Sequence[NamespaceHost] = ()
) -> list[Times]:
    """Per cell the seconds of each side, from the first rank's begin to the last one's end."""
    placement = place(world_size, 1)
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        job = {
            "world_size": world_size,
            "oversubscribed": placement.oversubscribed,
            "cpus": placement.cpus,
            "folder": folder,
            "mpi": with_mpi,
            "between": len(hosts) > 0,
            "cells": cells,
        }
        make_key(Path(folder, "key.pem"))
        job_file = Path(folder, "job.json")
        job_file.write_text(json.dumps(job))
        program = [sys.executable, str(FOLDER / "collectives_rank.py"), str(job_file)]
        if hosts:
            launcher = mpiexec_over(hosts, [1] * len(hosts), Path(sys.executable).with_name("mpiexec"), Path(folder))
            subprocess.run([*launcher, *program], check=True, timeout=TIMEOUT_S)
        else:
            run_ranks(program, world_size, with_mpi)
        ranks = [json.loads(Path(folder, f"rank{rank}.json").read_text()) for rank in range(world_size)]
    return [together([rank[number] for rank in ranks], cell["num_runs"]) for number, cell in enumerate(cells)]


def run_ranks(program: list[str], world_size: int, with_mpi: bool) -> None:
    if with_mpi:
        launcher = str(Path(sys.executable).with_name("mpiexec"))
        subprocess.run([launcher, "-n", str(world_size), *program], check=True, timeout=TIMEOUT_S)
        return
    processes = [subprocess.Popen([*program, str(rank)]) for rank in range(world_size)]
    for process in processes:
        process.wait(TIMEOUT_S)
    if any(process.returncode != 0 for process in processes):
        raise SystemExit("a rank of the benchmark failed; see its error above")


def together(ranks: Sequence[Mapping[str, Sequence[tuple[float, float]]]], num_runs: int) -> Times:
    return {
        side: [
            (max(ended_s for _, ended_s in times) - min(began_s for began_s, _ in times)) / num_runs
            for times in zip(*(rank[side] for rank in ranks), strict=True)
        ]
        for side in ranks[0]
    }


def run_round_trips(short: bool = False) -> list[Figure]:
    """Row 4: ratios are theirs / ours in time, so 1 / 1.3 is the bar of 1.3x."""
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        bare = Path(folder, "futex_ping_pong")
        subprocess.run(["g++", "-O2", "-std=c++17", str(FOLDER / "futex_ping_pong.cpp"), "-o", str(bare)], check=True)
        times = measure_round_trips(bare, *((10, 2) if short else (1000, 15)))
    rates = {side: [1 / second for second in seconds] for side, seconds in times.items()}
    limit = [1 / 2e-6] * len(rates["spinning"])
    return [
        compare("round trip by futex / bare futex in C", rates["sleeping"], rates["bare"], "1/s", 1 / 1.3),
        compare("round trip spinning / 2 us", rates["spinning"], limit, "1/s", 1.0),
    ]


def measure_round_trips(bare: Path, num_runs: int, num_pairs: int) -> Times:
    segments = [create_segment(2) for _ in range(2)]
    job = {"segments": segments, "cpus": own_cpus(2), "bare": str(bare), "num_runs": num_runs, "num_pairs": num_pairs}
    with Ranks("round_trip_rank.py", [{**job, "rank": rank} for rank in range(2)], segments) as ranks:
        for segment in segments:
            os.close(segment)
        times: Times = ranks.answers()[0]
    return times
