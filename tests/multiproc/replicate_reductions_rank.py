"""Rank program: what ranks ask of each other beside steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from samovar.api.process_group import ProcessGroup
from samovar.core.errors import SamovarError
from tests.multiproc.replicate_nets import batches, perceptron, replicated, values, whole_batches
from tests.multiproc.replicate_ranks import serve_rank

OBJECT = {"text": "Größe", "list": [1, 2.5, None, True], "nested": {"a": []}}


def numbers(process_group: ProcessGroup, **settings: Any) -> Any:
    replica = replicated(process_group, perceptron(), **settings)
    rank = replica.rank
    replica.barrier()
    count: Any = np.int64(rank + 1)  # as sums of NumPy's arrays are
    return {
        "mean": replica.mean(float(rank)),
        "sum": replica.sum(count),
        "max": replica.max(-float(rank)),
        "int": replica.sum(torch.tensor([[rank, 1]])).tolist(),
        "bools": replica.sum(torch.tensor([True, False])).tolist(),
        "bytes": replica.sum(torch.tensor([200], dtype=torch.uint8)).tolist(),
        "type": str(replica.mean(torch.ones(2, dtype=torch.float16)).dtype),
        "large": float(replica.sum(torch.full((1000,), rank + 1.0)).sum()),
        "gathered": replica.gather({**OBJECT, "rank": count - 1, "long": "x" * (5000 * rank)}),
        "broadcast": replica.broadcast(["from", rank], source=1),
        "local": [replica.local_rank, str(replica.device)],
    }


def at_own_speed(process_group: ProcessGroup) -> Any:
    return numbers(process_group, name="shm-easgd")


def uneven(process_group: ProcessGroup) -> Any:
    """The last rank has no data in the last round."""
    model = perceptron()
    replica = replicated(process_group, model)
    world_size = replica.world_size
    data = TensorDataset(torch.randn(3 * world_size - 1, 6), torch.zeros(3 * world_size - 1).long())
    means, gathered = [], []
    for x, y in replica.shard(DataLoader(data, batch_size=1)):
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
        means.append(replica.mean(float(replica.rank)))
        gathered.append(replica.gather(replica.rank))
    return {"means": means, "gathered": gathered, "values": values(model)}


class Codebook(nn.Module):
    """Vectors that forward trains (van den Oord et al. 2017, appendix A.1): moving means of their nearest inputs.

    `total` adds up the inputs and their counts over all workers.
    """

    codes: torch.Tensor

    def __init__(self, total: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.total = total
        torch.manual_seed(3)
        self.register_buffer("codes", torch.randn(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nearest = F.one_hot(torch.cdist(x, self.codes).argmin(1), 4).float()
        count, inputs = self.total(nearest.sum(0)), self.total(nearest.t() @ x)
        means = torch.where(count[:, None] > 0, inputs / count.clamp(min=1)[:, None], self.codes)
        self.codes.lerp_(means, 0.5)
        return nearest @ self.codes


def _own(part: torch.Tensor) -> torch.Tensor:
    return part


def codebook(process_group: ProcessGroup) -> Any:
    """A buffer that forward trains, with sums over all workers, against one process on all the data."""
    front, alone = Codebook(_own), Codebook(_own)
    replica = replicated(process_group, model := nn.Sequential(front, perceptron()))
    front.total = replica.sum
    for x, y in batches(replica.rank, 5):
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
    for x, _ in whole_batches(replica.world_size, 5):
        alone(x)
    return {"codes": model.state_dict()["0.codes"].tolist(), "alone": alone.codes.tolist()}


def other_shapes(process_group: ProcessGroup) -> Any:
    replica = replicated(process_group, perceptron())
    try:
        return replica.sum(torch.ones(1 + replica.rank)).tolist()
    except SamovarError as error:
        return str(error)


def not_plain(process_group: ProcessGroup) -> Any:
    replica = replicated(process_group, perceptron())
    try:
        return replica.gather(object())
    except SamovarError as error:
        return str(error)


CASES = (numbers, at_own_speed, uneven, codebook, not_plain, other_shapes)
SCENARIOS = {scenario.__name__: scenario for scenario in CASES}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
