"""How well strategies learn: CIFAR-10 quick and full by their published solvers, by recipe and without.

Each run gets the same number of samples: one worker, and two or four by each strategy. Without a recipe a worker has
the net's whole batch, so four make a quarter of the steps. Batch 5 of the training set is held out, and is tested eight
times on the way. No result depends on time, except that asynchronous workers mix as the machine runs them.

Each run leaves a file in benchmarks/out/NAME/ and is not repeated while that exists, so this can be interrupted and
continued. Seeds take turns: every strategy is run once before any comes again. `--finished` starts no run, and makes
the tables from those that are finished. `--short` runs on scikit-learn's digits instead.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from figures import Figure
from learned import Found, Test, against, compared, into_page, keep_curves, on_the_way
from ranks import FOLDER, ZOO
from trained import trained

from samovar.data.digits import write_digits
from samovar.data.published import write_cifar10

LENET = FOLDER.parent / "examples" / "lenet"
BATCH, WORKERS, NUM_TESTS = 100, 4, 8
SEEDS = (1, 2, 3)
ALONE = "one worker"
IN_STEP, ASYNCHRONOUS = 0.005, 0.01  # how much lower a strategy may end
# By recipe, the most important first; each with its bar.
BY_RECIPE = {
    "sync": IN_STEP,
    "async-sgd": ASYNCHRONOUS,
    "async-easgd": ASYNCHRONOUS,
    "diloco": IN_STEP,
    "sync-easgd": IN_STEP,
    "shm-easgd": ASYNCHRONOUS,
    "hybrid-easgd": ASYNCHRONOUS,
    "local-sgd": IN_STEP,
    "async-msgd": ASYNCHRONOUS,
    "hogwild-sgd": ASYNCHRONOUS,
    "hogwild-easgd": ASYNCHRONOUS,
    "async-measgd": ASYNCHRONOUS,
    "round-robin-easgd": ASYNCHRONOUS,
}
WITHOUT = ("sync", "sync-easgd", "async-easgd")
BEST = ("sync", "sync-easgd", "diloco", "async-easgd")
SHORT_SAMPLES = 2_560


@dataclass(frozen=True)
class Study:
    """A net of the zoo and the samples of a run; with `drops` the last fifth is made at a tenth of the rate."""

    net: str
    num_samples: int
    strategies: Sequence[str] = BEST
    numbers_of_workers: Sequence[int] = (WORKERS,)
    drops: bool = False


STUDIES = {
    "learning": Study("cifar10_quick", 400_000, tuple(BY_RECIPE), (WORKERS, 2)),
    "learning-200k": Study("cifar10_quick", 200_000, tuple(BY_RECIPE)),
    "learning-schedule": Study("cifar10_quick", 500_000, drops=True),
    "learning-full": Study("cifar10_full", 1_000_000, drops=True),
}


@dataclass(frozen=True)
class Cell:
    """One run. One worker's is computed by several processes with --exact, which gives the bits of one."""

    strategy: str
    recipe: str
    seed: int
    num_workers: int = WORKERS

    @property
    def flags(self) -> tuple[str, ...]:
        workers = ("--workers", f"{self.num_workers}", "--threads-per-worker", "1", "--oversubscribe")
        shared = (*workers, "--seed", f"{self.seed}")
        if self.strategy == ALONE:
            return (*shared, "--exact", f"{WORKERS}")
        return (*shared, "--strategy", self.strategy, "--recipe", self.recipe)

    @property
    def title(self) -> str:
        """Without the number of workers if it is the usual one."""
        workers = "" if self.num_workers == WORKERS else f", {self.num_workers} workers"
        recipe = "" if self.strategy == ALONE or self.recipe == "auto" else ", no recipe"
        return self.strategy + workers + recipe

    def num_steps(self, num_samples: int, batch: int) -> int:
        workers_with_a_batch = self.num_workers if self.recipe == "none" and self.strategy != ALONE else 1
        return num_samples // (batch * workers_with_a_batch)


