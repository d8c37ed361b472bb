"""Rank program: strategies that exchange weights, evaluation, saved state, and ranks that disagree."""

import io
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samovar
from samovar.api.process_group import ProcessGroup
from samovar.core.errors import SamovarError
from samovar.core.layout import Bucket
from samovar.strategies.sync import Sync
from tests.multiproc.replicate_nets import batches, distance, perceptron, replicated, sgd, train, values
from tests.multiproc.replicate_ranks import serve_rank

STEPS = 6
EVERY: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "sync as bf16": {"name": "sync", "compress": "bf16", "always_compresses": True},
    "sync as 1-bit, tried": {"name": "sync", "compress": "1-bit", "bucket_size_bytes": 1},
    "local-sgd": {"name": "local-sgd", "sync_period_steps": 2},
    "diloco": {"name": "diloco", "sync_period_steps": 2},
    "diloco streaming": {
        "name": "diloco",
        "sync_period_steps": 3,
        "compress": "int4",
        "fragments": 2,
        "delay_steps": 1,
    },
    "sync-easgd": {"name": "sync-easgd", "sync_period_steps": 2, "overlap": "period"},
    "sync-easgd as int8": {"name": "sync-easgd", "sync_period_steps": 2, "compress": "int8"},
}


def half_sync(process_group: ProcessGroup) -> Any:
    """A gradient by a strategy that halves it, and by the one that it is made from."""

    @samovar.strategy("half-sync")
    class HalfSync(Sync):
        def reduced(self, step: int) -> Iterator[tuple[Bucket, float]]:
            for bucket, scale in super().reduced(step):
                yield bucket, scale / 2

    found = {}
    for name in ("half-sync", "sync"):
        model = perceptron()
        replica = replicated(process_group, model, sgd(model), name=name)
        [(x, y)] = batches(replica.rank, 1)
        replica.backward(F.cross_entropy(model(x), y))
        found[name] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).tolist()
        replica.close()
    return found


def elastic(process_group: ProcessGroup) -> Any:
    """The three spreads against a plain loop over all ranks' nets."""
    results = {}
    for overlap in ("none", "step", "period"):
        model = perceptron()
        replica = replicated(
            process_group,
            model,
            o := sgd(model),
            name="sync-easgd",
            sync_period_steps=2,
            moving_rate=0.25,
            overlap=overlap,
        )
        train(replica, model, o, 0, STEPS)
        worker = values(model)
        with replica.evaluating():
            results[overlap] = {"worker": worker, "center": values(model)}
        assert values(model) == worker
    nets, center = [perceptron() for _ in range(process_group.group.world_size)], torch.tensor(values(perceptron()))
    optimizers = [sgd(net) for net in nets]
    data = [list(batches(rank, STEPS)) for rank in range(len(nets))]
    for step in range(STEPS):
        for net, optimizer, part in zip(nets, optimizers, data, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(net(part[step][0]), part[step][1]).backward()
            optimizer.step()
        if step % 2:
            flats = [nn.utils.parameters_to_vector(net.parameters()).detach() for net in nets]
            pulls = [0.25 * (flat - center) for flat in flats]
            for net, flat, pull in zip(nets, flats, pulls, strict=True):
                nn.utils.vector_to_parameters(flat - pull, net.parameters())
            center = center + sum(pulls)
    results["wanted"] = {"worker": values(nets[process_group.group.rank]), "center": center.double().tolist()}
    return results


def averaged(process_group: ProcessGroup) -> Any:
    """Without momentum the mean of weights after one step is a step with the mean gradient."""
    model, other, third = perceptron(), perceptron(), perceptron()
    for net, settings in (
        (model, {"name": "local-sgd", "sync_period_steps": 1}),
        (other, {"name": "sync"}),
        (third, {"name": "diloco", "sync_period_steps": 1, "outer_rate": 1.0, "outer_momentum": 0.0}),
    ):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        train(replicated(process_group, net, optimizer, **settings), net, optimizer, 0, STEPS)
    return {"local-sgd": distance(model, other), "diloco": distance(third, other)}


def loaded_after_evaluation(process_group: ProcessGroup) -> Any:
    """The weights of an earlier evaluation, which a loop loads after the last one, are those that stay."""
    model = perceptron()
    replica = replicated(process_group, model, o := sgd(model), name="local-sgd", sync_period_steps=4)
    train(replica, model, o, 0, 3)
    with replica.evaluating():
        best = {name: value.clone() for name, value in model.state_dict().items()}
    train(replica, model, o, 3, STEPS)
    with replica.evaluating():
        last = values(model)
    model.load_state_dict(best)
    with replica.evaluating():
        shown = values(model)
    replica.finish()
    best_values = torch.cat([value.double().flatten() for value in best.values()]).tolist()
    return {"best": best_values, "last": last, "shown": shown, "finished": values(model)}


def with_half_precision(process_group: ProcessGroup) -> Any:
    model = perceptron()
    model[2].to(torch.bfloat16)
    replica = replicated(process_group, model, optimizer := sgd(model), name="local-sgd", sync_period_steps=2)
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model[2](model[0](x).bfloat16()).float(), y))
        replica.step()
    return {"values": values(model), "types": sorted({str(p.dtype) for p in model.parameters()})}


