"""Rank program: strategies at a center, where ranks step at their own speed."""

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.core.errors import SamovarError
from tests.multiproc.replicate_nets import batches, perceptron, replicated, train, values
from tests.multiproc.replicate_ranks import RANK_TIMEOUT_S, serve_rank

ASYNC = (
    *("async-sgd", "async-msgd", "hogwild-sgd", "async-easgd"),
    *("async-measgd", "hogwild-easgd", "shm-easgd", "hybrid-easgd"),
)
MOVING_RATE = 0.25
STEPS = 6


def optimizer_of(model: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)


def every_strategy(process_group: ProcessGroup) -> Any:
    """Each rank makes another number of steps, evaluates when it likes, and all end with the same weights."""
    results = {}
    for name in ASYNC:
        model = perceptron()
        optimizer = optimizer_of(model, 0.9 if name == "async-measgd" else 0.0)
        size = {"group_size": 1} if name == "hybrid-easgd" else {}
        replica = replicated(process_group, model, optimizer, name=name, sync_period_steps=2, **size)
        train(replica, model, optimizer, 0, STEPS + 4 * replica.rank)
        own, center = values(model), None
        if replica.is_first:
            with replica.evaluating():
                center = values(model)
            assert values(model) == own
        replica.finish()
        replica.close()
        results[name] = {"final": values(model), "own": own, "center": center, "steps": replica.step_count}
    return results


def round_robin(process_group: ProcessGroup) -> Any:
    """Twice in one process: once in one go, once from what was saved on the way."""
    settings = {"name": "round-robin-easgd", "sync_period_steps": 2, "moving_rate": MOVING_RATE}
    model = perceptron()
    replica = replicated(process_group, model, optimizer := optimizer_of(model), **settings)
    train(replica, model, optimizer, 0, 3)
    state = replica.state_dict()
    train(replica, model, optimizer, 3, STEPS)
    worker = values(model)
    second_model = perceptron(seed=77)
    second = replicated(process_group, second_model, optimizer := optimizer_of(second_model), **settings)
    second.load_state_dict(state)
    train(second, second_model, optimizer, 3, STEPS)
    resumed = values(second_model)
    replica.finish()
    second.finish()
    return {"worker": worker, "center": values(model), "resumed": resumed, "resumed_center": values(second_model)}


def whole_numbers(process_group: ProcessGroup) -> Any:
    """Steps add whole numbers, a moving rate of 1/2 halves them: every sum is exact."""
    results = {}
    for title in ("async-sgd", "async-easgd", "async-easgd behind", "shm-easgd", "hybrid-easgd"):
        name, *behind = title.split()
        model = nn.Linear(3, 2)
        with torch.no_grad():
            nn.utils.vector_to_parameters(torch.arange(8.0), model.parameters())
        rate = {} if name == "async-sgd" else {"moving_rate": 0.5}
        more = {"group_size": 1} if name == "hybrid-easgd" else {"overlap": "period"} if behind else {}
        replica = replicated(process_group, model, optimizer_of(model), name=name, sync_period_steps=1, **rate, **more)
        for number in range(4):
            replica.backward(model(torch.ones(1, 3)).sum())
            replica.step(partial(add, model, (number + 1) * (1 + 4 * replica.rank)))
        own = nn.utils.parameters_to_vector(replica.state_dict()["model"].values()).tolist()
        assert own == values(model)
        replica.finish()
        results[title] = {"own": own, "center": values(model)}
    return results


@torch.no_grad()
def add(model: nn.Module, number: int) -> None:
    for parameter in model.parameters():
        parameter.add_(number)


def groups(process_group: ProcessGroup) -> Any:
    """With one group of all ranks the whole run is determined; ranks run out of data at other steps."""
    model = perceptron()
    settings = {"name": "hybrid-easgd", "group_size": process_group.group.world_size, "sync_period_steps": 2}
    replica = replicated(process_group, model, o := optimizer_of(model, 0.9), moving_rate=MOVING_RATE, **settings)
    train(replica, model, o, 0, STEPS)
    group = values(model)
    with replica.evaluating():
        center = values(model)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=None)
    seen = 0
    for x in replica.shard(loader):
        o.zero_grad()
        replica.backward(model(x).square().mean())
        replica.step()
        seen += 1
    uneven = values(model)
    replica.finish()
    return {
        "group": group,
        "center": center,
        "seen": seen,
        "uneven": uneven,
        "final": values(model),
        "steps": replica.step_count,
    }


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Seven batches of one sample: of two ranks the first gets four."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= len(self):
            raise IndexError(index)
        return torch.full((1, 6), float(index))


