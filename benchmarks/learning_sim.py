"""How well many workers learn, simulated: real gradients of CIFAR-10 quick, at paces on a virtual clock.

The strategies are the production code, in one process and on one thread (`samovar.transports.sim`), by their recipes.
A worker's step takes STEP_S. Three paces are played: every step takes the same time, or up to twice as long at random,
or one worker is four times as slow as the others. Asynchronous workers end when all together have made the steps of
all. The same seed gives the same bits.

`learning-simulated` compares 8 and 16 workers with one (`make bench-learning`), each with 400,000 samples.
`learning-slow` has four workers, of which one is slow, and compares the virtual seconds to an accuracy with those of
`sync`. Each run leaves a line in benchmarks/results/NAME.jsonl, and is not repeated. Workers in step learn the same at
every pace, so they are run at one.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean

import torch
from figures import Figure
from finished import Finished, settings_of
from learned import Found, Test, against, as_table, compared, end, into_page, keep_curves, last, seconds_to, sooner
from learning import BATCH, NUM_TESTS, SEEDS, prepared

from samovar.box.window_center import WindowCenter
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import dissemination_barrier
from samovar.config import RunConfig
from samovar.core.buffer import FlatBuffer
from samovar.core.group import Group
from samovar.core.machine import Link, MachineModel
from samovar.data.order import batch_portions
from samovar.data.stream import BatchStream, evaluation_batches
from samovar.frontends.caffe.definition import load_source
from samovar.frontends.caffe.solver import CaffeSolver, load_solver, solver_config
from samovar.launcher.plan import with_momentum
from samovar.model.model import Model, layout_of
from samovar.solver.flat import Multipliers, Solver
from samovar.strategies.base import Buffers, CenterSeat
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import by_recipe as settings_by_recipe
from samovar.strategies.defaults import resolved
from samovar.training import build
from samovar.training.memory import open_memory
from samovar.training.opening import by_recipe
from samovar.training.step import Parts, Worker
from samovar.transports.sim.world import SimConfig, SimTransport, simulate

STEP_S = 0.01
SLOWER = 4.0
MACHINE = MachineModel(Link(2e-6, 1e10))
EVEN, JITTERED, ONE_SLOW = "even", "jittered", "one slow"
NUM_SAMPLES = 400_000
GOAL, BAR = 0.65, 2.0
ASYNCHRONOUS_ONES = ("async-easgd", "shm-easgd", "async-sgd")
# How much lower than one worker's each may end.
LOWER = {"sync": 0.01, "sync-easgd": 0.01, "diloco": 0.01, **dict.fromkeys(ASYNCHRONOUS_ONES, 0.02)}
SHORT_SAMPLES, SHORT_TESTS = 1_600, 1
MANY, SLOW_TESTS = (16, 8), 16
ONE = "one worker"
TIMEOUT_S = 80_000.0


@dataclass(frozen=True)
class Simulated:
    """One run, of `num_workers` at that pace; one worker's strategy is `sync`."""

    strategy: str
    num_workers: int
    pace: str
    seed: int
    num_samples: int = NUM_SAMPLES
    num_test_batches: int = 100
    num_tests: int = NUM_TESTS

    @property
    def title(self) -> str:
        if self.num_workers == 1:
            return ONE
        pace = f", {self.pace}" if self.strategy in ASYNCHRONOUS_ONES or self.pace == ONE_SLOW else ""
        return f"{self.strategy}, {self.num_workers} workers{pace}"

    def step_s(self, rank: int, random: Random) -> float:
        if self.pace == JITTERED:
            return STEP_S * (1 + random.random() ** 3)
        return STEP_S * (SLOWER if self.pace == ONE_SLOW and rank == self.num_workers - 1 else 1.0)


@dataclass
class Progress:
    """The steps of each worker, and the tests so far, which all workers see."""

    steps: list[int]
    tests: list[Test] = field(default_factory=list)


