"""One rank of the LeNet benchmark, on digits from a database: steps of each side on request.

    lenet_rank.py JOB

JOB is JSON: the solver, the folder of its data, this rank's place, and the sides. These are `ours`, `off` (ranks do
not exchange), `alone` (the same on one rank) and `torch` (a plain loop, which must learn the same). It answers when it
is ready, then serves (see `turns.py`). At the end it answers with a digest of the weights of `ours`.
"""

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from nets_rank import NoExchange
from torch_nets import lenet
from turns import answer, open_barrier, serve
from verified import digest, relative_distance

from samovar import _native
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.data.order import batch_portions
from samovar.data.stream import BatchStream
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.solver import load_solver
from samovar.training import build
from samovar.training.step import Worker
from samovar.transports.shm import ShmTransport

NUM_VERIFIED_STEPS = 25
TIMEOUT_S = 60.0


class Bench:
    """The data, initial weights and solver that the sides share. Every side has its own copy of the weights."""

    def __init__(self, solver: Path, group: Group, segment: int, batch: int) -> None:
        self.group = group
        self._batch = batch
        self.transport = ShmTransport(segment, group, oversubscribed=False)
        self.config = RunConfig(job="train", model=solver, workers=group.world_size)
        # A fixed rate: torch keeps it outside its momentum, Caffe inside, which is the same only then.
        self.caffe = replace(load_solver(solver), lr_policy="fixed")
        self.definition = load_net(self.caffe.net.path)
        self.barrier = open_barrier(self.transport)

    def stream(self) -> BatchStream:
        reader = build.open_reader(self.definition, "TRAIN", self.config, 0)
        return BatchStream(reader, batch_portions(self.group, self._batch * self.group.world_size))

    def learner(self, exchange: bool) -> tuple[build.Learner, Worker, BatchStream]:
        stream = self.stream()
        reader = build.open_reader(self.definition, "TRAIN", self.config, 0)
        with reader:
            net = build.net_for(self.definition, reader, 0, self.config)
        learner = build.build_learner(self.config, self.caffe, net, self.transport, None)
        if not exchange:
            buckets = learner.model.weights.layout.buckets()
            learner = replace(learner, strategy=NoExchange(buckets))
        return learner, build.build_worker(learner, stream, self.config, learner.solver, None), stream


class Ours:
    """Samovar's worker, with or without its exchange; where it is `alone`, no other rank makes its steps."""

    def __init__(self, bench: Bench, exchange: bool, alone: bool = False) -> None:
        self.learner, self._worker, self.stream = bench.learner(exchange)
        self._barrier = None if alone else bench.barrier
        self._step = 0

    def begin(self) -> None:
        if self._barrier is not None:
            self._barrier()

    def step(self) -> None:
        self._worker.step(self._step)
        self._step += 1

    def drain(self) -> None:
        """Nothing is left under way."""

    def weights(self) -> list[torch.Tensor]:
        return [info.parameter.detach() for info in self.learner.net.parameter_infos]


class Theirs:
    """The plain torch loop on the same batches from the same weights, with the same learning rates."""

    def __init__(self, bench: Bench, ours: Ours) -> None:
        self._net = lenet()
        with torch.no_grad():
            for parameter, start in zip(self._net.parameters(), ours.weights(), strict=True):
                parameter.copy_(start.contiguous())
        weights = [p for name, p in self._net.named_parameters() if name.endswith("weight")]
        biases = [p for name, p in self._net.named_parameters() if name.endswith("bias")]
        config = ours.learner.solver.config
        groups: list[dict[str, Any]] = [{"params": weights}, {"params": biases, "lr": 2 * config.policy.base_lr}]
        self._optimizer = torch.optim.SGD(
            groups,
            lr=config.policy.base_lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        self.stream = bench.stream()

    def begin(self) -> None:
        """Nobody to wait for."""

    def step(self) -> None:
        batch = self.stream.next(Deadline.after(TIMEOUT_S)).tensors
        self._optimizer.zero_grad()
        F.cross_entropy(self._net(batch["data"]), batch["label"]).backward()
        self._optimizer.step()

    def drain(self) -> None:
        """Nothing is left under way."""

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self._net.parameters()]


def verify(ours: Ours | Theirs, theirs: Ours | Theirs) -> None:
    for _ in range(NUM_VERIFIED_STEPS):
        ours.step()
        theirs.step()
    distance = relative_distance(zip(ours.weights(), theirs.weights(), strict=True))
    assert distance < 1e-4, f"after {NUM_VERIFIED_STEPS} steps the two sides differ by {distance:.2g}"


def open_sides(bench: Bench, names: list[str], stack: ExitStack) -> dict[str, Ours | Theirs]:
    sides: dict[str, Any] = {}
    for name in names:
        side = Theirs(bench, sides["ours"]) if name == "torch" else Ours(bench, name == "ours", name == "alone")
        stack.enter_context(side.stream)
        sides[name] = side
    if "torch" in sides:
        verify(sides["ours"], sides["torch"])
    return sides


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    os.chdir(job["folder"])
    os.sched_setaffinity(0, {job["cpu"]})
    torch.set_num_threads(1)
    bench = Bench(Path(job["solver"]), Group(job["rank"], job["world_size"]), job["segment"], job["batch"])
    with ExitStack() as stack:
        sides = open_sides(bench, job["sides"], stack)
        answer("ready")
        serve(sides)
        answer(digest(sides["ours"].weights()))


if __name__ == "__main__":
    main()
