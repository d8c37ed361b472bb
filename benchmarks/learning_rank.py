"""One rank that learns in plain torch, with DDP or with `samovar.replicate`, and is tested on the way.

    learning_rank.py JOB

JOB is JSON. `side` is "plain", "ddp", or a strategy, which has its recipe. `batch` is that of all ranks together, and
`out` the file for the tests. The others are `net`, `device` ("cuda" for a GPU that ranks may share), `seed`,
`num_samples`, `num_tests`, `test_images`, `threads` and `folder`. RANK and WORLD_SIZE are in the environment. All sides
begin with the same weights.
Seconds are those of training alone.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets_rank import begin_alike, sgd_of
from texts import LENGTH, NUM_TOKENS, Texts
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch_nets import Transformer, resnet20
from torch_twin import Twin

import samovar
from samovar import _native
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.data.order import batch_portions
from samovar.data.stream import BatchStream, evaluation_batches
from samovar.frontends.caffe.definition import load_source
from samovar.frontends.caffe.solver import load_solver, solver_config
from samovar.strategies.ours import StrategyName
from samovar.training import build

TIMEOUT_S = 600.0
TEST_BATCH = 250
Job = dict[str, Any]


@dataclass(frozen=True)
class Learner:
    """A net with its optimizer, the batches of all ranks together or of this one, its loss, and its test."""

    net: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Any
    loss: Callable[[nn.Module, Any], torch.Tensor]
    test: Callable[[], float]
    is_divided: bool = False


def classified(net: nn.Module, batch: Iterable[torch.Tensor]) -> torch.Tensor:
    images, labels = _beside(net, batch)
    return F.cross_entropy(net(images), labels)


def _beside(net: nn.Module, batch: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The batch on the net's device."""
    device = next(net.parameters()).device
    return [part.to(device) for part in batch]


def quick(job: Job, group: Group) -> Learner:
    """CIFAR-10 quick of stock modules, by its solver, on the batches of `samovar train`."""
    config = RunConfig("train", Path(job["folder"], "solver.prototxt"), seed=job["seed"])
    published = load_solver(config.model)
    definition = load_source(published.net)
    readers = [build.open_reader(definition, phase, config, job["seed"]) for phase in ("TRAIN", "TEST")]
    ours, tested = (build.net_for(definition, reader, job["seed"], config) for reader in readers)
    tested.share_parameters(ours)
    net = Twin(definition.in_phase("TRAIN"), {"data": (1, 3, 32, 32), "label": (1,)})
    begin_alike(net, ours.parameter_infos)
    stream = BatchStream(readers[0], batch_portions(group, job["batch"]), 0)

    def test() -> float:
        for parameter, info in zip(net.parameters(), ours.parameter_infos, strict=True):
            info.parameter.copy_(parameter.reshape(info.parameter.shape))
        batches = evaluation_batches(readers[1], Group(0, 1), 100)
        return fmean(float(tested(tensors).scalars["accuracy"]) for _, tensors in batches)

    optimizer = sgd_of(net, ours.parameter_infos, solver_config(published))
    return Learner(net, optimizer, _of_stream(stream), lambda net, batch: net(batch), test, is_divided=True)


def _of_stream(stream: BatchStream) -> Iterator[Mapping[str, torch.Tensor]]:
    while True:
        yield stream.next(Deadline.after(TIMEOUT_S)).tensors


def residual(job: Job, _group: Group) -> Learner:
    """He et al.'s ResNet-20 on CIFAR-10 without augmentation, by SGD at their first rate."""
    definition = load_source(load_solver(Path(job["folder"], "solver.prototxt")).net)
    config = RunConfig("train", Path(job["folder"], "solver.prototxt"), shuffle=False)
    train, held_out = (_images(build.open_reader(definition, phase, config, 0)) for phase in ("TRAIN", "TEST"))
    net = resnet20().to(job["device"])
    test = [part[: job["test_images"]].to(job["device"]) for part in held_out]

    def accuracy() -> float:
        parts = zip(*(values.split(TEST_BATCH) for values in test), strict=True)
        return sum(int((net(part).argmax(1) == truth).sum()) for part, truth in parts) / len(test[1])

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    return Learner(net, optimizer, _loader(job, *train), classified, accuracy)


