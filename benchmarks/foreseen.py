"""`samovar predict --learn` against runs: LeNet on MNIST, four workers, on a virtual clock in one process.

The runs are those of `convergence` and `convergence-sync`, whose tables are in docs/explanation/learning.md. Seed,
data, solver and settings are theirs. Workers' steps take 10 ms or up to twice that, and messages those of 10 Gbit/s.
The bar is 0.003 on either side. Each foreseen accuracy leaves a file in benchmarks/out/foreseen/, and is not made again
while that exists. `--short` learns scikit-learn's digits in a few steps.
"""

import contextlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

import torch
from convergence import BATCH, SEEDS, SHORT_STEPS, STUDIES, WORKERS, quiet_solver
from figures import Figure
from ranks import FOLDER

from samovar.config import RunConfig
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.core.layout import Bucket
from samovar.data.digits import write_digits
from samovar.data.order import batch_portions
from samovar.data.published import write_mnist
from samovar.data.stream import BatchStream, evaluation_batches
from samovar.frontends.caffe.definition import load_source
from samovar.frontends.caffe.solver import load_solver, solver_config
from samovar.launcher.plan import of_worker
from samovar.model.model import Model, layout_of
from samovar.predict.cluster import Cluster, NetworkSpec, WorkerSpec
from samovar.predict.learning import Learned, Learner, Lesson, learned
from samovar.predict.runs import Workplace
from samovar.predict.work import Segment, Work
from samovar.solver.flat import Multipliers, Solver
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import MomentumShares
from samovar.training import build
from samovar.transports.base import Array

# Test accuracies by seed, from docs/explanation/learning.md, "In step" and "At a center".
MEASURED: Mapping[str, Mapping[str, Mapping[int, float]]] = {
    "convergence-sync": {
        "sync": {1: 0.9872, 2: 0.9876, 3: 0.9880},
        "sync-easgd": {1: 0.9890, 2: 0.9892, 3: 0.9885},
        "local-sgd": {1: 0.9871, 2: 0.9878, 3: 0.9880},
        "diloco": {1: 0.9883, 2: 0.9888, 3: 0.9884},
    },
    "convergence": {
        "async-easgd": {1: 0.9905, 2: 0.9911, 3: 0.9912},
        "shm-easgd": {1: 0.9911, 2: 0.9902, 3: 0.9895},
        "hybrid-easgd": {1: 0.9894, 2: 0.9904, 3: 0.9906},
        "async-sgd": {1: 0.9918, 2: 0.9909, 3: 0.9906},
        "async-msgd": {1: 0.9909},
        "hogwild-sgd": {1: 0.9902},
        "round-robin-easgd": {1: 0.9905},
        "async-measgd": {1: 0.9905},
        "hogwild-easgd": {1: 0.9910},
    },
}
BAR, APART = 0.003, 0.0012  # means that are closer together have no order: seeds differ by as much
TIMEOUT_S = 600.0
CLUSTER = Cluster("four hosts", worker=WorkerSpec(jitter=1.0), network=NetworkSpec(1.25e9, 25e-6, 5e-6))


class CaffeSubject:
    """A Caffe solver's training net and data; a step of all workers has the net's batch."""

    def __init__(self, solver: Path, seed: int, num_steps: int) -> None:
        self.num_steps = num_steps
        self._config = RunConfig("train", solver, seed=seed, batch_mode="global", workers=WORKERS)
        self._caffe = load_solver(solver)
        self._definition = load_source(self._caffe.net)
        self._stack = contextlib.ExitStack()
        reader, self._test_reader = (
            build.open_reader(self._definition, phase, self._config, seed) for phase in ("TRAIN", "TEST")
        )
        self._net = build.net_for(self._definition, reader, seed, self._config)
        self._test_net = build.net_for(self._definition, self._test_reader, 0, self._config)
        self._test_net.share_parameters(self._net)
        self._parameters = {info.name: info.parameter for info in self._net.parameter_infos}
        self.layout = layout_of(self._parameters)
        self.momentum = solver_config(self._caffe).momentum

    def start(self, weights: Array, seed: int) -> None:
        assert seed == self._config.seed
        for name, parameter in self._parameters.items():
            FlatBuffer(self.layout, weights).view(name).copy_(parameter.detach())

    def learner(self, place: Workplace, shares: MomentumShares, rate: float, seed: int) -> Learner:
        reader = build.open_reader(self._definition, "TRAIN", self._config, seed)
        portions = batch_portions(place.transport.group, reader.batch_size)
        stream = self._stack.enter_context(BatchStream(reader, portions, 0))
        net = build.net_for(self._definition, reader, seed, self._config)
        return CaffeLearner(net, stream, place, of_worker(solver_config(self._caffe), shares, rate))

    def tested(self, weights: Array) -> tuple[float, float]:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(FlatBuffer(self.layout, weights).view(name))
            batches = evaluation_batches(self._test_reader, Group(0, 1), self._caffe.test_nets[0].num_batches)
            found = [self._test_net(tensors).scalars for _, tensors in batches]
        return fmean(float(one["loss"]) for one in found), fmean(float(one["accuracy"]) for one in found)

    def close(self) -> None:
        self._stack.close()


