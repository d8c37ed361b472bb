"""Rank program: three ranks of which the second is killed while it trains."""

import os
import signal
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.strategies.config import StrategyConfig
from tests.multiproc.replicate_nets import batches, perceptron, values
from tests.multiproc.replicate_ranks import RANK_TIMEOUT_S, serve_rank

PATIENCE_S = 5.0
KILLED_AFTER, STEPS = 5, 12


def train(strategy: str, process_group: ProcessGroup) -> Any:
    meet(process_group)
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    size: dict[str, Any] = {"group_size": 3} if strategy == "hybrid-easgd" else {}
    config = StrategyConfig(name=strategy, sync_period_steps=2, **size)
    replica = Replica(model, optimizer, process_group, config, PATIENCE_S)
    try:
        for number, (x, y) in enumerate(batches(replica.rank, STEPS)):
            optimizer.zero_grad()
            replica.backward(F.cross_entropy(model(x), y))
            replica.step()
            if replica.rank == 1 and number == KILLED_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)
        replica.finish()
    except SamovarError as error:
        return {"error": str(error)}
    return {"final": values(model)}


def meet(process_group: ProcessGroup) -> None:
    """Wait for the others without that little patience: some start much later than the first."""
    records = process_group.collectives.records(1)
    records.post([1.0])
    records.collect(Deadline.after(RANK_TIMEOUT_S))


STRATEGIES = ("shm-easgd", "async-msgd", "hybrid-easgd", "round-robin-easgd")
SCENARIOS = {strategy: partial(train, strategy) for strategy in STRATEGIES}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
