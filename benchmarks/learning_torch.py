"""How well and how soon torch's nets learn: plain torch, DDP on gloo, and `samovar.replicate` by recipe.

`learning-torch`: ResNet-20 on CIFAR-10, and a transformer on the sources of the standard library, with four ranks.
Every run has the same batches and number of samples. ResNet-20 is compared by its accuracy on held-out images, the
transformer by its loss on held-out files. If there is a GPU, the ranks compute on it, and may share it.

`learning-time`: the seconds of training until CIFAR-10 quick reaches an accuracy. Two workers of one thread are
compared with one worker, with plain torch on two threads, and with DDP. Sides take turns, seed by seed, and need a
machine without other programs. In step only training counts. Asynchronous workers train on while rank 0 tests, so
their seconds have its tests.

Each run leaves a line in benchmarks/results/NAME.jsonl, and is not repeated.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from figures import Figure
from finished import Finished, settings_of
from learned import Found, Test, against, as_table, compared, end, into_page, keep_curves, seconds_to, sooner
from learning import SEEDS, prepared
from ranks import FOLDER
from trained import SAMOVAR, trained

PLAIN, DDP = "plain", "ddp"
TITLES = {PLAIN: "plain torch", DDP: "DDP"}
NUM_TESTS, MOST_ACCURACY_LOST, MOST_LOSS = 8, 0.005, 1.01
GOAL, NUM_GOAL_TESTS = 0.70, 16


@dataclass(frozen=True)
class Net:
    """A net, its batch of all ranks together, the samples of a run, and what is compared."""

    name: str
    title: str
    batch: int
    num_samples: int
    is_loss: bool
    sides: Sequence[str]
    test_images: int = 10_000
    is_adaptive: bool = False  # its optimizer


SIDES = (PLAIN, DDP, "diloco", "async-easgd", "sync", "sync-easgd", "local-sgd")
NETS = (
    Net("resnet20", "ResNet-20", 128, 409_600, False, SIDES),
    Net("transformer", "transformer", 16, 16_000, True, SIDES, is_adaptive=True),
)
QUICK = Net("cifar10_quick", "CIFAR-10 quick", 100, 400_000, False, (PLAIN, DDP))


@dataclass(frozen=True)
class Run:
    """One run of a side on `num_ranks` ranks."""

    net: Net
    side: str
    num_ranks: int
    seed: int
    threads: int = 1
    num_tests: int = NUM_TESTS

    @property
    def title(self) -> str:
        return f"{self.net.title}, {TITLES.get(self.side, self.side)}"

    def tests(self, folder: Path, finished: Finished) -> list[Test] | None:
        is_ours, adaptive = self.side not in TITLES, self.net.is_adaptive
        settings = settings_of(self.side, self.num_ranks, is_adaptive=adaptive) if is_ours else {}
        return finished.tests(self.title, self.seed, settings, partial(self._learned, folder))

    def _learned(self, folder: Path) -> list[Test]:
        out = folder / "tests.json"
        job = {"net": self.net.name, "side": self.side, "batch": self.net.batch, "seed": self.seed}
        job |= {
            "device": "cuda" if torch.cuda.is_available() and self.net.name != QUICK.name else "cpu",
            "test_images": self.net.test_images,
            "num_samples": self.net.num_samples,
            "num_tests": self.num_tests,
            "threads": self.threads,
        }
        words = (FOLDER / "learning_rank.py", json.dumps({**job, "folder": str(folder), "out": str(out)}))
        program = (sys.executable,) if self.side == PLAIN else (SAMOVAR, "run", "--workers", self.num_ranks)
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        subprocess.run([str(word) for word in (*program, *words)], cwd=folder, check=True, env=environment)
        tests = [Test(**test) for test in json.loads(out.read_text())["tests"]]
        print(f"{self.title}, seed {self.seed}: {tests[-1].value:.4f}", flush=True)
        out.unlink()
        return tests


def run_nets(source: Path | None, short: bool = False, finished: bool = False) -> list[Figure]:
    (folder, kept), figures, tables = prepared(source, "learning-torch", short, finished), [], []
    for net in NETS:
        small = replace(net, num_samples=8 * net.batch, sides=net.sides[:3], test_images=500) if short else net
        found: dict[str, dict[int, list[Test]]] = {}
        for seed, side in ((seed, side) for seed in SEEDS[: 1 if short else None] for side in small.sides):
            one = Run(small, side, 1 if side == PLAIN else 4, seed, num_tests=2 if short else NUM_TESTS)
            if tests := one.tests(folder, kept):
                found.setdefault(TITLES.get(side, side), {})[seed] = tests
        alone = TITLES[PLAIN]
        if found:
            kind = "loss" if net.is_loss else "accuracy"
            tables.append(f"{net.title}, {kind}:\n\n{compared(found, alone, net.is_loss)}")
        ours = [title for title in found if title != alone and found[title].keys() & found.get(alone, {}).keys()]
        figures += [_figure(found, net, title) for title in ours]
    if tables and not short:
        into_page("learning-torch", *tables)
    return figures


def _figure(found: Found, net: Net, title: str) -> Figure:
    """Of a loss, one worker's divided by ours."""
    alone = TITLES[PLAIN]
    if not net.is_loss:
        return replace(against(found, title, alone, MOST_ACCURACY_LOST), name=f"{net.title}: {title} / {alone}")
    seeds = sorted(found[title].keys() & found[alone].keys())
    theirs, ours = (fmean(end(found[name][seed]) for seed in seeds) for name in (alone, title))
    ratios = [theirs / end(found[title][seed]) for seed in seeds]
    spread = min(ratios), max(ratios)
    name = f"{net.title}: {alone} / {title}"
    return Figure(name, theirs, ours, "loss", theirs / ours, *spread, len(seeds), 1 / MOST_LOSS)