class CaffeLearner:
    """One worker's net, data and solver."""

    def __init__(self, net: object, stream: BatchStream, place: Workplace, settings: object) -> None:
        infos = net.parameter_infos  # type: ignore[attr-defined]
        layout = layout_of({info.name: info.parameter for info in infos})
        weights, gradients = FlatBuffer(layout, place.weights), FlatBuffer(layout, place.gradients)
        kept = place.weights.copy()
        parameters = {info.name: info.parameter for info in infos}
        self._model = Model(net, parameters, weights, gradients, tuple(place.buckets))  # type: ignore[arg-type]
        place.weights[:] = kept
        multipliers = {info.name: Multipliers(info.lr_mult, info.decay_mult) for info in infos}
        self._solver = Solver(settings, weights, gradients, multipliers)  # type: ignore[arg-type]
        self._stream, self._bucket, self._step = stream, place.buckets[0], 0
        self._num_workers = place.transport.group.world_size

    def backward(self) -> None:
        batch = self._stream.next(Deadline.after(TIMEOUT_S))
        scale = batch.num_samples * self._num_workers / batch.global_num_samples
        self._model.forward_backward(
            batch.tensors,
            loss_scale=scale,
            first_part=True,
            last_part=True,
            before_forward=_nothing,
            gradient_final=_nothing,
        )

    def update(self, scale: float) -> None:
        self._solver.update(self._step, self._bucket, scale)
        self._step += 1


def _nothing(_bucket: Bucket) -> None:
    """The simulated worker calls the strategy's hooks."""


@dataclass(frozen=True)
class Foreseen:
    """One strategy's accuracy with a seed."""

    strategy: str
    seed: int

    def accuracy(self, folder: Path, solver: Path, num_steps: int) -> float:
        found = folder / f"{self.strategy}-{self.seed}.json"
        if not found.exists():
            made = self._learned(solver, num_steps)
            record = {"accuracy": made.points[-1].accuracy, "staleness": made.staleness}
            found.write_text(json.dumps(record) + "\n")
            print(f"{self.strategy}, seed {self.seed}: {made.points[-1].accuracy:.4f}", flush=True)
        return float(json.loads(found.read_text())["accuracy"])

    def _learned(self, solver: Path, num_steps: int) -> Learned:
        torch.set_num_threads(1)
        subject = CaffeSubject(solver, self.seed, num_steps)
        with contextlib.closing(subject):
            work = Work(BATCH / WORKERS, (Segment("net", subject.layout.num_elements, 0.004, 0.006),), 0.0, 0.0, 0.0)
            lesson = Lesson(StrategyConfig(self.strategy), CLUSTER, work, WORKERS, seed=self.seed)
            return learned(lesson, subject, num_points=1)


def run(
    mnist: Path | None, short: bool = False, *, only: str | None = None, seeds: tuple[int, ...] = SEEDS
) -> list[Figure]:
    """Every strategy of both tables, with those of these seeds that were measured; `only` names one strategy."""
    if short:
        with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
            write_digits(Path(folder) / "data")
            return _figures(Path(folder), "digits", "convergence-sync", SHORT_STEPS, SEEDS[:1], only)
    if mnist is None:
        raise SystemExit("give the folder of MNIST's four IDX files with --mnist")
    out = FOLDER / "out" / "foreseen"
    write_mnist(mnist.resolve(), out / "data")
    parts = [_figures(out, "mnist", name, STUDIES[name].num_steps, seeds, only) for name in MEASURED]
    return [figure for part in parts for figure in part]


def _figures(
    folder: Path, data: str, study: str, num_steps: int, seeds: tuple[int, ...], only: str | None
) -> list[Figure]:
    solver, pairs = quiet_solver(folder, data), {}
    for name, by_seed in MEASURED[study].items():
        if only in (None, name):
            ours = [Foreseen(name, seed).accuracy(folder, solver, num_steps) for seed in seeds if seed in by_seed]
            pairs[name] = fmean(ours), fmean(by_seed.values())
    return [_near(name, *both) for name, both in pairs.items()] + [_ordered(study, pairs)]


def _near(name: str, ours: float, theirs: float) -> Figure:
    """Shown as the nearer side of the bar: 1 is equal."""
    ratio = 1 - abs(ours - theirs) / theirs
    return Figure(f"{name}, foreseen / measured", ours, theirs, "accuracy", ratio, ratio, ratio, 1, 1 - BAR / theirs)


def _ordered(study: str, pairs: Mapping[str, tuple[float, float]]) -> Figure:
    """The share of strategies that measured means tell apart, and that come in the same order."""
    apart = [(a, b) for a, b in combinations(pairs.values(), 2) if abs(a[1] - b[1]) > APART]
    same = sum((a[0] > b[0]) == (a[1] > b[1]) for a, b in apart)
    share = same / len(apart) if apart else 1.0
    return Figure(f"{study}: pairs in order", same, len(apart), "pairs", share, share, share, 1, 1.0)
