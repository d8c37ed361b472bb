"""Which gradients are products of two factors, as the graph behind a loss shows them."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from samovar.frontends.torch.backward_pass import Graph

ROWS, IN, OUT = 4, 5, 3
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def product_of(forward: Forward) -> tuple[torch.Tensor | None, torch.Tensor]:
    """The weight's gradient by its factors, None where the graph shows no product; and as backward makes it."""
    torch.manual_seed(0)
    weight, bias = nn.Parameter(torch.randn(OUT, IN)), nn.Parameter(torch.randn(OUT))
    x = torch.randn(ROWS, IN)
    loss = forward(x, weight, bias)
    uses = Graph(loss).uses(weight)
    parts: list[torch.Tensor] = []
    for use in uses or ():
        # What autograd keeps is gone after backward: the factors are taken on the way, as in training.
        use.node.register_prehook(lambda gradients, use=use: parts.append(_product(*use.factors(gradients[0]))))
    loss.backward()
    assert weight.grad is not None
    return None if uses is None else sum(parts, torch.zeros(OUT, IN)), weight.grad


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left.float().t() @ right.float()).detach()


def autocast(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x, weight, bias).float().sum()


PRODUCTS: dict[str, Forward] = {
    "linear": lambda x, w, b: F.linear(x, w, b).square().sum(),
    "without a bias": lambda x, w, _: F.linear(x, w).square().sum(),
    "one row": lambda x, w, b: F.linear(x[0], w, b).square().sum(),
    "sequences": lambda x, w, b: F.linear(x.repeat(2, 1, 1), w, b).square().sum(),
    "sequences without a bias": lambda x, w, _: F.linear(x.repeat(2, 1, 1).transpose(0, 1), w).square().sum(),
    "twice": lambda x, w, b: F.linear(torch.tanh(F.linear(x, w, b)) @ torch.ones(OUT, IN), w, b).square().sum(),
    "at the left": lambda _x, w, _b: (torch.ones(ROWS, OUT) @ w).square().sum(),
    "in autocast": autocast,
}
NONE: dict[str, Forward] = {
    "a penalty": lambda x, w, b: F.linear(x, w, b).sum() + w.square().sum(),
    "an embedding": lambda x, w, b: F.linear(x, w, b).sum() + F.embedding(torch.tensor([0, 2]), w).sum(),
    "scaled": lambda x, w, b: torch.addmm(b, x, w.t(), alpha=2).sum(),
    "a weight made of it": lambda x, w, b: F.linear(x, torch.tanh(w), b).sum(),
    "elementwise": lambda x, w, _: (x[:OUT] * w).sum(),
    "as the left operand": lambda x, w, _: (w @ x.t()).square().sum(),
    "sparse inputs": lambda x, w, _: (x.to_sparse() @ w.t()).sum(),
    "a checkpoint": lambda x, w, b: checkpoint(F.linear, x, w, b, use_reentrant=False).sum(),
    "a reentrant checkpoint": lambda x, w, b: checkpoint(F.linear, x, w, b, use_reentrant=True).sum(),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_factors_make_the_gradient(name: str) -> None:
    product, gradient = product_of(PRODUCTS[name])
    assert product is not None
    torch.testing.assert_close(product, gradient, rtol=1e-2 if name == "in autocast" else 1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_product_alone_is_left_whole(name: str) -> None:
    assert product_of(NONE[name])[0] is None


def test_a_weight_with_a_hook_is_left_whole_and_one_without_a_part_has_no_uses() -> None:
    watched, unused = nn.Linear(IN, OUT), nn.Linear(IN, OUT)
    watched.weight.register_hook(lambda gradient: gradient * 2)
    graph = Graph(watched(torch.randn(ROWS, IN)).sum())
    assert graph.uses(watched.weight) is None
    assert graph.uses(unused.weight) == []


def test_a_loss_without_a_graph_uses_nothing() -> None:
    weight = nn.Parameter(torch.randn(()))
    assert Graph(torch.tensor(1.0)).uses(weight) == []


def made(loss: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor] | None:
    graph = Graph(loss)
    return graph.leaves_without(graph.left_out({id(weight): graph.uses(weight) or [] for weight in weights}))


def test_backward_makes_all_gradients_but_those_whose_products_take_part_for_others() -> None:
    net = nn.Sequential(nn.Linear(IN, 6), nn.Tanh(), nn.Linear(6, OUT))
    first, last = net.get_parameter("0.weight"), net.get_parameter("2.weight")
    inputs = made(net(torch.randn(ROWS, IN)).sum(), first, last)
    assert inputs is not None
    assert {id(tensor) for tensor in inputs} == {id(net[0].bias), id(net[2].bias)}


def test_a_product_that_only_its_weight_needs_still_takes_part() -> None:
    first, last = nn.Linear(IN, 6, bias=False), nn.Linear(6, OUT, bias=False)
    assert made(last(torch.tanh(first(torch.randn(ROWS, IN)))).sum(), first.weight, last.weight) is None  # all
    x = torch.randn(ROWS, IN, requires_grad=True)
    inputs = made(last(first(x)).sum(), first.weight, last.weight)
    assert inputs is not None
    assert [id(tensor) for tensor in inputs] == [id(x)]


def test_a_leaf_that_wants_no_gradient_any_more_is_not_asked_for_one() -> None:
    net = nn.Sequential(nn.Linear(IN, 6), nn.Linear(6, OUT))
    loss = net(torch.randn(ROWS, IN)).sum()
    net[0].weight.requires_grad_(False)
    inputs = made(loss, net.get_parameter("0.weight"), net.get_parameter("1.weight"))
    assert inputs is not None
    assert {id(tensor) for tensor in inputs} == {id(net[0].bias), id(net[1].bias)}


@pytest.mark.slow
def test_a_compiled_part_is_left_whole() -> None:
    net = nn.Linear(IN, OUT)
    loss = torch.compile(net, backend="aot_eager")(torch.randn(ROWS, IN)).sum()
    assert Graph(loss).uses(net.weight) is None
