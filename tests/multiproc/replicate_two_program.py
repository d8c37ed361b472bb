"""A user's script: two replicas get their gradients from one pass, and rank 1 runs out of data first."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import samovar

TIMEOUT_S, START_S = 20.0, 100.0


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.ones(5, 4))


def replicated(model: nn.Module, timeout_s: float) -> samovar.Replica:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return samovar.replicate(model, optimizer, timeout_s=timeout_s, bucket_size=1)


def main() -> None:
    torch.manual_seed(1)
    models = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2)]
    replicated(models[0], START_S).close()  # on a busy machine ranks start far apart
    first, second = (replicated(model, TIMEOUT_S) for model in models)
    for x in first.shard(DataLoader(Stream(), batch_size=None)):
        for model in models:
            model.zero_grad()
        first.backward(models[1](models[0](x)).sum(), also=[second])
        first.step()
        second.step()
    values = [parameter.sum().item() for model in models for parameter in model.parameters()]
    print(f"rank {first.rank}:", first.step_count, second.step_count, values)


if __name__ == "__main__":
    main()
