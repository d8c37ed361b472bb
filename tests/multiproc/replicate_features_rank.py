"""Rank program: what a training script may do, each against one process on all the data."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from samovar.api.process_group import ProcessGroup
from tests.multiproc.replicate_nets import (
    batches,
    distance,
    perceptron,
    replicated,
    sgd,
    train_alone,
    values,
    whole_batches,
)
from tests.multiproc.replicate_ranks import serve_rank

STEPS = 5


def plain(process_group: ProcessGroup, **settings: Any) -> Any:
    model = perceptron(seed=1 + process_group.group.rank)  # rank 0's weights are everybody's
    optimizer = sgd(model)
    replica = replicated(process_group, model, optimizer, **settings)
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
    reference = train_alone(perceptron(), replica.world_size, STEPS)
    return {"distance": distance(model, reference), "values": values(model), "steps": replica.step_count}


def buckets(process_group: ProcessGroup) -> Any:
    return plain(process_group, bucket_size_bytes=1)


class Transposed(nn.Module):
    """A perceptron with a weight of another order in memory."""

    def __init__(self) -> None:
        super().__init__()
        layers: Any = perceptron()
        self.weight, self.second = nn.Parameter(layers[0].weight.detach().t().contiguous().t()), layers[2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.second(torch.tanh(x @ self.weight.t())))


def transposed(process_group: ProcessGroup) -> Any:
    """A fused optimizer walks weight and gradient through raw pointers."""
    return _fused(process_group, is_later=False)


def transposed_later(process_group: ProcessGroup) -> Any:
    """After `replicate`, as by model.to(memory_format=...)."""
    return _fused(process_group, is_later=True)


def _fused(process_group: ProcessGroup, *, is_later: bool) -> Any:
    models = Transposed(), Transposed()
    own, alone = (torch.optim.AdamW(model.parameters(), lr=0.01, fused=True) for model in models)
    replica = replicated(process_group, models[0], own)
    for model in models if is_later else ():
        model.weight.data = model.weight.data.contiguous()
    for x, y in batches(replica.rank, STEPS):
        own.zero_grad()
        replica.backward(F.cross_entropy(models[0](x), y))
        replica.step()
    for x, y in whole_batches(replica.world_size, STEPS):
        alone.zero_grad()
        F.cross_entropy(models[1](x), y).backward()
        alone.step()
    return {"distance": distance(models[0], models[1])}


def moved(process_group: ProcessGroup) -> Any:
    """After each step the model gives its weights and their gradients other memory, as for a file in half precision."""
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model))
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
        model.double().float()
    return {"distance": distance(model, train_alone(perceptron(), replica.world_size, STEPS))}


def zeroed_in_place(process_group: ProcessGroup) -> Any:
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model))
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad(set_to_none=False)
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
    return {"distance": distance(model, train_alone(perceptron(), replica.world_size, STEPS))}


def accumulated(process_group: ProcessGroup, more: bool) -> Any:
    """Two backward passes per step, of which the first is exchanged too unless `more`."""
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model), bucket_size_bytes=1)
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x[:2]), y[:2]) / 2, more=more)
        replica.backward(F.cross_entropy(model(x[2:]), y[2:]) / 2)
        replica.step()
    return {"distance": distance(model, train_alone(perceptron(), replica.world_size, STEPS))}


def accumulated_with_more(process_group: ProcessGroup) -> Any:
    return accumulated(process_group, more=True)


def accumulated_without_more(process_group: ProcessGroup) -> Any:
    return accumulated(process_group, more=False)


def clipped(process_group: ProcessGroup) -> Any:
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model))
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        replica.step()
    return {"distance": distance(model, train_alone(perceptron(), replica.world_size, STEPS, max_norm=0.1))}


class Tied(nn.Module):
    """Input and output share a matrix; one layer is frozen, one is never used, one only on rank 0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 6, bias=False)
        self.frozen = nn.Linear(6, 6)
        self.unused = nn.Linear(2, 2)
        self.sometimes = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6, bias=False)
        self.last.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor, with_branch: bool) -> torch.Tensor:
        hidden = self.frozen(torch.tanh(self.first(x)))
        if with_branch:
            hidden = hidden + self.sometimes(x)
        return self.last(hidden)


