"""How well strategies learn: CIFAR-10 quick and full by their published solvers, by recipe and without.

Each run gets the same number of samples: one worker, and two or four by each strategy. Without a recipe a worker has
the net's whole batch, so four make a quarter of the steps. Batch 5 of the training set is held out, and is tested eight
times on the way. No result depends on time, except that asynchronous workers mix as the machine runs them.

Each run leaves a line in benchmarks/results/NAME.jsonl, which git keeps. It is not repeated, so this can be interrupted
and continued, also on another machine. Seeds take turns: every strategy is run once before any comes again.
`--finished` starts no run, needs no data, and makes the tables from those that are finished. `--short` runs on
scikit-learn's digits instead.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from figures import Figure
from finished import RESULTS, Finished, settings_of
from learned import Found, Test, against, compared, into_page, keep_curves, on_the_way, require_place
from ranks import FOLDER, ZOO
from trained import trained

from samovar.data.digits import write_digits
from samovar.data.published import write_cifar10

LENET = FOLDER.parent / "examples" / "lenet"
BATCH, WORKERS, NUM_TESTS = 100, 4, 8
SEEDS, MORE_SEEDS = (1, 2, 3), range(4, 8)
ALONE = "one worker"
IN_STEP, ASYNCHRONOUS = 0.005, 0.01  # how much lower a strategy may end
# By recipe, the most important first; each with its bar.
BY_RECIPE = {
    "sync": IN_STEP,
    "async-sgd": ASYNCHRONOUS,
    "async-easgd": ASYNCHRONOUS,
    "diloco": IN_STEP,
    "slowmo": IN_STEP,
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
    """A net of the zoo and the samples of a run; with `drops` the last fifth is made at a tenth of the rate.

    `closely` are strategies whose three seeds leave open whether the bar holds. They and one worker get four more.
    """

    net: str
    num_samples: int
    strategies: Sequence[str] = BEST
    numbers_of_workers: Sequence[int] = (WORKERS,)
    drops: bool = False
    closely: Sequence[str] = ()


STUDIES = {
    "learning": Study("cifar10_quick", 400_000, tuple(BY_RECIPE), (WORKERS, 2), closely=("local-sgd",)),
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
    def settings(self) -> dict[str, object]:
        return {} if self.strategy == ALONE else settings_of(self.strategy, self.num_workers, self.recipe == "auto")

    @property
    def title(self) -> str:
        """Without the number of workers if it is the usual one."""
        workers = "" if self.num_workers == WORKERS else f", {self.num_workers} workers"
        recipe = "" if self.strategy == ALONE or self.recipe == "auto" else ", no recipe"
        return self.strategy + workers + recipe

    def num_steps(self, num_samples: int, batch: int) -> int:
        workers_with_a_batch = self.num_workers if self.recipe == "none" and self.strategy != ALONE else 1
        return num_samples // (batch * workers_with_a_batch)


@dataclass(frozen=True)
class Task:
    """A solver and its net in `folder`, and the runs that are finished."""

    folder: Path
    solver: str
    batch: int
    num_samples: int
    finished: Finished
    drops: bool = False

    def tests(self, cell: Cell) -> list[Test] | None:
        """Of a finished run, or of one now."""
        return self.finished.tests(cell.title, cell.seed, cell.settings, lambda: self._run(cell))

    def _run(self, cell: Cell) -> list[Test]:
        began, num_steps = datetime.now(UTC), cell.num_steps(self.num_samples, self.batch)
        solver = self._tested_often(num_steps)
        result = trained(self.folder, "--solver", solver, "--iterations", num_steps, *cell.flags)
        if result["samples"] < num_steps * self.batch:
            raise SystemExit(f"{cell}: {result['samples']} samples")
        print(f"{began:%F %T} {cell.title}, seed {cell.seed}: {result['test_accuracy']:.4f}", flush=True)
        tests = result["tests"]
        part = self.num_samples / len(tests)  # rank 0 says when, and others may be ahead
        return [Test(part * (n + 1), test["accuracy"], test["seconds"]) for n, test in enumerate(tests)]

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
            kept = Finished(Path(folder) / "finished.jsonl")
            task = Task(Path(folder), "digits_solver.prototxt", 64, SHORT_SAMPLES, kept, study.drops)
            found = measured(task, SEEDS[:1], Study("", SHORT_SAMPLES, ("sync", "sync-easgd")))
            print(compared(found, ALONE))
            return figures(found)
    own, kept = prepared(source, name, finished=finished, net=study.net)
    found = measured(Task(own, "solver.prototxt", BATCH, study.num_samples, kept, study.drops), SEEDS, study)
    by_recipe = {title: runs for title, runs in found.items() if title == ALONE or title in BY_RECIPE}
    if by_recipe:
        into_page(name, compared(found, ALONE), on_the_way(by_recipe))
        keep_curves(name, by_recipe)
    return figures(found)


def prepared(
    source: Path | None, name: str, short: bool = False, finished: bool = False, net: str = "cifar10_quick"
) -> tuple[Path, Finished]:
    """A folder with CIFAR-10 from its files in `source` and the published net and solver, and the finished runs.

    Raises SystemExit if the page has no place for the tables.
    """
    if not short:
        require_place(name)
    out = FOLDER / "out" / (f"{name}-short" if short else name)
    kept = Finished((out if short else RESULTS) / f"{name}.jsonl", finished)
    if finished:
        return out, kept
    if source is None:
        raise SystemExit("give the folder of CIFAR-10's files with --cifar10")
    write_cifar10(source.resolve(), out / "data" / "cifar10")
    copy_prototxts(ZOO / net, out)
    return out, kept


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
    for seed in MORE_SEEDS if study.closely else ():
        yield Cell(ALONE, "none", seed)
        yield from (Cell(strategy, "auto", seed) for strategy in study.closely)


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
        if title != ALONE and found[title].keys() & found.get(ALONE, {}).keys()
    ]