class Rank:
    """One worker's net, solver and strategy on a simulated machine; `stack` closes its data."""

    def __init__(self, cell: Simulated, folder: Path, transport: SimTransport, stack: contextlib.ExitStack) -> None:
        self.group = group = transport.group
        strategy = settings_by_recipe(StrategyConfig(cell.strategy), group.world_size, is_adaptive=False)
        chosen = resolved(strategy, group.world_size)
        config = RunConfig("train", folder / "solver.prototxt", recipe="auto", seed=cell.seed, strategy=chosen)
        config = replace(config, workers=group.world_size)
        published = load_solver(config.model)
        definition = load_source(published.net)
        reader, self._test_reader = (
            build.open_reader(definition, phase, config, cell.seed) for phase in ("TRAIN", "TEST")
        )
        stack.callback(self._test_reader.close)
        caffe, _ = by_recipe(config, published, reader.batch_size)
        self._num_test_batches, self.num_tests = cell.num_test_batches, cell.num_tests
        self._net = build.net_for(definition, reader, cell.seed, config)
        self._test_net = build.net_for(definition, self._test_reader, 0, config)
        self._test_net.share_parameters(self._net)
        self.num_steps, self.is_async = cell.num_samples // reader.batch_size, chosen.is_async
        stream = stack.enter_context(BatchStream(reader, batch_portions(group, reader.batch_size), 0))
        self._learns(transport, caffe, strategy, stream)

    def _learns(
        self, transport: SimTransport, caffe: CaffeSolver, strategy: StrategyConfig, stream: BatchStream
    ) -> None:
        """Lay the net into memory that others reach, and make its solver and strategy."""
        group, infos = self.group, self._net.parameter_infos
        layout = layout_of({info.name: info.parameter for info in infos})
        memory = open_memory(transport, layout, None)
        self._weights = memory.weights.array
        weights, gradients = (FlatBuffer(layout, region.array) for region in (memory.weights, memory.gradients))
        buckets = layout.buckets(None)
        model = Model(self._net, {info.name: info.parameter for info in infos}, weights, gradients, buckets)
        sharing, settings, _ = with_momentum(strategy, solver_config(caffe), group.world_size)
        multipliers = {info.name: Multipliers(info.lr_mult, info.decay_mult) for info in infos}
        forever = partial(transport.deadline, math.inf)
        collectives = PlannedCollectives(transport, lambda _num_bytes: "tree")
        plan = dissemination_barrier(group.rank, group.world_size)
        self._barrier = collectives.planned("barrier", plan, memory.weights.part(0, 0))
        seat = _seat(transport, strategy, len(self._weights)) if strategy.needs_center else None
        buffers = Buffers(memory.weights, memory.gradients)
        self.strategy = build_strategy(sharing, collectives, buckets, buffers, forever, seat)
        solver, parts = Solver(settings, weights, gradients, multipliers), Parts(1, group.world_size, 1)
        self.worker = Worker(model, solver, self.strategy, stream, parts, TIMEOUT_S)
        self.meet = lambda: self._barrier.run(forever())

    def accuracy(self) -> float:
        """Of the weights that count, on all held-out images."""
        center, own = self.strategy.center(), self._weights.copy()
        if center is not None:
            self._weights[:] = center
        with torch.no_grad():
            batches = evaluation_batches(self._test_reader, Group(0, 1), self._num_test_batches)
            found = fmean(float(self._test_net(tensors).scalars["accuracy"]) for _, tensors in batches)
        self._weights[:] = own
        return found


def _seat(transport: SimTransport, strategy: StrategyConfig, size: int) -> CenterSeat:
    traits = strategy.traits
    center = WindowCenter(transport, size, with_velocity=traits.has_velocity, with_locks=traits.has_locks)
    return CenterSeat(center, transport.group.rank == 0)


def work(cell: Simulated, folder: Path, progress: Progress, transport: SimTransport) -> None:
    """One worker's whole run; the first tests at even parts of all samples."""
    with contextlib.ExitStack() as stack:
        rank = Rank(cell, folder, transport, stack)
        number, random = transport.group.rank, Random(f"{cell.seed} {transport.group.rank}")
        rank.meet()
        while not is_over(rank, progress, number):
            transport.sleep(cell.step_s(number, random))
            rank.worker.step(progress.steps[number])
            progress.steps[number] += 1
            if is_test_due(rank, progress, number):
                rank.strategy.drain()
                if number == 0:
                    progress.tests.append(told(rank, progress, transport.now_s))
        rank.strategy.drain()
        rank.meet()
        if number == 0 and len(progress.tests) < rank.num_tests:
            progress.tests.append(told(rank, progress, transport.now_s))


def is_over(rank: Rank, progress: Progress, number: int) -> bool:
    if not rank.is_async:
        return progress.steps[number] >= rank.num_steps
    return sum(progress.steps) >= rank.num_steps * len(progress.steps)