def _images(reader: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """All of a reader's images less the mean image, about -2 to 2, and their labels."""
    count = 40_000 if reader.training else 10_000
    tensors = reader.read(0, count)
    reader.close()
    return tensors["data"].clone() / 64, tensors["label"].long()


def transformer(job: Job, _group: Group) -> Learner:
    """10 layers, 256 wide, 8 M parameters in all, on the sources of the standard library, by AdamW."""
    texts, net = Texts(), nn.Sequential(Transformer(NUM_TOKENS, 256, 8, 10, LENGTH), nn.Flatten(0, 1))
    net.to(job["device"])

    def loss(net: nn.Module, batch: Iterable[torch.Tensor]) -> torch.Tensor:
        text, following = _beside(net, batch)
        return F.cross_entropy(net(text.long()), following.long().flatten())

    def test() -> float:
        total, count = texts.loss(net, 0, 1)
        return total / count

    windows = texts.windows()
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-4, fused=True)
    return Learner(net, optimizer, _loader(job, windows[:, :-1], windows[:, 1:]), loss, test)


def _loader(job: Job, *tensors: torch.Tensor) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(*tensors), job["batch"], shuffle=True, drop_last=True)


NETS = {"cifar10_quick": quick, "resnet20": residual, "transformer": transformer}


class Plain:
    """The loop of one process, or of a rank with DDP."""

    def __init__(self, learner: Learner, group: Group, is_wrapped: bool) -> None:
        self._learner, self._net = learner, DistributedDataParallel(learner.net) if is_wrapped else learner.net
        self.batches = (
            learner.batches
            if learner.is_divided
            else ([part[group.rank :: group.world_size] for part in batch] for batch in _for_ever(learner.batches))
        )

    def step(self, batch: Any) -> None:
        self._learner.optimizer.zero_grad()
        self._learner.loss(self._net, batch).backward()
        self._learner.optimizer.step()

    def is_done(self, own_steps: int, num_steps: int) -> bool:
        return own_steps >= num_steps

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()


class Ours:
    """The same loop with `samovar.replicate`. Asynchronous workers take their batches on demand."""

    def __init__(self, learner: Learner, strategy: StrategyName) -> None:
        self._learner = learner
        self._replica = samovar.replicate(
            learner.net, learner.optimizer, strategy=strategy, recipe="auto", timeout_s=TIMEOUT_S
        )
        self._is_async = self._replica.config.is_async
        self._shard = self._replica.shard(learner.batches, on_demand=self._is_async)
        self.batches = _for_ever(self._shard)
        self.evaluating = self._replica.evaluating

    def step(self, batch: Any) -> None:
        self._learner.optimizer.zero_grad()
        self._replica.backward(self._learner.loss(self._learner.net, batch))
        self._replica.step()

    def is_done(self, own_steps: int, num_steps: int) -> bool:
        """Whether each rank has made `num_steps`; asynchronous ranks on average."""
        done = self._shard.epochs_done * len(self._learner.batches) if self._is_async else own_steps
        return done >= num_steps


def _for_ever(batches: Iterable[Any]) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(batches))


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    group = Group(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    torch.set_num_threads(job["threads"])
    torch.backends.cudnn.allow_tf32 = False
    if job["side"] == "ddp":
        dist.init_process_group("gloo")
    torch.manual_seed(job["seed"])
    learner = NETS[job["net"]](job, group)
    is_theirs = job["side"] in ("plain", "ddp")
    side = Plain(learner, group, job["side"] == "ddp") if is_theirs else Ours(learner, job["side"])
    tests, seconds, own_steps, batches = [], 0.0, 0, iter(side.batches)
    num_steps = job["num_samples"] // job["batch"]
    for part in range(job["num_tests"]):
        began = time.perf_counter()
        while not side.is_done(own_steps, (part + 1) * (num_steps // job["num_tests"])):
            side.step(next(batches))
            own_steps += 1
        seconds += time.perf_counter() - began
        with torch.no_grad(), side.evaluating():
            if group.rank == 0:
                samples = (part + 1) * (num_steps // job["num_tests"]) * job["batch"]
                tests.append({"samples": samples, "seconds": seconds, "value": tested(learner)})
    if group.rank == 0:
        Path(job["out"]).write_text(json.dumps({"tests": tests}))
    if dist.is_initialized():
        dist.destroy_process_group()


def tested(learner: Learner) -> float:
    """In evaluation's mode, for BatchNorm."""
    learner.net.eval()
    value = learner.test()
    learner.net.train()
    return value


if __name__ == "__main__":
    main()
