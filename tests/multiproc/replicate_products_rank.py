"""Rank program: training scripts whose matrices' gradients are products made in the shared buffer, on one host."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from samovar.api import exchanges as choosing
from samovar.api.process_group import ProcessGroup
from samovar.frontends.torch.gradients import FlatGradients
from tests.multiproc import replicate_factors_rank as factors
from tests.multiproc import replicate_features_rank as features
from tests.multiproc import replicate_uneven_rank as uneven
from tests.multiproc.replicate_factors_rank import STEPS, against_alone, mean_square, replaced
from tests.multiproc.replicate_nets import DEFAULTS, batches, distance, perceptron, replicated, sgd, values
from tests.multiproc.replicate_ranks import serve_rank


class OwnBackward(torch.autograd.Function):
    """A function that calls backward() itself, of a graph that nobody sees before."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        context.layer = layer
        context.save_for_backward(x)
        with torch.no_grad():
            out: torch.Tensor = layer(x)
        return out

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        (x,) = context.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            context.layer(x).backward(gradient)
        return x.grad, None


def own_backward(process_group: ProcessGroup) -> Any:
    """Parts of a gradient come by the way of a function, before, between and after the products."""

    def twice_by_itself(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = OwnBackward.apply(x.requires_grad_(), model)
        hidden = OwnBackward.apply(torch.tanh(model(torch.tanh(hidden))), model)
        return mean_square(model, torch.tanh(hidden)) + OwnBackward.apply(hidden, model).square().mean()

    return against_alone(process_group, lambda: nn.Linear(6, 6), twice_by_itself, (6,), bucket_size_bytes=None)


class Nothing(torch.autograd.Function):
    """Lets no gradient through."""

    @staticmethod
    def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: Any, _gradient: torch.Tensor) -> None:
        return None


def nothing_comes(process_group: ProcessGroup) -> Any:
    """A matrix to whose only product no gradient comes has none, on any rank."""
    layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
    replica = replicated(process_group, layers, sgd(layers))
    (x, _), *_ = batches(replica.rank, 1)
    replica.backward((layers[0](x) + Nothing.apply(layers[1](x))).square().mean())
    return [layer.weight.grad is not None for layer in layers]


def frozen_late(process_group: ProcessGroup) -> Any:
    """A weight that wants no gradient any more when backward begins."""
    model = perceptron()
    replica = replicated(process_group, model, sgd(model))
    for x, y in batches(replica.rank, 2):
        loss = F.cross_entropy(model(x), y)
        model[0].weight.requires_grad_(False)
        replica.backward(loss)
    return [p.grad is not None for p in model.parameters()]


def without(process_group: ProcessGroup) -> Any:
    """The same training where autograd makes the gradients."""
    return features.plain(process_group, factors="none")


def twice(process_group: ProcessGroup) -> Any:
    return {"first": features.plain(process_group)["values"], "second": features.plain(process_group)["values"]}


def three_uses(process_group: ProcessGroup) -> Any:
    """Of one layer, after each other."""

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return mean_square(model, torch.tanh(model(torch.tanh(model(x)))))

    return against_alone(process_group, lambda: nn.Linear(6, 6), loss, (6,))


def last_use_alone(process_group: ProcessGroup) -> Any:
    """Mistake: each product takes the place of what was there."""
    add = FlatGradients.add_product

    def mistaken(self: FlatGradients, name: str, found: Any) -> None:
        self._slot_of[name].begun = False
        add(self, name, found)

    with replaced(FlatGradients, "add_product", mistaken):
        return three_uses(process_group)


def large_rows(process_group: ProcessGroup) -> Any:
    """Matrices as large as those that are taken by default, a small one, and batches of hundreds of rows."""

    def net() -> nn.Sequential:
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 1800), nn.Tanh(), nn.Linear(1800, 1800), nn.Tanh(), nn.Linear(1800, 3))

    model = net()
    replica = replicated(process_group, model, optimizer := sgd(model))
    for x, y in batches(replica.rank, STEPS, 300):
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
    alone = net()
    theirs = sgd(alone)
    for parts in zip(*(batches(rank, STEPS, 300) for rank in range(replica.world_size)), strict=True):
        theirs.zero_grad()
        (sum(F.cross_entropy(alone(x), y) for x, y in parts) / len(parts)).backward()
        theirs.step()
    return {"distance": distance(model, alone), "values": len(values(model))}


def noted(scenario: Callable[[ProcessGroup], Any], least_bytes: int | None = 0) -> Callable[[ProcessGroup], Any]:
    """The scenario's result, and the matrices whose gradients were made in the buffer."""

    def run(process_group: ProcessGroup) -> Any:
        made: set[str] = set()
        add = FlatGradients.add_product

        def noting(self: FlatGradients, name: str, found: Any) -> None:
            made.add(name)
            add(self, name, found)

        DEFAULTS.pop("factors", None)
        least = choosing.LEAST_IN_PLACE_BYTES if least_bytes is None else least_bytes
        with replaced(choosing, "LEAST_IN_PLACE_BYTES", least), replaced(FlatGradients, "add_product", noting):
            return {"result": scenario(process_group), "made": sorted(made)}

    return run


SCENARIOS = {
    scenario.__name__: noted(scenario)
    for scenario in (
        *features.REPEATED,
        features.several_types,
        features.checkpointed_reentrant,
        features.checkpointed_anew,
        features.compiled,
        factors.convolutional,
        factors.recurrent,
        factors.shared,
        factors.changing,
        factors.watched_weight,
        factors.kept_gradients,
        uneven.gradients,
        own_backward,
        nothing_comes,
        frozen_late,
        without,
        twice,
        three_uses,
        last_use_alone,
    )
} | {"large_rows": noted(large_rows, least_bytes=None)}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
