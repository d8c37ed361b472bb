"""Rank program: what ranks ask of each other beside steps."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from samovar.api.process_group import ProcessGroup
from samovar.core.errors import SamovarError
from tests.multiproc.replicate_nets import perceptron, replicated, values
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


SCENARIOS = {scenario.__name__: scenario for scenario in (numbers, at_own_speed, uneven, not_plain, other_shapes)}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
