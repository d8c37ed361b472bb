"""One rank of the torch benchmark: steps with Samovar's `sync`, with DDP on gloo and without exchange, on request.

    torch_sync_rank.py JOB

JOB is JSON: the net, this rank's place, and where ranks meet. Answers when it is ready, then serves (see `turns.py`);
at the end the weights were compared.
"""

import copy
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_nets import Transformer, alexnet, resnet20
from turns import answer, open_barrier, serve
from verified import relative_distance

from samovar import _native
from samovar.api.replica import Replica
from samovar.api.team import Team
from samovar.collectives.engine import PlannedCollectives
from samovar.core.group import Group
from samovar.strategies.config import StrategyConfig
from samovar.transports.shm import ShmTransport

TIMEOUT_S = 300.0
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Task:
    """A net, and a batch of its data."""

    net: Callable[[], nn.Module]
    batch: Callable[[], Batch]


TASKS = {
    "resnet20": Task(resnet20, lambda: (torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)))),
    "transformer": Task(
        lambda: Transformer(8192, 256, 8, 10, 64),
        lambda: (torch.randint(0, 8192, (8, 64)), torch.randint(0, 8192, (8, 64))),
    ),
    "alexnet": Task(alexnet, lambda: (torch.randn(16, 3, 227, 227), torch.randint(0, 1000, (16,)))),
}


def loss_of(net: nn.Module, batch: Batch) -> torch.Tensor:
    output = net(batch[0])
    return F.cross_entropy(output.reshape(-1, output.shape[-1]), batch[1].flatten())


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)


class Plain:
    """The loop of one process; with DDP where `net` is wrapped in it."""

    def __init__(self, net: nn.Module, batches: Iterator[Batch], begin: Callable[[], None]) -> None:
        self._net = net
        self._optimizer = optimizer_of(net)
        self._batches = batches
        self.begin = self.drain = begin  # a block lasts until both ranks have ended

    def step(self) -> None:
        self._optimizer.zero_grad()
        loss_of(self._net, next(self._batches)).backward()
        self._optimizer.step()


class Ours(Plain):
    """The same loop with three lines changed."""

    def __init__(self, net: nn.Module, batches: Iterator[Batch], begin: Callable[[], None], team: Team) -> None:
        super().__init__(net, batches, begin)
        self._replica = Replica(net, self._optimizer, team, StrategyConfig(), TIMEOUT_S)

    def step(self) -> None:
        self._optimizer.zero_grad()
        self._replica.backward(loss_of(self._net, next(self._batches)))
        self._replica.step()


def cycle(batches: list[Batch]) -> Iterator[Batch]:
    while True:
        yield from batches


def distance(ours: nn.Module, theirs: nn.Module) -> float:
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return relative_distance((a.detach(), b.detach()) for a, b in pairs)


def serve_sides(task: Task, transport: ShmTransport) -> None:
    """Answer requests for steps of all sides, then see that they learned the same."""
    torch.manual_seed(1)
    nets = [task.net()]
    nets += [copy.deepcopy(nets[0]) for _ in range(2)]
    torch.manual_seed(2 + transport.group.rank)
    batches = [task.batch() for _ in range(4)]
    team = Team(PlannedCollectives(transport, lambda _num_bytes: "direct"), TIMEOUT_S)
    barrier = open_barrier(transport)
    sides = {
        "ours": Ours(nets[0], cycle(batches), barrier, team),
        "ddp": Plain(DistributedDataParallel(nets[1], broadcast_buffers=False), cycle(batches), barrier),
        "off": Plain(nets[2], cycle(batches), barrier),
    }
    answer("ready")
    serve(sides)
    assert distance(nets[0], nets[1]) < 1e-5, f"Samovar and DDP differ by {distance(nets[0], nets[1]):.2g}"
    assert distance(nets[0], nets[2]) > 0, "nothing was exchanged"
    answer("verified")


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    os.sched_setaffinity(0, {job["cpu"]})
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    group = Group(job["rank"], job["world_size"])
    store = dist.FileStore(job["meeting"], group.world_size)
    dist.init_process_group("gloo", store=store, rank=group.rank, world_size=group.world_size)
    serve_sides(TASKS[job["net"]], ShmTransport(job["segment"], group, oversubscribed=False))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
