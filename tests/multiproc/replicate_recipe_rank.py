"""Rank program: replicas by a recipe."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.core.errors import InputError
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import by_recipe
from samovar.strategies.recipe import Recipe
from tests.multiproc.replicate_nets import TIMEOUT_S, perceptron, sgd
from tests.multiproc.replicate_ranks import serve_rank

DILOCO = StrategyConfig("diloco")


def loader(batch_size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(18)), batch_size=batch_size)


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except InputError as error:
        return str(error)
    return "was not refused"


def averaging(process_group: ProcessGroup) -> Any:
    model = perceptron()
    optimizer = sgd(model)
    replica = Replica(model, optimizer, process_group, DILOCO, TIMEOUT_S, recipe=DILOCO.traits.recipe)
    sizes = [len(batch) for (batch,) in replica.shard(loader(6))]
    return {"sizes": sizes, "rate": optimizer.param_groups[0]["lr"], "samples": sum(sizes)}


def with_scheduler(process_group: ProcessGroup) -> str:
    model = perceptron()
    optimizer = sgd(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    return refused(lambda: Replica(model, optimizer, process_group, DILOCO, TIMEOUT_S, recipe=DILOCO.traits.recipe))


def loaded_rates(process_group: ProcessGroup) -> Any:
    """A state of the optimizer that comes past the replica, and one that the replica loads."""
    model = perceptron()
    optimizer = sgd(model)
    state = optimizer.state_dict()
    replica = Replica(model, optimizer, process_group, DILOCO, TIMEOUT_S, recipe=DILOCO.traits.recipe)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replica.load_state_dict(replica.state_dict())
        rates = [optimizer.param_groups[0]["lr"]]
        quiet = len(caught)
        optimizer.load_state_dict(state)
    rates.append(optimizer.param_groups[0]["lr"])
    return {"quiet": quiet, "texts": [str(one.message) for one in caught], "rates": rates}


def odd_batch(process_group: ProcessGroup) -> str:
    model = perceptron()
    replica = Replica(model, sgd(model), process_group, DILOCO, TIMEOUT_S, recipe=DILOCO.traits.recipe)
    return refused(lambda: replica.shard(loader(7)))


def only_one_has_it(process_group: ProcessGroup) -> str:
    model = perceptron()
    recipe = Recipe() if process_group.group.rank else None
    return refused(lambda: Replica(model, sgd(model), process_group, DILOCO, TIMEOUT_S, recipe=recipe))


def with_momentum_ahead(process_group: ProcessGroup) -> Any:
    model, world_size = perceptron(), process_group.group.world_size
    given = by_recipe(StrategyConfig("async-sgd"), world_size, is_adaptive=False)

    def replicated(nesterov: bool) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=nesterov)
        Replica(model, optimizer, process_group, given, TIMEOUT_S, recipe=given.traits.recipe)
        return optimizer

    return {"plain": refused(lambda: replicated(False)), "rate": replicated(True).param_groups[0]["lr"]}


def without_recipe(process_group: ProcessGroup) -> list[float]:
    factors = []
    for keeps in (False, True):
        model, config = perceptron(), StrategyConfig("async-sgd", keep_momentum=keeps)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 * keeps, nesterov=keeps)
        with Replica(model, optimizer, process_group, config, TIMEOUT_S) as replica:
            factors += [replica.rate_factor, optimizer.param_groups[0]["lr"]]
    return factors


def adaptive(process_group: ProcessGroup) -> list[float]:
    rates = []
    for kind in (torch.optim.AdamW, torch.optim.RMSprop, torch.optim.ASGD, torch.optim.SGD):
        model, config = perceptron(), StrategyConfig("local-sgd")
        optimizer = kind(model.parameters(), lr=0.1)
        with Replica(model, optimizer, process_group, config, TIMEOUT_S, recipe=config.traits.recipe):
            rates.append(optimizer.param_groups[0]["lr"])
    return rates


PROGRAMS = (
    *(averaging, with_scheduler, loaded_rates, odd_batch),
    *(only_one_has_it, with_momentum_ahead, without_recipe, adaptive),
)
SCENARIOS = {function.__name__: function for function in PROGRAMS}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