def uneven(process_group: ProcessGroup) -> Any:
    """Loops over divided data that nobody waits in: rank 1 has trained and evaluated before rank 0 begins."""
    model: Any = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    replica = replicated(process_group, model, o := optimizer_of(model), name="shm-easgd", sync_period_steps=1)
    shown = replicated(process_group, gate := closed_gate(), optimizer_of(gate), name="async-sgd")
    if replica.is_first:
        wait_for(lambda: evaluated(shown, gate) > 0.5)
    for x in replica.shard(torch.utils.data.DataLoader(Numbers(), batch_size=None)):
        o.zero_grad()
        replica.backward(model(torch.cat([x, x + 1])).square().mean())
        replica.step()
    own = model[1].running_mean.tolist()
    with replica.evaluating():
        mean, mask = model[1].running_mean.tolist(), model.mask.tolist()
    if not replica.is_first:
        shown.backward(gate(torch.ones(1, 1)).sum())
        shown.step(lambda: add(gate, 1))
    replica.finish()
    return {
        "steps": replica.step_count,
        "own": own,
        "mean": mean,
        "final": model[1].running_mean.tolist(),
        "mask": mask,
    }


def closed_gate() -> nn.Module:
    gate = nn.Linear(1, 1)
    nn.init.zeros_(gate.weight)
    return gate


def evaluated(replica: Replica, gate: Any) -> float:
    """The gate's weight at the center."""
    with replica.evaluating():
        return float(gate.weight)


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + RANK_TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.005)


def half_precision(process_group: ProcessGroup) -> Any:
    """bfloat16 weights: an elastic strategy rounds them, the others refuse them."""
    model = perceptron().to(torch.bfloat16)
    message = refusal(lambda: replicated(process_group, model, optimizer_of(model), name="async-sgd"))
    model = perceptron().to(torch.bfloat16)
    replica = replicated(process_group, model, o := optimizer_of(model), name="async-easgd", sync_period_steps=1)
    for x, y in batches(replica.rank, STEPS):
        o.zero_grad()
        replica.backward(F.cross_entropy(model(x.bfloat16()).float(), y))
        replica.step()
    replica.finish()
    return {"message": message, "values": values(model)}


def of_other_ranks(process_group: ProcessGroup) -> Any:
    """A state of another strategy gives its center; strategies of two kinds take turns; nobody to wait for."""
    model = perceptron()
    replica = replicated(process_group, model, o := optimizer_of(model), name="sync-easgd", sync_period_steps=2)
    train(replica, model, o, 0, 4)
    state = replica.state_dict()
    mixed = refusal(lambda: replicated(process_group, perceptron(), name="async-easgd"))
    other = perceptron(seed=77)
    replica.close()
    second = replicated(process_group, other, o := optimizer_of(other), name="shm-easgd", sync_period_steps=1)
    second.load_state_dict(state)
    loaded = values(other)
    train(second, other, o, 4, 6)
    second.finish()
    center = torch.cat([state["center"][name].flatten() for name, _ in model.named_parameters()]).double().tolist()
    late, final = refusal(second.step), values(other)
    second.close()
    third = replicated(process_group, other, o := optimizer_of(other), name="sync")
    train(third, other, o, 0, 2)
    third.finish()
    return {"mixed": mixed, "loaded": loaded, "center": center, "final": final, "late": late, "after": values(other)}


def divided(process_group: ProcessGroup) -> Any:
    """Samples by a sampler that everybody can repeat, and the refusal of one with numbers of its own."""
    replica = replicated(process_group, perceptron(), name="async-easgd")
    data = TensorDataset(torch.arange(20))
    own = random.Random(replica.rank)
    restless = DataLoader(data, sampler=_Restless(own))
    message = refusal(lambda: next(iter(replica.shard(restless))))
    return {"message": message, "samples": [int(x) for (x,) in replica.shard(DataLoader(data, shuffle=True))]}


class _Restless(Sampler[int]):
    def __init__(self, own: random.Random) -> None:
        self._own = own

    def __iter__(self) -> Iterator[int]:
        return iter(self._own.sample(range(20), 20))


def refusal(function: Callable[[], object]) -> str:
    try:
        function()
    except SamovarError as error:
        return str(error)
    raise AssertionError("was not refused")


SCENARIOS = {
    function.__name__: function
    for function in (
        every_strategy,
        round_robin,
        whole_numbers,
        groups,
        uneven,
        half_precision,
        of_other_ranks,
        divided,
    )
}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
