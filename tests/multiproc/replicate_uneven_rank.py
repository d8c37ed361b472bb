"""Rank program: data divided among ranks, and ranks whose data ends before that of others."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, random_split

from samovar.api.process_group import ProcessGroup
from samovar.core.errors import ReplicasDiffer
from tests.multiproc.replicate_nets import Batch, batches, perceptron, replicated, sgd, values
from tests.multiproc.replicate_ranks import serve_rank

LENGTHS = (2, 5, 0, 3)


class Uneven(IterableDataset[Batch]):
    """A stream that is dealt to ranks item by item, so that rank r gets LENGTHS[r] batches."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size

    def __iter__(self) -> Iterator[Batch]:
        parts = [list(batches(rank, LENGTHS[rank])) for rank in range(self._world_size)]
        for index in range(max(LENGTHS)):
            for part in parts:
                yield part[index] if index < len(part) else None


def own_batches(shard: Any) -> Iterator[Batch]:
    """The batches that the rank gets, without gaps."""
    return (batch for batch in shard if batch is not None)


def run_out(process_group: ProcessGroup, **settings: object) -> Any:
    """Two epochs of a stream of which ranks have 2, 5, 0, 3 batches."""
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02) if settings.pop("adam", False) else sgd(model)
    replica = replicated(process_group, model, optimizer, **settings)
    shard = replica.shard(DataLoader(Uneven(replica.world_size), batch_size=None))
    own = 0
    for _ in range(2):
        for x, y in own_batches(shard):
            optimizer.zero_grad()
            replica.backward(F.cross_entropy(model(x), y))
            replica.step()
            own += 1
    with replica.evaluating():
        evaluated = values(model)
    return {"own": own, "steps": replica.step_count, "values": values(model), "evaluated": evaluated}


def in_bfloat16(process_group: ProcessGroup) -> Any:
    """A loop that zeroes gradients after its step: whether any is left for the next epoch."""
    model = perceptron().to(torch.bfloat16)
    replica = replicated(process_group, model, optimizer := sgd(model))
    for x, y in own_batches(replica.shard(DataLoader(Uneven(replica.world_size), batch_size=None))):
        replica.backward(F.cross_entropy(model(x.bfloat16()), y))
        replica.step()
        optimizer.zero_grad()
    return {"left": [name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()]}


def gradients(process_group: ProcessGroup) -> Any:
    """Each step with the mean gradient of the ranks that have data."""
    result = run_out(process_group)
    model = perceptron()
    optimizer = sgd(model)
    data = [list(batches(rank, LENGTHS[rank])) for rank in range(process_group.group.world_size)]
    for _ in range(2):
        for step in range(max(map(len, data))):
            active = [part[step] for part in data if step < len(part)]
            optimizer.zero_grad()
            (sum(F.cross_entropy(model(x), y) for x, y in active) / len(active)).backward()
            optimizer.step()
    return result | {"wanted": values(model)}


def scaled(process_group: ProcessGroup) -> Any:
    return {name: _with_scaler(process_group, enabled=name == "scaled") for name in ("scaled", "plain")}


def _with_scaler(process_group: ProcessGroup, *, enabled: bool) -> list[float]:
    """Three epochs with a scale that grows, brought to all ranks after each one."""
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, enabled=enabled)
    shard = replica.shard(DataLoader(Uneven(replica.world_size), batch_size=None))
    for _ in range(3):
        for x, y in own_batches(shard):
            optimizer.zero_grad()
            replica.backward(scaler.scale(F.cross_entropy(model(x), y)))
            replica.step(lambda: scaler.step(optimizer))
            scaler.update()
        scaler.load_state_dict(replica.broadcast(scaler.state_dict()))
    replica.close()
    return values(model)


def compared(process_group: ProcessGroup) -> Any:
    """Ranks whose data has ended compare no weights of an earlier step with those of the others."""
    return run_out(process_group, compare_weights_steps=1)


def gradients_in_buckets_with_adam(process_group: ProcessGroup) -> Any:
    return run_out(process_group, bucket_size_bytes=1, adam=True)


class Damped(torch.optim.SGD):
    """It keeps a number of all gradients so far in its group, as Prodigy does."""

    def step(self, closure: Any = None) -> None:
        (group,) = self.param_groups
        seen = sum(float(p.grad.square().sum()) for p in group["params"] if p.grad is not None)
        group["lr"] /= 1.0 + seen
        super().step(closure)