def odd_parameters(process_group: ProcessGroup) -> Any:
    model, reference = Tied(), Tied()
    replica = replicated(process_group, model, optimizer := sgd(model), bucket_size_bytes=1)
    for x, _ in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        replica.backward(model(x, replica.is_first).square().mean())
        replica.step()
    theirs = sgd(reference)
    for x, _ in whole_batches(replica.world_size, STEPS):
        theirs.zero_grad()
        parts = x.chunk(replica.world_size)
        (sum(reference(part, rank == 0).square().mean() for rank, part in enumerate(parts)) / len(parts)).backward()
        theirs.step()
    unused = [model.unused.weight.grad is None, model.unused.weight in optimizer.state]
    return {
        "distance": distance(model, reference),
        "unused": unused,
        "sometimes": model.sometimes.weight.grad is not None,
    }


def several_types(
    process_group: ProcessGroup, other: torch.dtype = torch.bfloat16, gradients: Sequence[torch.dtype | None] = ()
) -> Any:
    """A bfloat16 layer after a float32 one, and an integer buffer. `gradients` are types of theirs, if chosen."""

    def net() -> nn.Sequential:
        model = perceptron()
        model[2].to(other)
        for layer, chosen in zip((model[0], model[2]), gradients, strict=False):
            for parameter in layer.parameters():
                parameter.grad_dtype = chosen
        model.register_buffer("count", torch.tensor([3 + process_group.group.rank]))
        return model

    def loss(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model[2](torch.tanh(model[0](x)).to(other)).float(), y)

    model, alone = net(), net()
    replica = replicated(process_group, model, optimizer := sgd(model))
    theirs = sgd(alone)
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        replica.backward(loss(model, x, y))
        replica.step()
    for x, y in whole_batches(replica.world_size, STEPS):
        theirs.zero_grad()
        loss(alone, x, y).backward()
        theirs.step()
    types = sorted({str(p.grad.dtype) for p in model.parameters()})
    return {
        "distance": distance(model, alone),
        "values": values(model),
        "types": types,
        "count": int(model.get_buffer("count")),
    }


def float16(process_group: ProcessGroup) -> Any:
    return several_types(process_group, torch.float16)


def chosen_types(process_group: ProcessGroup) -> Any:
    return several_types(process_group, gradients=(torch.bfloat16, torch.float32))


