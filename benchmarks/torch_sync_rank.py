"""One rank of the torch benchmark: steps with Samovar's `sync`, with DDP on gloo and without exchange, in turn.

    torch_sync_rank.py NET RANK WORLD_SIZE SEGMENT CPU FOLDER

Rates, in steps per second, as JSON on standard output.
"""

import copy
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_nets import Transformer, alexnet, resnet20

from samovar import _native
from samovar.api.replica import Replica
from samovar.api.team import Team
from samovar.collectives.barrier import dissemination_barrier
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.execute import open_channel
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport

TIMEOUT_S = 300.0
WARM_UP_BLOCKS = 2
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Task:
    """A net, a batch of its data, and how many steps and blocks give a steady rate."""

    net: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    steps_per_block: int
    num_blocks: int


TASKS = {
    "resnet20": Task(resnet20, lambda: (torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))), 4, 24),
    "transformer": Task(
        lambda: Transformer(8192, 256, 8, 10, 64),
        lambda: (torch.randint(0, 8192, (8, 64)), torch.randint(0, 8192, (8, 64))),
        2,
        24,
    ),
    "alexnet": Task(alexnet, lambda: (torch.randn(16, 3, 227, 227), torch.randint(0, 1000, (16,))), 1, 16),
}


def loss_of(net: nn.Module, batch: Batch) -> torch.Tensor:
    output = net(batch[0])
    return F.cross_entropy(output.reshape(-1, output.shape[-1]), batch[1].flatten())


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)


class Plain:
    """The loop of one process; with DDP where `net` is wrapped in it."""

    def __init__(self, net: nn.Module, batches: Iterator[Batch]) -> None:
        self._net = net
        self._optimizer = optimizer_of(net)
        self._batches = batches

    def step(self) -> None:
        self._optimizer.zero_grad()
        loss_of(self._net, next(self._batches)).backward()
        self._optimizer.step()


class Ours:
    """The same loop with three lines changed."""

    def __init__(self, net: nn.Module, batches: Iterator[Batch], team: Team) -> None:
        self._net = net
        self._optimizer = optimizer_of(net)
        self._batches = batches
        self._replica = Replica(net, self._optimizer, team, StrategyConfig(), TIMEOUT_S)

    def step(self) -> None:
        self._optimizer.zero_grad()
        self._replica.backward(loss_of(self._net, next(self._batches)))
        self._replica.step()


def cycle(batches: list[Batch]) -> Iterator[Batch]:
    while True:
        yield from batches


def relative_distance(ours: nn.Module, theirs: nn.Module) -> float:
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    difference = sum(float((a - b).detach().double().square().sum()) for a, b in pairs)
    return float((difference / sum(float(b.detach().double().square().sum()) for _, b in pairs)) ** 0.5)


def measure(task: Task, transport: ShmTransport) -> dict[str, list[float]]:
    group = transport.group
    torch.manual_seed(1)
    nets = [task.net()]
    nets += [copy.deepcopy(nets[0]) for _ in range(2)]
    torch.manual_seed(2 + group.rank)
    batches = [task.batch() for _ in range(4)]
    team = Team(PlannedCollectives(transport, lambda _num_bytes: "direct"), TIMEOUT_S)
    sides = {
        "ours": Ours(nets[0], cycle(batches), team),
        "ddp": Plain(DistributedDataParallel(nets[1], broadcast_buffers=False), cycle(batches)),
        "off": Plain(nets[2], cycle(batches)),
    }
    barrier = open_barrier(transport)
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for block in range(WARM_UP_BLOCKS + task.num_blocks):
        # A side that follows one which waits much finds a rested machine, so no side may always follow the same.
        for name in random.Random(block).sample(list(sides), len(sides)):
            barrier()
            started_s = time.perf_counter()
            for _ in range(task.steps_per_block):
                sides[name].step()
            barrier()
            rates[name].append(task.steps_per_block / (time.perf_counter() - started_s))
    distance = relative_distance(nets[0], nets[1])
    assert distance < 1e-5, f"Samovar and DDP differ by {distance:.2g}"
    assert relative_distance(nets[0], nets[2]) > 0, "nothing was exchanged"
    return {name: values[WARM_UP_BLOCKS:] for name, values in rates.items()}


def open_barrier(transport: ShmTransport) -> Callable[[], None]:
    group = transport.group
    region = Region.of(transport.open_window("nothing", 0, 0), 0, 0, np.float32)
    channel = open_channel("barrier", dissemination_barrier(group.rank, group.world_size), transport, region)
    return lambda: channel.run(Deadline.after(TIMEOUT_S))


def main() -> None:
    task, (rank, world_size, segment, cpu) = TASKS[sys.argv[1]], map(int, sys.argv[2:6])
    _native.die_with_parent()
    os.sched_setaffinity(0, {cpu})
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    store = dist.FileStore(str(Path(sys.argv[6]) / sys.argv[1]), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    rates = measure(task, ShmTransport(segment, Group(rank, world_size), oversubscribed=False))
    sys.stdout.write(json.dumps(rates))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
