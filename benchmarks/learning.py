"""How well strategies learn: CIFAR-10 quick by its published solver, by the recipe of each strategy and without.

Each run gets the same number of samples: one worker, and four by each strategy. Without a recipe a worker has the net's
whole batch, so four make a quarter of the steps. Batch 5 of the training set is held out, and is tested eight times on
the way. No result depends on time, except that asynchronous workers mix as the machine runs them.

Each run leaves a file in benchmarks/out/NAME/ and is not repeated while that exists, so this can be interrupted and
continued. Seeds take turns: every strategy is run once before any comes again. `learning` gives 400,000 samples, and
`learning-200k` half of them. The figure is the mean over the seeds. `--short` runs on scikit-learn's digits instead.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from figures import Figure
from ranks import FOLDER
from trained import trained

from samovar.data.digits import write_digits
from samovar.data.published import write_cifar10

ZOO = FOLDER.parent / "examples" / "zoo" / "cifar10_quick"
LENET = FOLDER.parent / "examples" / "lenet"
BATCH, WORKERS, NUM_TESTS = 100, 4, 8
SEEDS = (1, 2, 3)
ALONE = "one worker"
IN_STEP, ASYNCHRONOUS = 0.005, 0.01  # how much lower a strategy may end
# By recipe, the most important first; each with its bar.
BY_RECIPE = {
    "sync": IN_STEP,
    "sync-easgd": IN_STEP,
    "local-sgd": IN_STEP,
    "diloco": IN_STEP,
    "async-easgd": ASYNCHRONOUS,
    "shm-easgd": ASYNCHRONOUS,
    "async-sgd": ASYNCHRONOUS,
    "hybrid-easgd": ASYNCHRONOUS,
    "async-measgd": ASYNCHRONOUS,
    "hogwild-easgd": ASYNCHRONOUS,
}
WITHOUT = ("sync", "sync-easgd", "async-easgd")
SIZES = {"learning": 400_000, "learning-200k": 200_000}
SHORT_SAMPLES = 2_560


@dataclass(frozen=True)
class Cell:
    """One run. One worker's is computed by several processes with --exact, which gives the bits of one."""

    strategy: str
    recipe: str
    seed: int

    @property
    def flags(self) -> tuple[str, ...]:
        shared = ("--workers", f"{WORKERS}", "--threads-per-worker", "1", "--oversubscribe", "--seed", f"{self.seed}")
        if self.strategy == ALONE:
            return (*shared, "--exact", f"{WORKERS}")
        return (*shared, "--strategy", self.strategy, "--recipe", self.recipe)

    @property
    def title(self) -> str:
        return self.strategy if self.strategy == ALONE or self.recipe == "auto" else f"{self.strategy}, no recipe"

    def num_steps(self, num_samples: int, batch: int) -> int:
        workers_with_a_batch = WORKERS if self.recipe == "none" and self.strategy != ALONE else 1
        return num_samples // (batch * workers_with_a_batch)