def two_optimizers(process_group: ProcessGroup) -> Any:
    """A generator and a discriminator; the generator's loss also reaches the discriminator's weights."""
    torch.manual_seed(5)
    maker, judge = nn.Linear(6, 6), nn.Linear(6, 1)
    torch.manual_seed(5)
    nets = nn.Linear(6, 6), nn.Linear(6, 1)
    ours = (
        replicated(process_group, maker, maker_optimizer := sgd(maker)),
        replicated(process_group, judge, judge_optimizer := sgd(judge)),
    )
    for x, _ in batches(process_group.group.rank, STEPS):
        judge_optimizer.zero_grad()
        ours[1].backward((judge(maker(x).detach()) - judge(x)).mean() + judge(x).square().mean())
        ours[1].step()
        maker_optimizer.zero_grad()
        ours[0].backward(judge(maker(x)).square().mean())
        ours[0].step()
    optimizers = [sgd(net) for net in nets]
    for x, _ in whole_batches(process_group.group.world_size, STEPS):
        optimizers[1].zero_grad()
        ((nets[1](nets[0](x).detach()) - nets[1](x)).mean() + nets[1](x).square().mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        nets[1](nets[0](x)).square().mean().backward()
        optimizers[0].step()
    return {"distance": max(distance(maker, nets[0]), distance(judge, nets[1]))}


def autocast(process_group: ProcessGroup) -> Any:
    model, alone = perceptron(), perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        replica.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        replica.step(lambda: scaler.step(optimizer))
        scaler.update()
    theirs = sgd(alone)
    for x, y in whole_batches(replica.world_size, STEPS):
        theirs.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(alone(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        theirs.step()
    return {"distance": distance(model, alone), "values": values(model)}


def overflow(process_group: ProcessGroup) -> Any:
    """One rank's gradient is infinite: the scaler leaves the step out on all ranks."""
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = values(model)
    x, y = next(iter(batches(replica.rank, 1)))
    loss = F.cross_entropy(model(x), y)
    replica.backward(scaler.scale(loss * (float("inf") if replica.is_first else 1.0)))
    replica.step(lambda: scaler.step(optimizer))
    scaler.update()
    return {"unchanged": values(model) == before, "scale": scaler.get_scale()}


def compiled(process_group: ProcessGroup) -> Any:
    """Traced before `replicate`, and after it; also with the compiler that users get by default."""
    distances = []
    for is_traced_before, backend in product((True, False), ("aot_eager", "inductor")):
        model = perceptron()
        fast = torch.compile(model, backend=backend)
        if is_traced_before:
            fast(next(iter(batches(process_group.group.rank, STEPS)))[0])
        replica = replicated(process_group, model, optimizer := sgd(model), bucket_size_bytes=1)
        for x, y in batches(replica.rank, STEPS):
            optimizer.zero_grad()
            replica.backward(F.cross_entropy(fast(x), y))
            replica.step()
        distances.append(distance(model, train_alone(perceptron(), replica.world_size, STEPS)))
    return {"distance": max(distances)}


def compiled_step(process_group: ProcessGroup) -> Any:
    """All of a training step in `torch.compile`, as its tutorial has it."""
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model))

    @torch.compile(backend="eager")
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        replica.backward(loss)
        replica.step()
        return replica.mean(loss.detach())

    losses = [float(step(x, y)) for x, y in batches(replica.rank, STEPS)]
    reference = train_alone(perceptron(), replica.world_size, STEPS)
    return {"distance": distance(model, reference), "values": [*values(model), *losses]}


def checkpointed(process_group: ProcessGroup, reentrant: bool, size: int | None) -> Any:
    model = perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model), bucket_size_bytes=size)
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        # The first layer is used twice, so reentrant checkpoints give its gradient in two parts.
        inner = checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)
        again = checkpoint(model, x, use_reentrant=reentrant)
        replica.backward(F.cross_entropy((inner + again) / 2, y))
        replica.step()
    return {"distance": distance(model, train_alone(perceptron(), replica.world_size, STEPS))}


def checkpointed_reentrant(process_group: ProcessGroup) -> Any:
    return checkpointed(process_group, True, None)


def checkpointed_anew(process_group: ProcessGroup) -> Any:
    return checkpointed(process_group, False, 1)


def checkpointed_too_late(process_group: ProcessGroup) -> Any:
    try:
        return checkpointed(process_group, True, 1)
    except Exception as error:
        return str(error)


# What other rank programs repeat, with gradients that go another way.
REPEATED = (
    plain,
    buckets,
    clipped,
    odd_parameters,
    two_optimizers,
    autocast,
    overflow,
    transposed,
    transposed_later,
    zeroed_in_place,
    accumulated_with_more,
    accumulated_without_more,
)

SCENARIOS = {
    function.__name__: function
    for function in (
        *REPEATED,
        moved,
        several_types,
        float16,
        chosen_types,
        compiled,
        compiled_step,
        checkpointed_reentrant,
        checkpointed_anew,
        checkpointed_too_late,  # leaves an exchange half begun: the last one
    )
}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
