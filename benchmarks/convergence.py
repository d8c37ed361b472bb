"""The accuracy of strategies on MNIST: `samovar train`, LeNet with its published solver.

Four workers of one thread share a batch of 64, and are compared with one worker of the same batch. Asynchronous
workers train 10 epochs (`convergence`), workers in step train 5 (`convergence-sync`). Each run leaves a file in
benchmarks/out/ and is not repeated while that exists, so this can be interrupted and continued. The test set is used
once, at the end. No result depends on time. `--short` runs on scikit-learn's digits instead.
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from figures import Figure
from ranks import FOLDER
from trained import trained

from samovar.data.digits import write_digits
from samovar.data.published import write_mnist

LENET = FOLDER.parent / "examples" / "lenet"
BATCH, WORKERS, NUM_IMAGES = 64, 4, 60_000
ALONE = "one worker"
SEEDS = (1, 2, 3)
SHORT_STEPS = 20


@dataclass(frozen=True)
class Study:
    """Strategies with all seeds and with the first only; they may end `tolerance` below one worker."""

    epochs: int
    tolerance: float
    thrice: tuple[str, ...]
    once: tuple[str, ...] = ()

    @property
    def num_steps(self) -> int:
        return self.epochs * NUM_IMAGES // BATCH

    def seeds(self, short: bool) -> dict[str, Sequence[int]]:
        all_seeds = SEEDS[:1] if short else SEEDS
        return {**dict.fromkeys((ALONE, *self.thrice), all_seeds), **dict.fromkeys(self.once, SEEDS[:1])}


STUDIES = {
    "convergence": Study(
        10,
        0.005,
        ("async-easgd", "shm-easgd", "hybrid-easgd", "async-sgd"),
        ("async-msgd", "hogwild-sgd", "round-robin-easgd", "async-measgd", "hogwild-easgd"),
    ),
    "convergence-sync": Study(5, 0.003, ("sync", "sync-easgd", "local-sgd", "diloco")),
}


@dataclass(frozen=True)
class Trained:
    """One run; its net and solver are the published ones, without tests and snapshots on the way."""

    strategy: str
    seed: int

    @property
    def flags(self) -> tuple[str, ...]:
        shared = ("--workers", str(WORKERS), "--batch-mode", "global", "--strategy", self.strategy)
        return ("--threads-per-worker", "1", "--seed", str(self.seed), *(() if self.strategy == ALONE else shared))

    def accuracy(self, folder: Path, solver: Path, num_steps: int) -> float:
        """The test accuracy of the final weights; from the file of an earlier run, if it exists."""
        found = folder / f"{self.strategy.replace(' ', '-')}-{self.seed}.json"
        if not found.exists():
            record = self._run(folder, solver, num_steps)
            partial = found.with_suffix(".partial")
            partial.write_text(json.dumps(record, indent=2) + "\n")
            partial.rename(found)
        return float(json.loads(found.read_text())["result"]["test_accuracy"])

    def _run(self, folder: Path, solver: Path, num_steps: int) -> dict[str, object]:
        began = datetime.now(UTC)
        result = trained(folder, "--solver", solver, "--iterations", num_steps, *self.flags)
        if result["effective_batch"] != BATCH or result["samples"] < num_steps * BATCH:
            raise SystemExit(f"{self}: {result['samples']} samples in batches of {result['effective_batch']}")
        print(f"{began:%F %T} {self.strategy}, seed {self.seed}: {result['test_accuracy']:.4f}", flush=True)
        return {"began": began.isoformat(timespec="seconds"), "flags": self.flags, "result": result}


def run(mnist: Path | None, short: bool = False, *, name: str) -> list[Figure]:
    study = STUDIES[name]
    if short:
        with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
            write_digits(Path(folder) / "data")
            return measure(Path(folder), "digits", SHORT_STEPS, study.seeds(short), study.tolerance)
    if mnist is None:
        raise SystemExit("give the folder of MNIST's four IDX files with --mnist")
    out = FOLDER / "out" / name
    write_mnist(mnist.resolve(), out / "data")
    return measure(out, "mnist", study.num_steps, study.seeds(short), study.tolerance)


def measure(folder: Path, data: str, num_steps: int, seeds: dict[str, Sequence[int]], tolerance: float) -> list[Figure]:
    solver = quiet_solver(folder, data)
    found: dict[str, list[float]] = {name: [] for name in seeds}
    for seed in SEEDS:  # each strategy once before any comes again
        for name, its_seeds in seeds.items():
            if seed in its_seeds:
                found[name].append(Trained(name, seed).accuracy(folder, solver, num_steps))
    print(table(found))
    return [near(name, accuracies, found[ALONE], tolerance) for name, accuracies in found.items() if name != ALONE]


def quiet_solver(folder: Path, data: str) -> Path:
    """The published solver and net in `folder`, without tests and snapshots on the way."""
    lines = (LENET / f"{data}_solver.prototxt").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("test_interval", "snapshot:", "test_initialization"))]
    solver = folder / "solver.prototxt"
    never = 1_000_000_000
    solver.write_text("\n".join([*kept, f"test_interval: {never}", "test_initialization: false", "snapshot: 0", ""]))
    shutil.copy(LENET / f"{data}_train_test.prototxt", folder)
    return solver


def near(name: str, accuracies: Sequence[float], alone: Sequence[float], tolerance: float) -> Figure:
    """The mean over the seeds that were run; it holds at no more than `tolerance` below one worker's."""
    ours, theirs = fmean(accuracies), fmean(alone)
    ratios = [accuracy / theirs for accuracy in accuracies]
    bar = 1 - tolerance / theirs
    title = f"{name}, {WORKERS} workers / {ALONE}"
    return Figure(title, ours, theirs, "accuracy", ours / theirs, min(ratios), max(ratios), len(ratios), bar)


def table(found: dict[str, list[float]]) -> str:
    """The result as a table for the documents."""
    alone = fmean(found[ALONE])
    rows = [
        f"| {f'`{name}`' if name != ALONE else name} | {', '.join(f'{one:.4f}' for one in accuracies)} "
        f"| {fmean(accuracies):.4f} | {fmean(accuracies) - alone:+.4f} |"
        for name, accuracies in found.items()
    ]
    return "\n".join(
        ["| Strategy | Test accuracy by seed | Mean | To one worker |", "| --- | --- | --- | --- |", *rows]
    )
