"""A rank that trains on a GPU with `samovar.replicate`, or DDP on NCCL, and prints its weights.

    gpu_program.py SIDE SETTINGS

SIDE is "plain", "ddp" or a strategy. Its steps raise an error if they wait for the GPU, where SETTINGS has
"waits_for_nothing".
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samovar
from samovar.api import connect_hosts

STEPS, WARM_UP = 24, 4
SGD = {"lr": 0.05, "momentum": 0.9}


def net() -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Tanh(), nn.Flatten(), nn.Linear(16 * 36, 40))
    return nn.Sequential(*layers, nn.LayerNorm(40), nn.Tanh(), nn.Linear(40, 10)).cuda()


def batches(rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(10 + rank)
    for _ in range(STEPS):
        yield torch.randn(8, 3, 8, 8).cuda(), torch.randint(0, 10, (8,)).cuda()


def main() -> None:
    side, settings = sys.argv[1], json.loads(sys.argv[2])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rank = int(os.environ["RANK"])
    os.environ["NCCL_HOSTID"] = f"host-{rank}"
    torch.cuda.set_device(rank % torch.cuda.device_count())
    optimizer = partial(getattr(torch.optim, settings.pop("optimizer", "SGD")), **settings.pop("of_optimizer", SGD))
    found = theirs(rank, side, optimizer) if side in ("plain", "ddp") else ours(rank, side, optimizer, settings)
    print(json.dumps(found), flush=True)


def theirs(rank: int, side: str, optimizer_of: Any) -> list[float]:
    model = net()
    if side == "ddp":
        torch.distributed.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = optimizer_of(model.parameters())
    for images, labels in batches(rank):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    found = weights(model)
    if side == "ddp":
        torch.distributed.destroy_process_group()
    return found


def ours(rank: int, strategy: Any, optimizer_of: Any, settings: dict[str, Any]) -> list[float]:
    if settings.pop("by_nccl", True):
        connect_hosts.lacks_nccl = nothing_lacks
    waits_for_nothing = settings.pop("waits_for_nothing", False)
    model = net()
    optimizer = optimizer_of(model.parameters())
    data = list(batches(rank))
    with samovar.replicate(model, optimizer, strategy, timeout_s=60.0, **settings) as replica:
        for step, (images, labels) in enumerate(data):
            if step == WARM_UP and waits_for_nothing:
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            replica.backward(F.cross_entropy(model(images), labels))
            replica.step()
        torch.cuda.set_sync_debug_mode("default")
        with replica.evaluating():
            return weights(model)


def nothing_lacks(hellos: object) -> str:
    del hellos
    return ""


def weights(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten()[:50].cpu() for p in model.parameters()]).tolist()


if __name__ == "__main__":
    main()
