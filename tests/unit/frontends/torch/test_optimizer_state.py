"""The state of torch's optimizers goes through a flat buffer, in which a rank with data gives it to the others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from samovar.core.buffer import FlatBuffer
from samovar.core.errors import SamovarError
from samovar.frontends.torch.gradients import gradient_layout
from samovar.frontends.torch.optimizers import Optimizers
from samovar.frontends.torch.state import OptimizerState

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, 0.05),  # its state is rows and columns
}


def trained(name: str, seed: int) -> tuple[torch.optim.Optimizer, dict[str, nn.Parameter], OptimizerState]:
    """With a weight stored channels-last, one of a single element, and another of each rank."""
    torch.manual_seed(seed)
    model: Any = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 5), nn.Linear(5, 1))
    model[0].to(memory_format=torch.channels_last)
    optimizer = OPTIMIZERS[name](model.parameters())
    for _ in range(3 + seed):
        optimizer.zero_grad()
        model(torch.randn(3, 2, 4, 4)).square().sum().backward()
        optimizer.step()
    parameters = dict(model.named_parameters())
    return optimizer, parameters, OptimizerState(Optimizers(optimizer), parameters)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_state_of_an_optimizer_comes_to_another_rank(name: str) -> None:
    optimizer, parameters, memory = trained(name, 0)
    other, _, other_memory = trained(name, 1)
    assert memory.fingerprint() == other_memory.fingerprint()
    flat = FlatBuffer.zeros(gradient_layout(parameters))
    for quantity in memory.quantities():
        memory.write(quantity, flat)
        other_memory.read(quantity, flat)
    for own, copied in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert own.keys() == copied.keys()
        for key, value in own.items():
            assert value is copied[key] is None or torch.equal(value, copied[key]), key


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.NAdam, torch.optim.Rprop, torch.optim.ASGD, torch.optim.Adagrad]
)
def test_an_optimizer_that_begins_again_steps_like_a_new_one(kind: Any) -> None:
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    used, new = (kind([p], 0.1) for p in parameters)
    given = Optimizers(used)
    step(used, parameters[0], torch.tensor([1.0, -2.0, torch.nan]))
    parameters[0].data.fill_(1.0)
    given.begin_again()
    for gradient in ([1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]):
        for optimizer, p in zip((used, new), parameters, strict=True):
            step(optimizer, p, torch.tensor(gradient))
    assert torch.equal(*parameters)


def test_an_optimizer_that_keeps_more_than_state_of_parameters_begins_again() -> None:
    optimizer = torch.optim.Adagrad([nn.Parameter(torch.ones(3))])
    optimizer.state["calls"] = 3  # type: ignore[index]
    Optimizers(optimizer).begin_again()
    assert optimizer.state["calls"] == 3  # type: ignore[index]


def step(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
    parameter.grad = gradient
    optimizer.step()


@pytest.mark.parametrize("value", [[torch.ones(2)], torch.ones(1000)])
def test_state_that_cannot_be_copied_is_named(value: Any) -> None:
    optimizer, parameters, memory = trained("SGD", 0)
    optimizer.state[next(iter(parameters.values()))]["history"] = value
    with pytest.raises(SamovarError, match=r"state 'history' is a .*. Give every rank the same number of batches"):
        memory.fingerprint()


def test_a_state_that_does_not_load_leaves_the_warning_of_the_next_one() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ours = Optimizers(optimizer)
    ours.scale_rates(0.5)
    ours.guard(model)
    good, bad = optimizer.state_dict(), torch.optim.SGD(nn.Linear(2, 1, bias=False).parameters(), 0.1).state_dict()
    with pytest.raises(ValueError, match="doesn't match the size"):
        ours.load_state_dict(bad)
    with pytest.warns(UserWarning, match=r"SGD\.load_state_dict\(\) after replicate"):
        optimizer.load_state_dict(good)
    ours.release()
