"""Rank program: training scripts whose matrices' gradients travel as factors, against one process on all the data."""

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.frontends.torch import factors as choosing
from samovar.frontends.torch.factors import own_arithmetic
from samovar.strategies.factors import Arithmetic, FactoredSum
from tests.multiproc import replicate_features_rank as features
from tests.multiproc import replicate_uneven_rank as uneven
from tests.multiproc.replicate_nets import DEFAULTS, batches, distance, perceptron, replicated, sgd, train, values
from tests.multiproc.replicate_ranks import serve_rank

STEPS = 5
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def pictures(rank: int, sizes: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(200 + rank)
    return (torch.randn(size, *shape, generator=generator) for size in sizes)


def against_alone(
    process_group: ProcessGroup,
    make: Callable[[], nn.Module],
    loss: Loss,
    shape: tuple[int, ...],
    bucket_size_bytes: int | None = 1,
) -> Any:
    """Ranks have batches of different sizes, and other sizes at every step; their losses count the same."""
    torch.manual_seed(3)
    model = make()
    torch.manual_seed(3)
    alone = make()
    replica = replicated(process_group, model, optimizer := sgd(model), bucket_size_bytes=bucket_size_bytes)
    sizes = [tuple((2, 3, 5, 1, 2)[(step + rank) % 5] for step in range(STEPS)) for rank in range(replica.world_size)]
    for x in pictures(replica.rank, sizes[replica.rank], shape):
        optimizer.zero_grad()
        replica.backward(loss(model, x))
        replica.step()
    theirs = sgd(alone)
    for parts in zip(*(pictures(rank, of, shape) for rank, of in enumerate(sizes)), strict=True):
        theirs.zero_grad()
        (sum(loss(alone, part) for part in parts) / len(parts)).backward()
        theirs.step()
    return {"distance": distance(model, alone), "values": values(model), "factored": num_factored(replica)}


def num_factored(replica: Replica) -> int:
    """How many matrices travel as factors by now."""
    state = replica.state_dict()["strategy_state"]
    return sum(value > 0 for name, value in state.items() if name.startswith("factors/") and name.count("/") == 1)


def mean_square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def convolutional(process_group: ProcessGroup) -> Any:
    def make() -> nn.Module:
        grouped = nn.Conv2d(8, 8, 3, padding=(2, 1), dilation=(2, 1), groups=2, bias=False)
        one_for_all = nn.Conv2d(8, 8, 3, padding=(1,))  # type: ignore[arg-type]  # autograd keeps one number for both dimensions
        layers = [nn.Conv2d(3, 8, 5, stride=2, padding="valid"), nn.ReLU(), nn.MaxPool2d(2), grouped, one_for_all]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(72, 40), nn.ReLU(), nn.Linear(40, 40), nn.Linear(40, 5))

    return against_alone(process_group, make, mean_square, (3, 16, 16))


def channels_last(process_group: ProcessGroup) -> Any:
    """Kernels in another order in memory; one stands twice, one is transposed, and the last is of one dimension."""

    def make() -> nn.Module:
        twice = nn.Conv2d(3, 3, 3, padding=1)
        layers = [twice, nn.Tanh(), twice, nn.Tanh(), nn.ConvTranspose2d(3, 4, 2), nn.Tanh(), nn.Flatten(2)]
        made = nn.Sequential(*layers, nn.Conv1d(4, 2, 5, stride=3))
        return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    return against_alone(process_group, make, mean_square, (3, 7, 5))


