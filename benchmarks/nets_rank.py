"""One side of one net's benchmark: steps (forward, backward, update) on one thread, on request.

    nets_rank.py JOB

JOB is JSON. `side` is `torch` (stock modules), or Samovar's precision; `folder` holds train_val.prototxt and
solver.prototxt. The others are a cpu, the shape of a batch of random numbers, and the file for the first step's update
(.npz), which is made without dropout. It answers with that step's loss, then serves (see `turns.py`).
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch_twin import Twin
from turns import Stepping, answer, serve

from samovar import _native
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.core.host import keep_freed_memory
from samovar.core.layout import Bucket
from samovar.data.order import SAMPLE_NUMBERS
from samovar.data.stream import Batch
from samovar.frontends.caffe.definition import CaffeNetDefinition, load_net
from samovar.frontends.caffe.layers.activations import Dropout
from samovar.frontends.caffe.net import build_net
from samovar.frontends.caffe.parameters import ParameterInfo
from samovar.frontends.caffe.solver import load_solver
from samovar.solver.policy import SolverConfig
from samovar.strategies.base import Strategy, Update
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.training import build
from samovar.transports.base import Transport
from samovar.transports.shm import ShmTransport, create_segment

TORCH = "torch"
Tensors = dict[str, torch.Tensor]


class Side(Stepping, Protocol):
    def step(self) -> float: ...
    def weights(self) -> list[torch.Tensor]: ...
    def set_dropout(self, is_on: bool) -> None: ...


@dataclass(frozen=True)
class Task:
    """The parts that the sides share; each has its own copy of the weights."""

    folder: Path
    batch: Tensors

    @property
    def definition(self) -> CaffeNetDefinition:
        return load_net(self.folder / "train_val.prototxt")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(blob.shape) for name, blob in self.batch.items()}

    @property
    def batch_size(self) -> int:
        return len(self.batch["label"])


@dataclass(frozen=True)
class Sharing:
    """How ranks share; with `is_off` they do not."""

    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    is_off: bool = False


ALONE = Sharing()


class NoExchange(Strategy):
    """Every rank trains alone: the same work without communication."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets

    def finish_step(self, _step: int, update: Update) -> None:
        for bucket in self._buckets:
            update(bucket, 1.0)


class SameBatch:
    """The stream that a worker reads from: one batch, with new sample numbers each step."""

    def __init__(self, tensors: Tensors, world_size: int = 1) -> None:
        self._tensors = tensors
        self._world_size = world_size
        self._step = 0

    def next(self, _deadline: Deadline) -> Batch:
        count = len(self._tensors["label"])
        numbers = torch.arange(self._step * count, (self._step + 1) * count)
        self._step += 1
        return Batch(self._step, {**self._tensors, SAMPLE_NUMBERS: numbers}, count, count * self._world_size)


class Ours:
    """Samovar's worker: its model in the window, its strategy, its solver; one rank of `transport`'s group."""

    def __init__(
        self, task: Task, precision: str, transport: Transport | None = None, sharing: Sharing = ALONE
    ) -> None:
        solver = task.folder / "solver.prototxt"
        transport = transport or ShmTransport(create_segment(1), Group(0, 1), oversubscribed=False)
        strategy = resolved(sharing.strategy, transport.group.world_size)
        config = RunConfig(
            job="train", model=solver, precision=precision, workers=transport.group.world_size, strategy=strategy
        )
        # A fixed rate: torch keeps it outside its momentum, Caffe inside, which is the same only then.
        caffe = replace(load_solver(solver), lr_policy="fixed", iter_size=1)
        self._net = build_net(task.definition, "TRAIN", task.shapes, seed=1)
        self.learner = build.build_learner(config, caffe, self._net, transport, None)
        if sharing.is_off:
            buckets = self.learner.model.weights.layout.buckets()
            self.learner = replace(self.learner, strategy=NoExchange(buckets))
        stream: Any = SameBatch(task.batch, transport.group.world_size)
        self.worker_with = partial(build.build_worker, self.learner, stream, config, self.learner.solver)
        self._worker = self.worker_with(None)
        self._step = 0

    def begin(self) -> None:
        """Nobody to wait for."""

    def drain(self) -> None:
        self.learner.strategy.drain()

    def step(self) -> float:
        self._step += 1
        return self._worker.step(self._step - 1).loss

    def weights(self) -> list[torch.Tensor]:
        return [info.parameter.detach() for info in self.infos]

    @property
    def infos(self) -> tuple[ParameterInfo, ...]:
        return self._net.parameter_infos

    def set_dropout(self, is_on: bool) -> None:
        for layer in self._net.layers:
            if isinstance(layer, Dropout):
                layer.is_random = is_on