def statistics(process_group: ProcessGroup) -> Any:
    """BatchNorm keeps each rank's own statistics, except in evaluating()."""
    model: Any = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    model.register_buffer("time", torch.tensor(1.7e9 + 0.123, dtype=torch.float64))
    model.register_buffer("mask", torch.full((2,), torch.finfo(torch.float32).min).mul_(torch.tensor([0.0, 1.0])))
    model.register_buffer("cache", torch.ones(1), persistent=False)
    model.register_buffer("count", torch.tensor(1e9, dtype=torch.float64))
    replica = replicated(process_group, model, optimizer := sgd(model))
    model.count += 100 * replica.rank
    model.cache = torch.full((3 + replica.rank,), replica.rank)  # it has grown with the longest text
    for x, _ in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        replica.backward(model(x).square().mean())
        replica.step()
    own = model[1].running_mean.tolist()
    with replica.evaluating():
        mean, time, cache = model[1].running_mean.tolist(), model.time.item(), model.cache.tolist()
        mask, count = model.mask.tolist(), model.count.item()
    kept = model[1].running_mean.tolist() == own
    return {"own": own, "mean": mean, "kept": kept, "time": time, "cache": cache, "mask": mask, "count": count}


class Cached(nn.Module):
    """A cache that grows with the batch, before the statistics."""

    cache: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("cache", torch.full((1,), float(size)), persistent=False)
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.cache) < len(x):
            self.cache = torch.full((len(x),), float(len(x)))
        return self.net(x)

    def saved(self) -> list[float]:
        return torch.cat([value.double().flatten() for value in self.state_dict().values()]).tolist()


def cached(process_group: ProcessGroup) -> Any:
    """Caches of equal shapes come from rank 0; after a step they have another on each rank, and stay."""
    size = 4 + 3 * process_group.group.rank
    model = Cached(size)
    replica = replicated(process_group, model, sgd(model))
    sent = model.cache.tolist()
    [(x, _)] = batches(replica.rank, 1, size)
    replica.backward(model(x).square().mean())
    replica.step()
    state = replica.state_dict()
    saved = model.saved()
    replica.finish()
    replica.close()
    again = replicated(process_group, model, sgd(model), name="local-sgd", sync_period_steps=2)
    again.load_state_dict(state)
    return {"sent": sent, "saved": saved, "loaded": model.saved(), "cache": model.cache.tolist()}


def resumed(process_group: ProcessGroup) -> Any:
    """Six steps in one go, and in two with what the first saved: for every strategy, with Adam."""
    results = {}
    for name, settings in EVERY.items():
        model = perceptron()
        replica = replicated(process_group, model, o := torch.optim.Adam(model.parameters(), lr=0.01), **settings)
        train(replica, model, o, 0, 3)
        file = io.BytesIO()
        torch.save(replica.state_dict(), file)
        train(replica, model, o, 3, STEPS)
        file.seek(0)
        again = perceptron(seed=77)
        second = replicated(process_group, again, o := torch.optim.Adam(again.parameters(), lr=0.01), **settings)
        second.load_state_dict(torch.load(file, weights_only=True))
        train(second, again, o, 3, STEPS)
        results[name] = {"equal": values(model) == values(again), "steps": second.step_count}
    return results


