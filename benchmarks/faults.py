"""Workers that are killed or stopped: `samovar train --strategy async-easgd`, LeNet on the digits, four workers.

Steps are read from the run's own board. The others' rate while a rank is away is compared with theirs just before,
over the same time. The accuracy of runs with killed workers is compared with that of runs without.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from figures import Figure, compare
from ranks import FOLDER

from samovar.box.board import Board
from samovar.data.digits import write_digits

SOLVER = FOLDER.parent / "examples" / "lenet" / "digits_solver.prototxt"
SAMOVAR = Path(sys.executable).with_name("samovar")
WORKERS, STRATEGY = 4, "async-easgd"
ENDLESS, FINITE = 10_000_000, 1500
KILLS, STOPS, RUNS = 10, 5, 3
BEFORE_S, STOP_S, AWAY_S = 4.0, 10.0, 5.0
WAIT_S, POLL_S = 120.0, 0.005
RANK = re.compile(r"--rank=(\d+)")
BOARD = re.compile(r"--board=(\d+)")

Pair = tuple[float, float]


class Run:
    """A run of four workers that ends after `num_steps`, or when it is stopped."""

    def __init__(self, folder: Path, num_steps: int, seed: int = 1) -> None:
        self.out = folder / f"run-{time.monotonic_ns()}"
        flags = ("--workers", WORKERS, "--threads-per-worker", 1, "--batch-mode", "global", "--strategy", STRATEGY)
        command = (SAMOVAR, "train", "--solver", SOLVER, *flags, "--seed", seed, "--iterations", num_steps)
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([str(word) for word in (*command, "--out", self.out)], cwd=folder, **quiet)
        self._board = Board(self._opened())

    def rank(self, rank: int) -> psutil.Process | None:
        """The rank's present process."""
        for child in psutil.Process(self._process.pid).children():
            try:
                found = RANK.search(" ".join(child.cmdline()))
            except psutil.Error:
                continue
            if found and int(found[1]) == rank:
                return child
        return None

    def steps(self, ranks: Sequence[int]) -> int:
        """The steps of all these ranks together."""
        return sum(self._board.row(rank).progress.steps for rank in ranks)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > until_s or self._process.poll() is not None:
                raise SystemExit(f"this did not happen in time: {what}; see {self.out}")
            time.sleep(POLL_S)

    def steps_per_second(self, ranks: Sequence[int], seconds: float) -> float:
        """The ranks' rate while none is disturbed."""
        began_s, before = time.monotonic(), self.steps(ranks)
        time.sleep(seconds)
        return (self.steps(ranks) - before) / (time.monotonic() - began_s)

    def accuracy(self) -> float:
        """The result, after the end of the run."""
        if self._process.wait(WAIT_S) != 0:
            raise SystemExit(f"a run failed; see {self.out}")
        return float(json.loads((self.out / "result.json").read_text())["test_accuracy"])

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(WAIT_S)

    def _opened(self) -> int:
        """The board's memory, which the launcher has."""
        self.wait(lambda: self.rank(0), "rank 0")
        process = self.rank(0)
        found = BOARD.search(" ".join(process.cmdline()))
        return os.open(f"/proc/{self._process.pid}/fd/{found[1] if found else None}", os.O_RDWR)


def run(short: bool = False) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as name:
        folder = Path(name)
        write_digits(folder / "data")
        return [
            *of_kills(folder, 2 if short else KILLS, short),
            of_stops(folder, 2 if short else STOPS, 0.5 if short else STOP_S, short),
            of_accuracy(folder, 2 if short else RUNS, 200 if short else FINITE, short),
        ]


def of_kills(folder: Path, num_kills: int, short: bool) -> list[Figure]:
    """How soon a killed rank has made a step again, against five seconds; and the others' rates until then."""
    away_s, rates = [], []
    with endless(folder) as run:
        for kill in range(num_kills):
            seconds, pair = killed(run, kill % WORKERS)
            away_s.append(seconds)
            rates.append(pair)
    print("killed ranks trained again after", ", ".join(f"{seconds:.2f}" for seconds in away_s), "s", flush=True)
    return [
        compare(
            "trains again after a kill", [1 / each for each in away_s], [1 / AWAY_S] * num_kills, "1/s", bar(1, short)
        ),
        others("others while a killed rank comes back / before", rates, short),
    ]


def killed(run: Run, victim: int) -> tuple[float, Pair]:
    """Seconds until the victim's next step, and the others' rates meanwhile and before."""
    rest = [rank for rank in range(WORKERS) if rank != victim]
    before = run.steps_per_second(rest, BEFORE_S)
    process, began_s = run.rank(victim), time.monotonic()
    process.kill()
    steps_then, own = run.steps(rest), run.steps([victim])
    run.wait(lambda: run.steps([victim]) > own + 1, f"rank {victim} trains again")
    seconds = time.monotonic() - began_s
    return seconds, ((run.steps(rest) - steps_then) / seconds, before)


def of_stops(folder: Path, num_stops: int, stop_s: float, short: bool) -> Figure:
    rates = []
    with endless(folder) as run:
        for stop in range(num_stops):
            victim = stop % WORKERS
            rest = [rank for rank in range(WORKERS) if rank != victim]
            before = run.steps_per_second(rest, BEFORE_S)
            process = run.rank(victim)
            process.suspend()
            rates.append((run.steps_per_second(rest, stop_s), before))
            process.resume()
            steps = run.steps([victim])
            run.wait(lambda: run.steps([victim]) > steps + 1, f"rank {victim} continues")  # noqa: B023
    return others(f"others while a rank is stopped for {stop_s:g} s / before", rates, short)


def of_accuracy(folder: Path, num_runs: int, num_steps: int, short: bool) -> Figure:
    """Each run with three kills, against one of the same seed without."""
    found = []
    for seed in range(1, num_runs + 1):
        disturbed = Run(folder, num_steps, seed)
        for kill in range(1, WORKERS):
            aim = WORKERS * num_steps * kill // (WORKERS + 1)
            disturbed.wait(lambda: disturbed.steps(range(WORKERS)) >= aim, f"step {aim}")  # noqa: B023
            disturbed.rank(kill).kill()
        found.append((disturbed.accuracy(), Run(folder, num_steps, seed).accuracy()))
    ours, theirs = zip(*found, strict=True)
    return compare("accuracy with three kills / without", ours, theirs, "of 1", bar(0.995, short))


@contextmanager
def endless(folder: Path) -> Iterator[Run]:
    """A run in which every rank trains."""
    run = Run(folder, ENDLESS)
    try:
        run.wait(lambda: all(run.steps([rank]) > 1 for rank in range(WORKERS)), "the first steps")
        yield run
    finally:
        run.close()


def others(name: str, rates: Sequence[Pair], short: bool) -> Figure:
    meanwhile, before = zip(*rates, strict=True)
    return compare(name, meanwhile, before, "steps/s", bar(0.9, short))


def bar(value: float, short: bool) -> float | None:
    return None if short else value