def kept(folder: Path, title: str, seed: int, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The record of a finished run in `folder`; else that of `make`, which is kept there."""
    found = folder / f"{title.replace(', ', '-').replace(' ', '-')}-{seed}.json"
    if not found.exists():
        record = make()
        partial_file = found.with_suffix(".partial")
        partial_file.write_text(json.dumps(record, indent=2) + "\n")
        partial_file.rename(found)
    return dict(json.loads(found.read_text()))


@dataclass(frozen=True)
class Task:
    """A solver and its net in `folder`, where the files of finished runs are, too."""

    folder: Path
    solver: str
    batch: int
    num_samples: int

    def result(self, cell: Cell) -> dict[str, Any]:
        """Of a finished run, or of one now."""
        return dict(kept(self.folder, cell.title, cell.seed, lambda: self._run(cell))["result"])

    def _run(self, cell: Cell) -> dict[str, Any]:
        began, num_steps = datetime.now(UTC), cell.num_steps(self.num_samples, self.batch)
        solver = self._tested_often(num_steps)
        result = trained(self.folder, "--solver", solver, "--iterations", num_steps, *cell.flags)
        if result["samples"] < num_steps * self.batch:
            raise SystemExit(f"{cell}: {result['samples']} samples")
        print(f"{began:%F %T} {cell.title}, seed {cell.seed}: {result['test_accuracy']:.4f}", flush=True)
        return {"began": began.isoformat(timespec="seconds"), "flags": cell.flags, "result": result}

    def _tested_often(self, num_steps: int) -> Path:
        """The published solver, with tests at even distances and without snapshots."""
        text = (self.folder / self.solver).read_text()
        text = re.sub(r"(?m)^(test_interval|snapshot|test_initialization):.*$", "", text)
        solver = self.folder / f"tested_{self.solver}"
        more = f"test_interval: {num_steps // NUM_TESTS}\ntest_initialization: false\nsnapshot: 0\n"
        solver.write_text(text + more)
        return solver


def run(source: Path | None, short: bool = False, *, name: str) -> list[Figure]:
    """`source` is the folder of CIFAR-10's files."""
    if short:
        with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
            write_digits(Path(folder) / "data")
            copy_prototxts(LENET, Path(folder))
            task = Task(Path(folder), "digits_solver.prototxt", 64, SHORT_SAMPLES)
            return measure(task, SEEDS[:1], ("sync", "sync-easgd"))
    return measure(Task(prepared(source, name), "solver.prototxt", BATCH, SIZES[name]), SEEDS, tuple(BY_RECIPE))


def prepared(source: Path | None, name: str, short: bool = False) -> Path:
    """The folder of the results, with CIFAR-10 from its files in `source` and with the published net and solver."""
    if source is None:
        raise SystemExit("give the folder of CIFAR-10's files with --cifar10")
    out = FOLDER / "out" / (f"{name}-short" if short else name)
    write_cifar10(source.resolve(), out / "data" / "cifar10")
    copy_prototxts(ZOO, out)
    return out


def copy_prototxts(files: Path, folder: Path) -> None:
    for path in files.glob("*.prototxt"):
        (folder / path.name).write_text(path.read_text())


def cells(seeds: Sequence[int], strategies: Sequence[str]) -> Iterator[Cell]:
    for seed in seeds:
        yield Cell(ALONE, "none", seed)
        yield from (Cell(strategy, "auto", seed) for strategy in strategies)
        yield from (Cell(strategy, "none", seed) for strategy in WITHOUT if strategy in strategies)


def measure(task: Task, seeds: Sequence[int], strategies: Sequence[str]) -> list[Figure]:
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in cells(seeds, strategies):
        found.setdefault(cell.title, []).append(task.result(cell))
    print(table(found), curves(found, task.batch), sep="\n\n")
    accuracies = {title: [result["test_accuracy"] for result in results] for title, results in found.items()}
    near = partial(_near, accuracies)
    return [near(title, BY_RECIPE.get(title)) for title in found if title != ALONE]


def _near(accuracies: Mapping[str, Sequence[float]], title: str, tolerance: float | None) -> Figure:
    """The mean over seeds against one worker's; rows without a recipe have no bar."""
    ours, theirs = fmean(accuracies[title]), fmean(accuracies[ALONE])
    ratios = [accuracy / theirs for accuracy in accuracies[title]]
    bar = None if tolerance is None else 1 - tolerance / theirs
    name = f"{title}, {WORKERS} workers / {ALONE}"
    return Figure(name, ours, theirs, "accuracy", ours / theirs, min(ratios), max(ratios), len(ratios), bar)


def table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Every run's accuracy at the end, and their mean and standard deviation."""
    alone = fmean(result["test_accuracy"] for result in found[ALONE])
    rows = []
    for title, results in found.items():
        accuracies = [result["test_accuracy"] for result in results]
        spread = f" ± {stdev(accuracies):.3f}" if len(accuracies) > 1 else ""
        each = ", ".join(f"{one:.3f}" for one in accuracies)
        difference = "" if title == ALONE else f"{100 * (fmean(accuracies) - alone):+.1f}"
        rows.append(f"| {title} | {each} | {fmean(accuracies):.3f}{spread} | {difference} |")
    return "\n".join(
        ["| Strategy | Accuracy by seed | Mean | Points to one worker |", "| --- | --- | --- | --- |", *rows]
    )


def curves(found: Mapping[str, Sequence[Mapping[str, Any]]], batch: int) -> str:
    """Mean accuracy after equal parts of all samples."""
    samples = [test["step"] * batch for test in found[ALONE][0]["tests"]]
    head = "".join(f" {count // 1000:,}k |" for count in samples)
    rows = []
    for title, results in found.items():
        points = zip(*([test["accuracy"] for test in result["tests"]] for result in results), strict=False)
        rows.append(f"| {title} |" + "".join(f" {fmean(point):.3f} |" for point in points))
    return "\n".join([f"| Samples |{head}", "| --- |" + " --- |" * len(samples), *rows])