def compressed(process_group: ProcessGroup) -> Any:
    """Counts of who has a gradient are never compressed: of three layers one is used by rank 0 alone, one by nobody."""
    found = {}
    for codec in ("bf16", "int8", "int4", "top-k", "1-bit"):
        torch.manual_seed(5)
        model = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        replica = replicated(process_group, model, optimizer := sgd(model), compress=codec, always_compresses=True)
        for x, _ in batches(replica.rank, STEPS):
            optimizer.zero_grad()
            hidden = model[1](x) if replica.rank == 0 else x
            replica.backward(model[0](hidden).square().mean())
            replica.step()
        has_gradient = [layer.weight.grad is not None for layer in model]
        found[codec] = {"values": values(model), "has_gradient": has_gradient}
    return found


def changed_strategy(process_group: ProcessGroup) -> Any:
    """The state of another strategy gives its center."""
    model = perceptron()
    replica = replicated(process_group, model, o := sgd(model), **EVERY["sync-easgd"])
    train(replica, model, o, 0, 3)
    state = replica.state_dict()
    center = torch.cat([state["center"][name].flatten() for name, _ in model.named_parameters()])
    again = perceptron(seed=77)
    second = replicated(process_group, again, sgd(again), **EVERY["local-sgd"])
    second.load_state_dict(state)
    return {"values": values(again), "center": center.double().tolist()}


def another_ranks_state(process_group: ProcessGroup) -> Any:
    model = perceptron()
    replica = replicated(process_group, model)
    return refusal(replica.load_state_dict, {**replica.state_dict(), "rank": 1 - replica.rank})


def inside_evaluating(process_group: ProcessGroup) -> Any:
    model = perceptron()
    replica = replicated(process_group, model)
    with replica.evaluating():
        return refusal(replica.step)


def other_model(process_group: ProcessGroup) -> Any:
    model = nn.Linear(6, 3 + process_group.group.rank)
    return refusal(replicated, process_group, model)


def other_settings(process_group: ProcessGroup) -> Any:
    return refusal(
        lambda: replicated(
            process_group, perceptron(), name="local-sgd", sync_period_steps=2 + process_group.group.rank
        )
    )


def other_place(process_group: ProcessGroup) -> Any:
    """Rank 0 evaluates where the other trains."""
    model = perceptron()
    replica = replicated(process_group, model)
    if replica.is_first:
        return refusal(replica.evaluating().__enter__)
    return refusal(replica.backward, model(torch.ones(1, 6)).sum())


def unfrozen(process_group: ProcessGroup) -> Any:
    model = perceptron()
    model[0].requires_grad_(False)
    replica = replicated(process_group, model, torch.optim.SGD(model.parameters(), lr=0.1))
    model[0].requires_grad_(True)
    return refusal(replica.backward, model(torch.ones(1, 6)).sum())


def unfrozen_elsewhere(process_group: ProcessGroup) -> Any:
    """The frozen layer is in no optimizer of the replica; another optimizer takes it up."""
    model = perceptron()
    model[0].requires_grad_(False)
    replica = replicated(process_group, model, torch.optim.SGD(model[2].parameters(), lr=0.1))
    model[0].requires_grad_(True)
    torch.optim.SGD(model.parameters(), lr=0.1)
    return refusal(replica.backward, model(torch.ones(1, 6)).sum())


def moved(process_group: ProcessGroup) -> Any:
    model = perceptron()
    replica = replicated(process_group, model, name="local-sgd")
    weight = model.get_parameter("0.weight")
    weight.data = weight.data.clone()
    return refusal(replica.step)


def replaced(process_group: ProcessGroup) -> Any:
    model = perceptron()
    replica = replicated(process_group, model, name="sync")
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    replica.backward(model(torch.ones(1, 6)).sum())
    return refusal(replica.step)


def refusal(function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except SamovarError as error:
        return str(error)
    raise AssertionError("was not refused")


SCENARIOS = {
    function.__name__: function
    for function in (
        elastic,
        averaged,
        loaded_after_evaluation,
        with_half_precision,
        statistics,
        cached,
        resumed,
        compressed,
        changed_strategy,
        another_ranks_state,
        inside_evaluating,
        unfrozen,
        unfrozen_elsewhere,
        moved,
        replaced,
        other_model,
        other_settings,
        other_place,
        half_sync,
    )
}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
