"""Gradients that a layer writes straight into the flat buffer."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from samovar.model.direct import GradientSink, linear

Parameters = tuple[nn.Parameter, nn.Parameter]


@pytest.fixture
def parameters() -> Parameters:
    generator = torch.Generator().manual_seed(5)
    return (
        nn.Parameter(torch.randn(4, 3, generator=generator)),
        nn.Parameter(torch.randn(4, generator=generator)),
    )


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(6), requires_grad=True)


def attach(parameter: nn.Parameter, written: list[str], name: str) -> GradientSink:
    sink = GradientSink(torch.full(parameter.shape, 7.0), accumulate=False, written=lambda: written.append(name))
    parameter.gradient_sink = sink  # type: ignore[attr-defined]
    return sink


def expected(x: torch.Tensor, parameters: Parameters) -> tuple[torch.Tensor, ...]:
    leaves = [t.detach().clone().requires_grad_() for t in (x, *parameters)]
    return torch.autograd.grad((F.linear(*leaves) ** 2).sum(), leaves)


def test_without_a_sink_it_is_an_ordinary_layer(x: torch.Tensor, parameters: Parameters) -> None:
    torch.autograd.backward((linear(x, *parameters) ** 2).sum())

    for tensor, gradient in zip((x, *parameters), expected(x, parameters), strict=True):
        torch.testing.assert_close(tensor.grad, gradient)


def test_gradients_land_in_the_views_and_nowhere_else(x: torch.Tensor, parameters: Parameters) -> None:
    written: list[str] = []
    sinks = [attach(p, written, name) for p, name in zip(parameters, ("weight", "bias"), strict=True)]
    dx, dw, db = expected(x, parameters)

    for times in (1, 2, 3):  # the second and third pass add to what is there
        torch.autograd.backward((linear(x, *parameters) ** 2).sum())
        torch.testing.assert_close(sinks[0].view, times * dw)
        torch.testing.assert_close(sinks[1].view, times * db)
        torch.testing.assert_close(x.grad, times * dx)
        for sink in sinks:
            sink.accumulate = True

    assert [p.grad for p in parameters] == [None, None]
    assert sorted(written) == ["bias"] * 3 + ["weight"] * 3


def test_gradients_land_in_one_flat_buffer(x: torch.Tensor, parameters: Parameters) -> None:
    flat = torch.zeros(20)
    weight_sink, bias_sink = (attach(p, [], "") for p in parameters)
    bias_sink.view, weight_sink.view = flat[:4], flat[8:].view(4, 3)

    torch.autograd.backward((linear(x, *parameters) ** 2).sum())

    _, dw, db = expected(x, parameters)
    torch.testing.assert_close(flat, torch.cat([db, torch.zeros(4), dw.flatten()]))


def test_a_sink_on_the_weight_alone(x: torch.Tensor, parameters: Parameters) -> None:
    sink = attach(parameters[0], [], "weight")

    torch.autograd.backward((linear(x, *parameters) ** 2).sum())

    _, dw, db = expected(x, parameters)
    torch.testing.assert_close(sink.view, dw)
    torch.testing.assert_close(parameters[1].grad, db)


def test_no_bias_and_no_gradient_for_the_input(parameters: Parameters) -> None:
    sink = attach(parameters[0], [], "weight")
    x = torch.ones(2, 3)

    torch.autograd.backward(linear(x, parameters[0]).sum())

    torch.testing.assert_close(sink.view, torch.full((4, 3), 2.0))
    assert x.grad is None


def test_a_frozen_weight_is_not_written(x: torch.Tensor, parameters: Parameters) -> None:
    written: list[str] = []
    sink = attach(parameters[0], written, "weight")
    parameters[0].requires_grad_(False)

    torch.autograd.backward((linear(x, *parameters) ** 2).sum())

    assert written == []
    torch.testing.assert_close(sink.view, torch.full((4, 3), 7.0))
    torch.testing.assert_close(parameters[1].grad, expected(x, parameters)[2])


def test_nothing_is_kept_without_gradients(x: torch.Tensor, parameters: Parameters) -> None:
    attach(parameters[0], [], "weight")
    with torch.no_grad():
        y = linear(x, *parameters)

    assert y.grad_fn is None
    torch.testing.assert_close(y, F.linear(x, *parameters).detach())
