"""Rank program: Samovar's `sync` and DistributedDataParallel (gloo) from the same weights on the same data."""

import copy
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samovar.api.process_group import ProcessGroup
from tests.multiproc.replicate_nets import distance, replicated
from tests.multiproc.replicate_ranks import serve_rank
from tests.parity.ddp_nets import CASES, OPTIMIZERS

STEPS = 50


def train(process_group: ProcessGroup, name: str, optimizer_name: str, **settings: object) -> Any:
    case = CASES[name]
    torch.manual_seed(11)
    ours = case.net()
    theirs = copy.deepcopy(ours)
    start = copy.deepcopy(ours)
    parallel = DistributedDataParallel(theirs, broadcast_buffers=False)
    our_optimizer, their_optimizer = (OPTIMIZERS[optimizer_name](net) for net in (ours, theirs))
    replica = replicated(process_group, ours, our_optimizer, **settings)
    for batch in case.batches(replica.rank, STEPS):
        our_optimizer.zero_grad()
        replica.backward(case.loss(ours, batch))
        replica.step()
        their_optimizer.zero_grad()
        case.loss(parallel, batch).backward()
        their_optimizer.step()
    return {"distance": distance(ours, theirs), "moved": distance(ours, start)}


def adversaries(process_group: ProcessGroup, optimizer_name: str) -> Any:
    """A generator and a discriminator with an optimizer each."""
    torch.manual_seed(12)
    maker = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    judge = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    start = copy.deepcopy(maker)
    their_nets = copy.deepcopy(maker), copy.deepcopy(judge)
    optimizers = [OPTIMIZERS[optimizer_name](net) for net in (maker, judge, *their_nets)]
    replicas = replicated(process_group, maker, optimizers[0]), replicated(process_group, judge, optimizers[1])
    parallel = [DistributedDataParallel(net) for net in their_nets]
    for noise, real in _noise(process_group.group.rank):
        optimizers[1].zero_grad()
        replicas[1].backward(judge_loss(judge, maker(noise), real))
        replicas[1].step()
        optimizers[0].zero_grad()
        replicas[0].backward(-judge(maker(noise)).mean())
        replicas[0].step()
        optimizers[3].zero_grad()
        judge_loss(parallel[1], their_nets[0](noise), real).backward()
        optimizers[3].step()
        optimizers[2].zero_grad()
        # Through the bare net: DDP's hooks of the judge would exchange in the maker's backward pass.
        (-their_nets[1](parallel[0](noise)).mean()).backward()
        optimizers[2].step()
    far = max(distance(maker, their_nets[0]), distance(judge, their_nets[1]))
    return {"distance": far, "moved": distance(maker, start)}


def judge_loss(judge: nn.Module, made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    scores = judge(torch.cat([made.detach(), real])).squeeze(1)
    made_scores, real_scores = scores.chunk(2)
    return nn.functional.softplus(made_scores).mean() + nn.functional.softplus(-real_scores).mean()


def _noise(rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2000 + rank)
    for _ in range(STEPS):
        yield torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator) + 1.0


SCENARIOS = {
    **{
        f"{name}-{optimizer}": partial(train, name=name, optimizer_name=optimizer)
        for name in CASES
        for optimizer in OPTIMIZERS
    },
    **{f"adversaries-{optimizer}": partial(adversaries, optimizer_name=optimizer) for optimizer in OPTIMIZERS},
    "transformer-buckets": partial(train, name="transformer", optimizer_name="sgd", bucket_size_bytes=8192),
}


def main() -> None:
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    store = dist.FileStore(str(Path(sys.argv.pop(4)) / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    serve_rank(SCENARIOS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
