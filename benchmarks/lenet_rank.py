"""One rank of the LeNet benchmark: blocks of steps of each side in turn, rates as JSON on standard output."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from nets_rank import NoExchange
from torch_nets import lenet

from samovar import _native
from samovar.cli import build
from samovar.collectives.barrier import dissemination_barrier
from samovar.collectives.execute import open_channel
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.data.order import batch_portions
from samovar.data.stream import BatchStream
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.solver import load_solver
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport
from samovar.worker.replicas import require_equal
from samovar.worker.step import Worker

BATCH = 64
STEPS_PER_BLOCK = 25
NUM_PAIRS = 24
WARM_UP_BLOCKS = 2
TIMEOUT_S = 60.0


class Bench:
    """What the sides share: data, initial weights, solver. Every side has its own copy of the weights."""

    def __init__(self, solver: Path, group: Group, segment: int) -> None:
        self.group = group
        self.transport = ShmTransport(segment, group, oversubscribed=False)
        self.config = RunConfig(job="train", model=solver, workers=group.world_size)
        # A fixed rate: torch keeps it outside its momentum, Caffe inside, which is the same only then.
        self.caffe = replace(load_solver(solver), lr_policy="fixed")
        self.definition = load_net(self.caffe.net_path)
        window = self.transport.open_window("nothing", 0, 0)
        plan = dissemination_barrier(group.rank, group.world_size)
        self._barrier = open_channel("barrier", plan, self.transport, Region.of(window, 0, 0, np.float32))

    def barrier(self) -> None:
        self._barrier.run(Deadline.after(TIMEOUT_S))

    def stream(self) -> BatchStream:
        reader = build.open_reader(self.definition, "TRAIN", self.config, 0)
        return BatchStream(reader, batch_portions(self.group, BATCH * self.group.world_size))

    def learner(self, exchange: bool) -> tuple[build.Learner, Worker, BatchStream]:
        stream = self.stream()
        reader = build.open_reader(self.definition, "TRAIN", self.config, 0)
        with reader:
            net = build.net_for(self.definition, reader, 0)
        learner = build.build_learner(self.config, self.caffe, net, self.transport, None)
        if not exchange:
            buckets = learner.model.weights.layout.buckets()
            learner = replace(learner, strategy=NoExchange(buckets))
        return learner, build.build_worker(learner, stream, self.config), stream


class Ours:
    """Steps of Samovar's worker, with or without its exchange."""

    def __init__(self, bench: Bench, exchange: bool) -> None:
        self.learner, self._worker, self.stream = bench.learner(exchange)
        self._step = 0

    def block(self) -> None:
        for _ in range(STEPS_PER_BLOCK):
            self._worker.step(self._step)
            self._step += 1

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
        self._optimizer = torch.optim.SGD(
            [{"params": weights}, {"params": biases, "lr": 2 * config.policy.base_lr}],
            lr=config.policy.base_lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        self.stream = bench.stream()

    def block(self) -> None:
        for _ in range(STEPS_PER_BLOCK):
            batch = self.stream.next(Deadline.after(TIMEOUT_S)).tensors
            self._optimizer.zero_grad()
            F.cross_entropy(self._net(batch["data"]), batch["label"]).backward()
            self._optimizer.step()

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self._net.parameters()]


def rate(bench: Bench, block: Callable[[], None]) -> float:
    """This rank's samples per second in one block that all ranks begin together."""
    bench.barrier()
    started_s = time.perf_counter()
    block()
    return BATCH * STEPS_PER_BLOCK / (time.perf_counter() - started_s)


def alone(bench: Bench, block: Callable[[], None]) -> float:
    """Rank 0's rate while the other ranks wait."""
    measured = rate(bench, block if bench.group.rank == 0 else lambda: None)
    bench.barrier()
    return measured


def relative_distance(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    difference = sum(float((a - b).double().square().sum()) for a, b in zip(ours, theirs, strict=True))
    return (difference / sum(float(b.double().square().sum()) for b in theirs)) ** 0.5


def against_torch(bench: Bench) -> dict[str, list[float]]:
    ours = Ours(bench, exchange=True)
    theirs = Theirs(bench, ours)
    rates: dict[str, list[float]] = {"ours": [], "torch": []}
    with ours.stream, theirs.stream:
        for pair in range(WARM_UP_BLOCKS + NUM_PAIRS):
            rates["ours"].append(rate(bench, ours.block))
            rates["torch"].append(rate(bench, theirs.block))
            if pair == 0:
                distance = relative_distance(ours.weights(), theirs.weights())
                assert distance < 1e-4, f"after {STEPS_PER_BLOCK} steps the two sides differ by {distance:.2g}"
    return {side: values[WARM_UP_BLOCKS:] for side, values in rates.items()}


def against_no_exchange(bench: Bench) -> dict[str, list[float]]:
    together, apart, single = (Ours(bench, exchange) for exchange in (True, False, False))
    rates: dict[str, list[float]] = {"ours": [], "no exchange": [], "alone": []}
    with together.stream, apart.stream, single.stream:
        for _ in range(WARM_UP_BLOCKS + NUM_PAIRS):
            rates["ours"].append(rate(bench, together.block))
            rates["no exchange"].append(rate(bench, apart.block))
            rates["alone"].append(alone(bench, single.block))
    require_equal(bench.transport, together.learner.model.weights.sha256(), TIMEOUT_S)
    return {side: values[WARM_UP_BLOCKS:] for side, values in rates.items()}


def main() -> None:
    solver, (rank, world_size, segment, cpu) = Path(sys.argv[1]), map(int, sys.argv[2:])
    _native.die_with_parent()
    os.sched_setaffinity(0, {cpu})
    torch.set_num_threads(1)
    bench = Bench(solver, Group(rank, world_size), segment)
    rates = against_torch(bench) if world_size == 1 else against_no_exchange(bench)
    sys.stdout.write(json.dumps(rates))


if __name__ == "__main__":
    main()