@dataclass(frozen=True)
class Trained:
    """A side of `learning-time` by `samovar train`."""

    title: str
    seed: int
    num_workers: int
    strategy: str = "sync"

    def tests(self, folder: Path, finished: Finished) -> list[Test] | None:
        settings = settings_of(self.strategy, self.num_workers) if self.num_workers > 1 else {}
        return finished.tests(self.title, self.seed, settings, partial(self._trained, folder))

    def _trained(self, folder: Path) -> list[Test]:
        num_steps = QUICK.num_samples // QUICK.batch
        solver = folder / "often.prototxt"
        text = (folder / "solver.prototxt").read_text().replace("test_interval: 500", "").replace("snapshot: 4000", "")
        interval = f"test_interval: {num_steps // NUM_GOAL_TESTS}"
        solver.write_text(f"{text}\n{interval}\ntest_initialization: false\nsnapshot: 0\n")
        flags = ("--workers", self.num_workers, "--threads-per-worker", 1, "--seed", self.seed)
        sharing = ("--strategy", self.strategy, "--recipe", "auto") if self.num_workers > 1 else ()
        tests = trained(folder, "--solver", solver, "--iterations", num_steps, *flags, *sharing)["tests"]
        return [Test(test["step"] * QUICK.batch, test["accuracy"], test["seconds"]) for test in tests]


def goal_sides() -> Iterator[Run | Trained]:
    """In turn, for each seed."""
    for seed in SEEDS:
        yield Trained("sync, 2 workers", seed, 2)
        yield Trained("one worker", seed, 1)
        yield Run(QUICK, PLAIN, 1, seed, threads=2, num_tests=NUM_GOAL_TESTS)
        yield Run(QUICK, DDP, 2, seed, num_tests=NUM_GOAL_TESTS)
        yield Trained("async-easgd, 2 workers", seed, 2, "async-easgd")


def run_time(source: Path | None, short: bool = False, finished: bool = False) -> list[Figure]:
    if short:
        return []
    folder, kept = prepared(source, "learning-time", finished=finished)
    found: dict[str, dict[int, list[Test]]] = {}
    for side in goal_sides():
        if tests := side.tests(folder, kept):
            title = (
                f"{TITLES[side.side]}, {side.threads * side.num_ranks} cores" if isinstance(side, Run) else side.title
            )
            found.setdefault(title, {})[side.seed] = tests
    if found:
        into_page("learning-time", goal_table(found))
        keep_curves("learning-time", found, by_time=True)
    ours = found.get("sync, 2 workers", {})
    bars = {"one worker": 1.7, f"{TITLES[PLAIN]}, 2 cores": 1.2}
    return [
        sooner(f"time to {GOAL:g}: {title} / sync, 2 workers", ours, theirs, GOAL, bars.get(title))
        for title, theirs in found.items()
        if theirs is not ours and ours.keys() & theirs.keys()
    ]


def goal_table(found: Found) -> str:
    rows = []
    for title, runs in found.items():
        seconds = ", ".join(f"{seconds_to(GOAL, tests):.0f}" for tests in runs.values())
        rate = fmean(tests[-1].samples / tests[-1].seconds for tests in runs.values())
        rows.append([title, seconds, f"{rate:,.0f}", ", ".join(f"{end(tests):.3f}" for tests in runs.values())])
    return as_table(["Side", f"Seconds to {GOAL:g}, by seed", "Samples/s", "Accuracy at the end"], rows)