def is_test_due(rank: Rank, progress: Progress, number: int) -> bool:
    """In step all ranks say the same; else the first worker looks at what all have done."""
    if not rank.is_async:
        return progress.steps[number] % (rank.num_steps // rank.num_tests) == 0
    part = rank.num_steps * len(progress.steps) // rank.num_tests
    return number == 0 and sum(progress.steps) // part > len(progress.tests)


def told(rank: Rank, progress: Progress, now_s: float) -> Test:
    """By rank 0. In step it comes before the others have counted the same step."""
    steps = sum(progress.steps) / len(progress.steps) if rank.is_async else progress.steps[0]
    return Test(steps * BATCH, rank.accuracy(), now_s)


def simulated(cell: Simulated, folder: Path) -> list[Test]:
    """The tests of a run: accuracy, samples of all workers, and virtual seconds."""
    torch.set_num_threads(1)
    progress = Progress([0] * cell.num_workers)
    simulate(partial(work, cell, folder, progress), cell.num_workers, SimConfig(cell.seed, MACHINE, check=False))
    print(f"{cell.title}, seed {cell.seed}: {progress.tests[-1].value:.4f}", flush=True)
    return progress.tests


def measured(cells: Iterable[Simulated], folder: Path, finished: Finished) -> Found:
    """Each in its turn, or those that are finished."""
    found: dict[str, dict[int, list[Test]]] = {}
    for cell in cells:
        settings = {} if cell.num_workers == 1 else settings_of(cell.strategy, cell.num_workers)
        tests = finished.tests(cell.title, cell.seed, settings, partial(simulated, cell, folder))
        if tests is not None:
            found.setdefault(cell.title, {})[cell.seed] = tests
    return found


def many_cells() -> Iterator[Simulated]:
    """Seeds take turns; those in step have one pace."""
    for num_workers, seed in product(MANY, SEEDS):
        yield Simulated("sync", 1, EVEN, seed)
        for strategy, pace in product(LOWER, (JITTERED, EVEN)):
            if strategy in ASYNCHRONOUS_ONES or pace == EVEN:
                yield Simulated(strategy, num_workers, pace, seed)


def shortened(cells: Iterable[Simulated]) -> list[Simulated]:
    short = [replace(cell, num_samples=SHORT_SAMPLES, num_test_batches=SHORT_TESTS) for cell in cells]
    return [cell for cell in short if cell.seed == SEEDS[0]]


def run_many(source: Path | None, short: bool = False, finished: bool = False) -> list[Figure]:
    """8 and 16 workers against one: the mean accuracy over the seeds."""
    (folder, kept), cells = prepared(source, "learning-simulated", short, finished), many_cells()
    found = measured(shortened(cells) if short else cells, folder, kept)
    if found and not short:
        into_page("learning-simulated", compared(found, ONE))
    return [
        against(found, title, ONE, LOWER[title.partition(",")[0]])
        for title in found
        if title != ONE and found[title].keys() & found.get(ONE, {}).keys()
    ]


def run_slow(source: Path | None, short: bool = False, finished: bool = False) -> list[Figure]:
    """Four workers, one of them slow: virtual seconds to the goal, against `sync`."""
    (folder, kept), goal = prepared(source, "learning-slow", short, finished), 0.0 if short else GOAL
    cells = [
        Simulated(name, 4, ONE_SLOW, seed, num_tests=SLOW_TESTS)
        for seed in SEEDS
        for name in ("sync", *ASYNCHRONOUS_ONES)
    ]
    found = measured(shortened(cells) if short else cells, folder, kept)
    if found and not short:
        into_page("learning-slow", slow_table(found, goal))
        keep_curves("learning-slow", {title.partition(",")[0]: runs for title, runs in found.items()}, by_time=True)
    in_step = found.get(cells[0].title, {})
    return [
        sooner(f"{title} / sync", runs, in_step, goal, BAR)
        for title, runs in found.items()
        if runs is not in_step and runs.keys() & in_step.keys()
    ]


def slow_table(found: Found, goal: float) -> str:
    rows = []
    for title, runs in found.items():
        seconds = fmean(seconds_to(goal, tests) for tests in runs.values())
        ends = [", ".join(f"{end(tests):.3f}" for tests in runs.values()), f"{fmean(map(last, runs.values())):.3f}"]
        rows.append(
            [title.partition(",")[0], f"{seconds:.0f}", f"{fmean(t[-1].seconds for t in runs.values()):.0f}", *ends]
        )
    return as_table(
        ["Strategy", f"Seconds to {goal:g}", "Seconds in all", "At the end, by seed", "Last three tests"], rows
    )