class Recurrent(nn.Module):
    """Rows are steps of time, and a matrix stands at the left; the first product has neither bias nor gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8, bias=False)
        self.cells = nn.LSTM(8, 8, batch_first=True)
        self.free = nn.Parameter(torch.randn(8, 4))
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.out(torch.tanh(self.cells(self.embed(x))[0] @ self.free))
        return hidden


def recurrent(process_group: ProcessGroup) -> Any:
    return against_alone(process_group, Recurrent, mean_square, (7, 6))


class Shared(nn.Module):
    """One layer stands twice, another's matrix is used as it is too, and one is tied to an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(6, 6)
        self.bare = nn.Linear(6, 6)
        self.penalized = nn.Linear(6, 6)
        self.embedding = nn.Embedding(5, 6)
        self.head = nn.Linear(6, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.twice(torch.tanh(self.twice(x)))
        hidden = torch.tanh(self.bare(hidden)) + F.linear(hidden, self.bare.weight)
        hidden = self.penalized(hidden) + self.embedding(x.argmax(1).clamp(max=4))
        out: torch.Tensor = self.head(hidden) + self.penalized.weight.square().sum()
        return out


def shared(process_group: ProcessGroup) -> Any:
    return against_alone(process_group, Shared, mean_square, (6,))


def in_other_ways(model: Any, step: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of one step in a way of its own each, whose gradients a graph shows differently, or not at all."""
    if step == 1:
        return F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)
    if step == 2:
        return F.cross_entropy(checkpoint(model, x.requires_grad_(), use_reentrant=True), y)
    if step == 3:
        return F.cross_entropy(model(x), y) + 0.0 * model[0].weight.sum()
    return F.cross_entropy(model(x), y)


def changing(process_group: ProcessGroup) -> Any:
    """Rank 1's gradients come as factors in steps 0, 4 and 7 alone, those of rank 0 always."""
    model, alone = perceptron(), perceptron()
    replica = replicated(process_group, model, optimizer := sgd(model), bucket_size_bytes=1)
    theirs = sgd(alone)
    found = []
    parts = zip(*(batches(rank, 8) for rank in range(2)), strict=True)
    for step, data in enumerate(parts):
        x, y = data[replica.rank]
        optimizer.zero_grad(set_to_none=step != 5)
        is_odd = replica.rank == 1
        if step == 6 and is_odd:
            replica.backward(F.cross_entropy(model(x), y) / 2, more=True)
            replica.backward(F.cross_entropy(model(x), y) / 2)
        else:
            replica.backward(in_other_ways(model, step if is_odd else 0, x, y))
        replica.step()
        theirs.zero_grad()
        (sum(F.cross_entropy(alone(x), y) for x, y in data) / 2).backward()
        theirs.step()
        found.append(distance(model, alone))
    return {"distances": found, "values": values(model), "factored": num_factored(replica)}


def resized(process_group: ProcessGroup) -> Any:
    """Rank 1 has larger pictures in step 2, both ranks have them from step 5 on."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1))
    alone = copy.deepcopy(model)
    replica = replicated(process_group, model, optimizer := sgd(model), bucket_size_bytes=1)
    theirs, factored = sgd(alone), []
    for step in range(9):
        is_large = (step > 4, step > 4 or step == 2)
        data = [torch.randn(2, 3, *((9, 8) if large else (6, 7))) for large in is_large]
        optimizer.zero_grad()
        replica.backward(mean_square(model, data[replica.rank]))
        replica.step()
        theirs.zero_grad()
        (sum(mean_square(alone, x) for x in data) / 2).backward()
        theirs.step()
        factored.append(num_factored(replica))
    return {"distance": distance(model, alone), "values": values(model), "factored": factored}


def watched_weight(process_group: ProcessGroup) -> Any:
    """A hook of the user's sees, and changes, the whole gradient of one matrix."""
    model = perceptron()
    seen: list[torch.Tensor] = []
    model.get_parameter("0.weight").register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    replica = replicated(process_group, model, optimizer := sgd(model))
    train(replica, model, optimizer, 0, STEPS)
    return {"seen": len(seen), "factored": num_factored(replica)}


def kept_gradients(process_group: ProcessGroup) -> Any:
    """Leaves that are no parameters, and what a user keeps of the way, have their gradients too."""
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3))
    replica = replicated(process_group, model, optimizer := sgd(model))
    found = []
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        hidden = model[0](x.requires_grad_())
        hidden.retain_grad()
        replica.backward(F.cross_entropy(model[2](model[1](hidden)), y))
        replica.step()
        found.append(x.grad is not None and hidden.grad is not None)
    return {"found": found, "factored": num_factored(replica)}


def small_pictures(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    kernels = nn.Conv2d(1, 4, 2, padding=(1, 0))
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), kernels, nn.Tanh(), nn.Flatten(), nn.Linear(24, 3))


