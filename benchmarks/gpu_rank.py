"""A rank on a GPU: the same loop by DDP on NCCL, by `samovar.replicate`, and without exchange, in turns.

    gpu_rank.py JOB

JOB is JSON: the net, a rank's batch, the steps of a block, the blocks of each side, and the file for the rates.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_nets import Transformer, resnet18, resnet20
from verified import relative_distance

import samovar
from samovar.api import connect_hosts

NETS: dict[str, Callable[[], nn.Module]] = {
    "resnet20": resnet20,
    "resnet18": resnet18,
    "transformer": lambda: Transformer(8192, 256, 8, 10, 64),
}
WARM_UP_BLOCKS = 1
Batch = tuple[torch.Tensor, torch.Tensor]


def batch_of(net: str, count: int) -> Batch:
    """On the device, as if data came for nothing."""
    match net:
        case "transformer":
            found = torch.randint(0, 8192, (count, 64)), torch.randint(0, 8192, (count, 64))
        case "resnet20":
            found = torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,))
        case _:
            found = torch.randn(count, 3, 224, 224), torch.randint(0, 1000, (count,))
    return found[0].cuda(), found[1].cuda()


class Side:
    """The loop without exchange, or with DDP."""

    def __init__(self, net: nn.Module, batches: list[Batch]) -> None:
        self.net, self._batches, self._number = net, batches, 0
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)

    def loss(self) -> torch.Tensor:
        images, labels = self._batches[self._number % len(self._batches)]
        self._number += 1
        self.optimizer.zero_grad()
        output = self.net(images)
        return F.cross_entropy(output.reshape(-1, output.shape[-1]), labels.flatten())

    def step(self) -> None:
        self.loss().backward()
        self.optimizer.step()


class Ours(Side):
    """The same with three lines changed."""

    def __init__(self, net: nn.Module, batches: list[Batch], strategy: str, **settings: object) -> None:
        super().__init__(net, batches)
        replicate: Callable[..., samovar.Replica] = samovar.replicate
        self.replica = replicate(net, self.optimizer, strategy, timeout_s=120.0, **settings)

    def step(self) -> None:
        self.replica.backward(self.loss())
        self.replica.step()


def main() -> None:
    job, rank = json.loads(sys.argv[1]), int(os.environ["RANK"])
    count = torch.cuda.device_count()
    torch.cuda.set_device(rank % count)
    if count < int(os.environ["WORLD_SIZE"]):
        os.environ["NCCL_HOSTID"] = f"rank {rank}"  # else NCCL refuses two ranks on a GPU
        connect_hosts.lacks_nccl = none
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank % count))
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    sides = all_sides(job["net"], [batch_of(job["net"], job["batch"]) for _ in range(4)])
    rates = take_turns(sides, job["steps"], job["blocks"], job["batch"] * dist.get_world_size())
    require_same(sides)
    if rank == 0:
        Path(job["out"]).write_text(json.dumps(rates))
    dist.barrier()
    for side in sides.values():
        if isinstance(side, Ours):
            side.replica.close()
    dist.destroy_process_group()


def all_sides(name: str, batches: list[Batch]) -> dict[str, Side]:
    """Each with the same first weights."""

    def net() -> nn.Module:
        torch.manual_seed(1)
        return NETS[name]().cuda()

    return {
        "off": Side(net(), batches),
        "ddp": Side(DistributedDataParallel(net(), broadcast_buffers=False), batches),
        "sync": Ours(net(), batches, "sync"),
        "sync, behind backward": Ours(net(), batches, "sync", overlap="backward", bucket_size=8_000_000),
        "local-sgd, 8": Ours(net(), batches, "local-sgd", sync_period_steps=8),
        "sync-easgd, 8": Ours(net(), batches, "sync-easgd", sync_period_steps=8),
    }


def take_turns(sides: dict[str, Side], steps: int, blocks: int, batch: int) -> dict[str, list[float]]:
    """Samples per second of all ranks; a block ends when the GPU has done its work on each."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(WARM_UP_BLOCKS + blocks):
        for name, side in sides.items():
            meet()
            began = time.perf_counter()
            for _ in range(steps):
                side.step()
            meet()
            if block >= WARM_UP_BLOCKS:
                rates[name].append(steps * batch / (time.perf_counter() - began))
    return rates


def meet() -> None:
    dist.barrier()
    torch.cuda.synchronize()


def require_same(sides: dict[str, Side]) -> None:
    """Samovar's `sync` and DDP have learned the same up to rounding, and not what a rank learns alone."""
    theirs = list(sides["ddp"].net.parameters())
    distances = {
        name: relative_distance(
            (a.detach().cpu().numpy(), b.detach().cpu().numpy())
            for a, b in zip(sides[name].net.parameters(), theirs, strict=True)
        )
        for name in ("sync", "sync, behind backward", "off")
    }
    assert max(distances["sync"], distances["sync, behind backward"]) < distances["off"] / 5, distances


def none(hellos: object) -> str:
    del hellos
    return ""


if __name__ == "__main__":
    main()