def damped(process_group: ProcessGroup) -> Any:
    model = perceptron()
    replica = replicated(process_group, model, optimizer := Damped(model.parameters(), lr=0.1))
    shard = replica.shard(DataLoader(Uneven(replica.world_size), batch_size=None))
    for _ in range(2):
        for x, y in own_batches(shard):
            optimizer.zero_grad()
            replica.backward(F.cross_entropy(model(x), y))
            replica.step()
    with replica.evaluating():
        return {"steps": replica.step_count, "evaluated": [optimizer.param_groups[0]["lr"], *values(model)]}


def local_sgd(process_group: ProcessGroup) -> Any:
    return run_out(process_group, name="local-sgd", sync_period_steps=2)


def accumulated(process_group: ProcessGroup) -> Any:
    """Steps of two batches, so that data of five batches ends between the two."""
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model), name="local-sgd", sync_period_steps=1)
    shard, own = replica.shard(DataLoader(Uneven(replica.world_size), batch_size=None)), 0
    for _ in range(2):
        for x, y in own_batches(shard):
            replica.backward(F.cross_entropy(model(x), y) / 2)
            own += 1
            if own % 2 == 0:
                replica.step()
                optimizer.zero_grad()
    with replica.evaluating():
        return {"steps": replica.step_count, "evaluated": values(model)}


def one_pass_for_two(process_group: ProcessGroup, **settings: Any) -> Any:
    """Two replicas whose gradients come from one pass."""
    parts = perceptron(1), nn.Linear(3, 3)
    optimizers = [sgd(part) for part in parts]
    made = zip(parts, optimizers, strict=True)
    first, second = (replicated(process_group, part, optimizer, **settings) for part, optimizer in made)
    for x, y in own_batches(first.shard(DataLoader(Uneven(first.world_size), batch_size=None))):
        for optimizer in optimizers:
            optimizer.zero_grad()
        first.backward(F.cross_entropy(parts[1](parts[0](x)), y), also=[second])
        first.step()
        second.step()
    return {"steps": second.step_count, "values": values(parts[0]) + values(parts[1])}


def one_pass_for_two_in_buckets(process_group: ProcessGroup) -> Any:
    return one_pass_for_two(process_group, bucket_size_bytes=1)


def looked_at_before_the_step(process_group: ProcessGroup) -> Any:
    """A call and an inner loop of those that have data, between their backward and step."""
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model), name="local-sgd", sync_period_steps=1)
    held_back = replica.shard(DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2))
    for x, y in own_batches(replica.shard(DataLoader(Uneven(replica.world_size), batch_size=None))):
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.mean(1.0)
        list(held_back)
        replica.step()
    return {"steps": replica.step_count, "values": values(model)}


def saved_in_every_step(process_group: ProcessGroup) -> Any:
    """Each rank that has data takes its state, while another one has none."""
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model), name="local-sgd", sync_period_steps=4)
    for x, y in own_batches(replica.shard(DataLoader(Uneven(replica.world_size), batch_size=None))):
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
        replica.state_dict()
    return {"steps": replica.step_count}


def diloco(process_group: ProcessGroup) -> Any:
    return run_out(process_group, name="diloco", sync_period_steps=2)


def streaming(process_group: ProcessGroup) -> Any:
    settings = {"sync_period_steps": 3, "fragments": 2, "delay_steps": 2, "compress": "int4"}
    return run_out(process_group, name="diloco", **settings)


def elastic_step(process_group: ProcessGroup) -> Any:
    return run_out(process_group, name="sync-easgd", sync_period_steps=2, overlap="step")


def elastic_step_encoded(process_group: ProcessGroup) -> Any:
    """Encoded messages move in the step that takes them, and not behind it."""
    return run_out(process_group, name="sync-easgd", sync_period_steps=2, overlap="step", compress="int8")


def elastic_period(process_group: ProcessGroup) -> Any:
    return run_out(process_group, name="sync-easgd", sync_period_steps=2, overlap="period")


def two_replicas(process_group: ProcessGroup) -> Any:
    """The loop is over one replica's data, and the other exchanges too."""
    first, second = perceptron(1), perceptron(2)
    optimizers = sgd(first), sgd(second)
    replicas = [replicated(process_group, model, o) for model, o in zip((first, second), optimizers, strict=True)]
    for x, y in own_batches(replicas[0].shard(DataLoader(Uneven(process_group.group.world_size), batch_size=None))):
        for model, optimizer, replica in zip((first, second), optimizers, replicas, strict=True):
            optimizer.zero_grad()
            replica.backward(F.cross_entropy(model(x), y))
            replica.step()
    return {"values": values(first) + values(second)}


