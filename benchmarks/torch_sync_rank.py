"""One rank of a side of the torch benchmark: steps with Samovar's `sync`, with DDP on gloo or without exchange.

    torch_sync_rank.py JOB

JOB is JSON: the side, the net, this rank's place, and the ranks' meeting point. It answers when it is ready, then
serves (see `turns.py`). At the end the file that the job names holds rank 0's weights.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_nets import Transformer, alexnet, resnet20
from turns import answer, open_barrier, serve

from samovar import _native
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.collectives.engine import PlannedCollectives
from samovar.core.group import Group
from samovar.core.host import keep_freed_memory
from samovar.strategies.config import StrategyConfig
from samovar.transports.shm import ShmTransport

TIMEOUT_S = 300.0
Batch = tuple[torch.Tensor, torch.Tensor]
Job = dict[str, Any]


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

    def weights(self) -> dict[str, torch.Tensor]:
        """By number: DDP has other names."""
        return {str(number): p.detach().clone() for number, p in enumerate(self._net.parameters())}


class Ours(Plain):
    """The same loop with three lines changed."""

    def __init__(self, net: nn.Module, batches: Iterator[Batch], begin: Callable[[], None], team: ProcessGroup) -> None:
        super().__init__(net, batches, begin)
        self._replica = Replica(net, self._optimizer, team, StrategyConfig(), TIMEOUT_S)

    def step(self) -> None:
        self._optimizer.zero_grad()
        self._replica.backward(loss_of(self._net, next(self._batches)))
        self._replica.step()


def cycle(batches: list[Batch]) -> Iterator[Batch]:
    while True:
        yield from batches


def side_of(job: Job, transport: ShmTransport) -> Plain:
    """Every side begins with the same weights, and computes on the same data."""
    task = TASKS[job["net"]]
    torch.manual_seed(1)
    net = task.net()
    torch.manual_seed(2 + transport.group.rank)
    batches, barrier = cycle([task.batch() for _ in range(4)]), open_barrier(transport)
    match job["side"]:
        case "ours":
            team = ProcessGroup(PlannedCollectives(transport, lambda _num_bytes: "direct"), TIMEOUT_S)
            return Ours(net, batches, barrier, team)
        case "off":
            return Plain(net, batches, barrier)
        case _:
            return Plain(DistributedDataParallel(net, broadcast_buffers=False), batches, barrier)


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    os.sched_setaffinity(0, {job["cpu"]})
    torch.set_num_threads(1)
    if job["side"] != "ddp":
        keep_freed_memory(large_too=False)  # as `samovar.replicate` does
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    group = Group(job["rank"], job["world_size"])
    store = dist.FileStore(job["meeting"], group.world_size)
    dist.init_process_group("gloo", store=store, rank=group.rank, world_size=group.world_size)
    side = side_of(job, ShmTransport(job["segment"], group, oversubscribed=False))
    answer("ready")
    serve({job["side"]: side})
    if group.rank == 0:
        save_file(side.weights(), job["weights"])
    answer("saved")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