def begin_alike(net: nn.Module, infos: Sequence[ParameterInfo]) -> None:
    """Give a net of stock modules the weights of ours."""
    with torch.no_grad():
        for parameter, info in zip(net.parameters(), infos, strict=True):
            parameter.copy_(info.parameter.reshape(parameter.shape))


def sgd_of(net: nn.Module, infos: Sequence[ParameterInfo], config: SolverConfig) -> torch.optim.SGD:
    """Torch's SGD with a solver's rate, momentum and weight decay, and with each parameter's factors of them."""
    groups: dict[tuple[float, float], list[torch.Tensor]] = {}
    for parameter, info in zip(net.parameters(), infos, strict=True):
        groups.setdefault((info.lr_mult, info.decay_mult), []).append(parameter)
    rate = config.policy.base_lr
    return torch.optim.SGD(
        [
            {"params": group, "lr": rate * lr_mult, "weight_decay": config.weight_decay * decay_mult}
            for (lr_mult, decay_mult), group in groups.items()
        ],
        lr=rate,
        momentum=config.momentum,
    )


class Theirs:
    """The plain loop with stock modules and torch's SGD, from the same weights."""

    def __init__(self, task: Task, ours: Ours) -> None:
        self._batch: Mapping[str, torch.Tensor] = task.batch
        self._net = Twin(task.definition.in_phase("TRAIN"), task.shapes)
        begin_alike(self._net, ours.infos)
        self._optimizer = sgd_of(self._net, ours.infos, ours.learner.solver.config)

    def begin(self) -> None:
        """Nobody to wait for."""

    def drain(self) -> None:
        """Nothing is left under way."""

    def step(self) -> float:
        self._optimizer.zero_grad()
        loss = self._net(self._batch)
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self._net.parameters()]

    def set_dropout(self, is_on: bool) -> None:
        self._net.train(is_on)


def first_step(side: Side) -> tuple[float, list[np.ndarray]]:
    """Loss and update of a step without dropout."""
    before = [weight.clone() for weight in side.weights()]
    side.set_dropout(False)
    loss = side.step()
    side.drain()
    side.set_dropout(True)
    pairs = zip(side.weights(), before, strict=True)
    return loss, [(after - start).contiguous().numpy().ravel() for after, start in pairs]


def task_of(folder: Path, batch: int, channels: int, size: int, seed: int = 2) -> Task:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, channels, size, size, generator=generator)
    return Task(folder, {"data": images, "label": torch.randint(0, 10, (batch,), generator=generator)})


def open_side(name: str, task: Task) -> Side:
    ours = Ours(task, "fp32" if name == TORCH else name)
    return Theirs(task, ours) if name == TORCH else ours


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    os.sched_setaffinity(0, {job["cpu"]})
    torch.set_num_threads(1)
    if job["side"] != TORCH:
        keep_freed_memory(large_too=True)  # as every rank of a run does
    side = open_side(job["side"], task_of(Path(job["folder"]), job["batch"], job["channels"], job["size"]))
    loss, moves = first_step(side)
    np.savez(job["moves"], *moves)
    del moves
    answer(loss)
    serve({job["side"]: side})


if __name__ == "__main__":
    main()