def inner_loop(process_group: ProcessGroup) -> Any:
    """Ranks with data left evaluate on divided data in the middle of their epoch."""
    model = nn.Sequential(perceptron(), nn.BatchNorm1d(3))
    replica = replicated(process_group, model, optimizer := sgd(model))
    held_back = replica.shard(DataLoader(TensorDataset(torch.arange(10.0)), batch_size=2))
    seen = []
    for x, y in own_batches(replica.shard(DataLoader(Uneven(replica.world_size), batch_size=None))):
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
        with replica.evaluating():
            seen.append([value for (part,) in held_back for value in part.tolist()])
    return {"values": values(model), "seen": seen}


def left_early(process_group: ProcessGroup) -> Any:
    """Rank 0 leaves the loop by break, and the others do not."""
    model = perceptron()
    replica = replicated(process_group, model)
    try:
        for x, y in replica.shard(DataLoader(TensorDataset(torch.randn(20, 6), torch.zeros(20).long()), batch_size=2)):
            replica.backward(F.cross_entropy(model(x), y))
            replica.step()
            if replica.is_first:
                break
        with replica.evaluating():
            return "was not noticed"
    except ReplicasDiffer as error:
        return str(error)


def inner_loops(process_group: ProcessGroup) -> Any:
    """More inner loops than steps: their epochs are no steps of the exchange."""
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model), name="local-sgd", sync_period_steps=2)
    held_back = replica.shard(DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2))
    for x, y in own_batches(replica.shard(DataLoader(Uneven(replica.world_size), batch_size=None))):
        for _ in range(3):
            list(held_back)
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
    return {"steps": replica.step_count, "epochs": held_back.epoch}


def left_when_one_had_ended(process_group: ProcessGroup) -> Any:
    """A limit of steps for which one rank has too little data."""
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model))
    shard = replica.shard(DataLoader(Uneven(replica.world_size), batch_size=None))
    try:
        for _ in range(2):
            for own, (x, y) in enumerate(own_batches(shard), 1):
                optimizer.zero_grad()
                replica.backward(F.cross_entropy(model(x), y))
                replica.step()
                if own == 3:
                    break
    except ReplicasDiffer as error:
        return str(error)
    return "was not noticed"


def divided(process_group: ProcessGroup) -> Any:
    """Three epochs of a shuffled loader, with worker processes."""
    replica = replicated(process_group, perceptron())
    data = TensorDataset(torch.arange(23))
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=1)
    return [[part.tolist() for (part,) in replica.shard(loader, seed=7)] for _ in range(3)]


def disagreeing_samplers(process_group: ProcessGroup) -> Any:
    order = list(range(6))[:: -1 if process_group.group.rank else 1]
    return _said_of(process_group, DataLoader(TensorDataset(torch.arange(6)), sampler=order))


def disagreeing_splits(process_group: ProcessGroup) -> Any:
    """Each rank splits the data by its own generator, so one trains what another tests."""
    own = torch.Generator().manual_seed(process_group.group.rank)
    train, _ = random_split(TensorDataset(torch.arange(9)), [6, 3], own)
    return _said_of(process_group, DataLoader(Subset(train, range(6)), batch_size=2, shuffle=True))


def _said_of(process_group: ProcessGroup, loader: DataLoader[Any]) -> str:
    replica = replicated(process_group, perceptron())
    try:
        next(iter(replica.shard(loader)))
    except ReplicasDiffer as error:
        return str(error)
    return "was not noticed"


SCENARIOS = {
    function.__name__: function
    for function in (
        in_bfloat16,
        gradients,
        gradients_in_buckets_with_adam,
        scaled,
        compared,
        damped,
        local_sgd,
        accumulated,
        one_pass_for_two,
        one_pass_for_two_in_buckets,
        looked_at_before_the_step,
        saved_in_every_step,
        diloco,
        streaming,
        elastic_step,
        elastic_step_encoded,
        elastic_period,
        two_replicas,
        inner_loop,
        inner_loops,
        divided,
        disagreeing_samplers,
        disagreeing_splits,
        left_early,
        left_when_one_had_ended,
    )
}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