def resumed(process_group: ProcessGroup) -> Any:
    model = small_pictures(3)
    replica = replicated(process_group, model, optimizer := sgd(model))
    train(replica, model, optimizer, 0, 3)
    file = io.BytesIO()
    torch.save(replica.state_dict(), file)
    train(replica, model, optimizer, 3, 6)
    file.seek(0)
    again = small_pictures(77)
    second = replicated(process_group, again, optimizer := sgd(again))
    second.load_state_dict(torch.load(file, weights_only=True))
    factored = num_factored(second)
    train(second, again, optimizer, 3, 6)
    return {"equal": values(model) == values(again), "factored": factored}


def twice(process_group: ProcessGroup) -> Any:
    return {"first": features.plain(process_group)["values"], "second": features.plain(process_group)["values"]}


def compressed(process_group: ProcessGroup) -> Any:
    return features.plain(process_group, bucket_size_bytes=1, compress="bf16", always_compresses=True)


def refused(process_group: ProcessGroup) -> Any:
    """No matrix of this model has a gradient that is a product."""
    model = nn.Embedding(5, 6)
    replica = replicated(process_group, model, sgd(model))
    try:
        replica.backward(model(torch.tensor([1, 2])).square().mean())
    except Exception as error:
        return str(error)
    return "was not refused"


def other_processor(process_group: ProcessGroup) -> Any:
    """Rank 1 makes products in another way."""
    model, arithmetic = perceptron(), own_arithmetic()
    other = Arithmetic((*arithmetic.words[:-1], 1.0 + process_group.group.rank), arithmetic.num_threads)
    with replaced(choosing, "own_arithmetic", lambda: other):
        replica = replicated(process_group, model, optimizer := sgd(model))
    try:
        train(replica, model, optimizer, 0, 1)
    except Exception as error:
        return str(error)
    return "was not refused"


class replaced:
    """Another attribute of an object, for a while."""

    def __init__(self, owner: Any, name: str, value: object) -> None:
        self._owner, self._name, self._value = owner, name, value

    def __enter__(self) -> None:
        self._before = getattr(self._owner, self._name)
        setattr(self._owner, self._name, self._value)

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._before)


def reversed_ranks(process_group: ProcessGroup) -> Any:
    """Mistake: rank 1 puts its own rows first."""
    multiply = FactoredSum._multiply

    def mistaken(self: FactoredSum, parts: Any, rows: Any) -> None:
        multiply(self, parts[::-1], rows[::-1])

    if process_group.group.rank == 0:
        return features.plain(process_group)
    with replaced(FactoredSum, "_multiply", mistaken):
        return features.plain(process_group)


def stale_factors(process_group: ProcessGroup) -> Any:
    """Mistake: what the step before had written is sent again."""
    places = FactoredSum.places
    first: dict[int, Any] = {}

    def mistaken(self: FactoredSum, start: int, stop: int) -> Any:
        is_new = id(self) not in first
        first[id(self)] = self
        return places(self, start, stop) if is_new else [np.array(place) for place in places(self, start, stop)]

    with replaced(FactoredSum, "places", mistaken):
        return features.plain(process_group)


def others_left_out(process_group: ProcessGroup) -> Any:
    """Mistake: a rank adds up its own rows alone."""
    multiply = FactoredSum._multiply

    def mistaken(self: FactoredSum, parts: Any, rows: Any) -> None:
        multiply(self, parts[:1], rows[:1])

    with replaced(FactoredSum, "_multiply", mistaken):
        return features.plain(process_group)


def with_factors(scenario: Callable[[ProcessGroup], Any]) -> Callable[[ProcessGroup], Any]:
    def run(process_group: ProcessGroup) -> Any:
        DEFAULTS["factors"] = "always"
        return scenario(process_group)

    return run


SCENARIOS = {
    scenario.__name__: with_factors(scenario)
    for scenario in (
        *features.REPEATED,
        convolutional,
        channels_last,
        recurrent,
        shared,
        changing,
        resized,
        watched_weight,
        kept_gradients,
        resumed,
        twice,
        compressed,
        refused,
        other_processor,
        uneven.gradients,
        reversed_ranks,
        stale_factors,
        others_left_out,
    )
}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
