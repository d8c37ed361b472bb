"""Small nets and loops that tests of `samovar.replicate` share."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.frontends.torch.optimizers import Given
from samovar.strategies.config import StrategyConfig

TIMEOUT_S = 60.0
# Settings of every replica that does not say otherwise.
DEFAULTS: dict[str, Any] = {}
Batch = tuple[torch.Tensor, torch.Tensor]


def perceptron(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(rank: int, count: int, size: int = 4) -> Iterator[Batch]:
    """Data that differs from rank to rank and is the same at every run."""
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(count):
        yield torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def whole_batches(world_size: int, count: int) -> Iterator[Batch]:
    """All ranks' `batches` together."""
    for parts in zip(*(batches(rank, count) for rank in range(world_size)), strict=True):
        yield torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def replicated(
    process_group: ProcessGroup, model: nn.Module, optimizer: Given | None = None, **settings: Any
) -> Replica:
    """A replica with SGD where no optimizer is given."""
    compared = settings.pop("compare_weights_steps", None)
    config = StrategyConfig(**{"name": "sync", **DEFAULTS, **settings})
    given = optimizer or sgd(model)
    return Replica(model, given, process_group, config, TIMEOUT_S, compare_weights_steps=compared)


def sgd(model: nn.Module | list[nn.Parameter]) -> torch.optim.Optimizer:
    """Of a model, or of some parameters."""
    parameters = model.parameters() if isinstance(model, nn.Module) else model
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1, momentum=0.9)


def train(replica: Replica, model: nn.Module, optimizer: torch.optim.Optimizer, first: int, stop: int) -> None:
    """This rank's batches `first` to `stop` - 1, a step each."""
    for index, (x, y) in enumerate(batches(replica.rank, stop)):
        if index >= first:
            optimizer.zero_grad()
            replica.backward(F.cross_entropy(model(x), y))
            replica.step()


def train_alone(model: nn.Module, world_size: int, count: int, max_norm: float | None = None) -> nn.Module:
    """One process on all ranks' data."""
    optimizer = sgd(model)
    for x, y in whole_batches(world_size, count):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return model


def distance(ours: nn.Module, theirs: nn.Module) -> float:
    """||ours - theirs|| / ||theirs|| over all parameters."""
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    difference = sum(float((a.detach() - b.detach()).double().square().sum()) for a, b in pairs)
    return float((difference / sum(float(b.detach().double().square().sum()) for _, b in pairs)) ** 0.5)


def values(model: nn.Module) -> list[float]:
    """All parameters in one list, bit by bit as JSON keeps them."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()]).tolist()