def kept(
    folder: Path, title: str, seed: int, make: Callable[[], dict[str, Any]], finished: bool = False
) -> dict[str, Any] | None:
    """The record of a finished run in `folder`; else that of `make`, which is kept there, or None with `finished`."""
    found = folder / f"{title.replace(', ', '-').replace(' ', '-')}-{seed}.json"
    if not found.exists():
        if finished:
            return None
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
    drops: bool = False
    finished: bool = False

    def tests(self, cell: Cell) -> list[Test] | None:
        """Of a finished run, or of one now."""
        record = kept(self.folder, cell.title, cell.seed, lambda: self._run(cell), self.finished)
        tests = record["result"]["tests"] if record else []
        part = self.num_samples / len(tests) if tests else 0.0  # rank 0 says when, and others may be ahead
        return [
            Test(part * (n + 1), test["accuracy"], test.get("seconds", 0.0)) for n, test in enumerate(tests)
        ] or None

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
        policy = "|lr_policy" if self.drops else ""
        text = (self.folder / self.solver).read_text()
        text = re.sub(rf"(?m)^(test_interval|snapshot|test_initialization{policy}):.*$", "", text)
        solver = self.folder / f"tested_{self.solver}"
        more = f"test_interval: {num_steps // NUM_TESTS}\ntest_initialization: false\nsnapshot: 0\n"
        if self.drops:
            more += f'lr_policy: "multistep"\ngamma: 0.1\nstepvalue: {num_steps * 4 // 5}\n'
        solver.write_text(text + more)
        return solver


def run(source: Path | None, short: bool = False, finished: bool = False, *, name: str) -> list[Figure]:
    """`source` is the folder of CIFAR-10's files."""
    study = STUDIES[name]
    if short:
        with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
            write_digits(Path(folder) / "data")
            copy_prototxts(LENET, Path(folder))
            task = Task(Path(folder), "digits_solver.prototxt", 64, SHORT_SAMPLES, study.drops)
            found = measured(task, SEEDS[:1], Study("", SHORT_SAMPLES, ("sync", "sync-easgd")))
            print(compared(found, ALONE))
            return figures(found)
    own = prepared(source, name, net=study.net)
    found = measured(Task(own, "solver.prototxt", BATCH, study.num_samples, study.drops, finished), SEEDS, study)
    by_recipe = {title: runs for title, runs in found.items() if title == ALONE or title in BY_RECIPE}
    into_page(name, compared(found, ALONE), on_the_way(by_recipe))
    keep_curves(name, by_recipe)
    return figures(found)


def prepared(source: Path | None, name: str, short: bool = False, net: str = "cifar10_quick") -> Path:
    """The folder of the results, with CIFAR-10 from its files in `source` and with the published net and solver."""
    if source is None:
        raise SystemExit("give the folder of CIFAR-10's files with --cifar10")
    out = FOLDER / "out" / (f"{name}-short" if short else name)
    write_cifar10(source.resolve(), out / "data" / "cifar10")
    copy_prototxts(ZOO / net, out)
    return out


def copy_prototxts(files: Path, folder: Path) -> None:
    for path in files.glob("*.prototxt"):
        (folder / path.name).write_text(path.read_text())


def cells(seeds: Sequence[int], study: Study) -> Iterator[Cell]:
    for num_workers in study.numbers_of_workers:
        for seed in seeds:
            if num_workers == WORKERS:
                yield Cell(ALONE, "none", seed)
            yield from (Cell(strategy, "auto", seed, num_workers) for strategy in study.strategies)
    without = WITHOUT if study.strategies != BEST else ()
    yield from (Cell(strategy, "none", seed) for seed in seeds for strategy in without if strategy in study.strategies)


def measured(task: Task, seeds: Sequence[int], study: Study) -> Found:
    found: dict[str, dict[int, list[Test]]] = {}
    for cell in cells(seeds, study):
        tests = task.tests(cell)
        if tests is not None:
            found.setdefault(cell.title, {})[cell.seed] = tests
    return found


def figures(found: Found) -> list[Figure]:
    """Rows without a recipe have no bar."""
    return [
        against(found, title, ALONE, BY_RECIPE.get(title.partition(", 2")[0]))
        for title in found
        if title != ALONE and found[title].keys() & found[ALONE].keys()
    ]
