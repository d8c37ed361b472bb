"""When layers computed: their spans, in order and apart, and nothing once the hooks are gone."""

from itertools import pairwise

import torch
from torch import nn

from samovar.core.trace import Trace
from samovar.model.layer_spans import LayerSpans


class Branches(nn.Module):
    """x -> first -> in-place ReLU -> two branches -> their sum; the first layer's bottom needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.named = {
            "first": nn.Linear(4, 6),
            "relu": nn.ReLU(inplace=True),
            "left": nn.Sequential(nn.Linear(6, 6), nn.Tanh()),
            "right": nn.Linear(6, 6),
            "same": nn.Identity(),
        }
        self.layers = nn.ModuleList(self.named.values())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shared = self.named["relu"](self.named["first"](x))
        total: torch.Tensor = self.named["left"](shared) + self.named["right"](shared)
        return self.named["same"](total).square().sum()


def run(net: Branches) -> list[torch.Tensor]:
    """The gradients of a pass."""
    net.zero_grad()
    net(torch.arange(12.0).reshape(3, 4)).backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


def test_layers_are_seen_forward_in_order_and_backward_in_reverse_and_compute_the_same() -> None:
    net, trace = Branches(), Trace(0)
    plain = run(net)
    spans = LayerSpans(list(net.named.items()), trace)
    trace.is_active = True
    spans.attach()
    traced = run(net)
    spans.passed()
    assert all(torch.equal(one, other) for one, other in zip(plain, traced, strict=True))
    found = trace.take()
    forward, backward = ([span for span in found if span.stream == stream] for stream in ("forward", "backward"))
    assert [span.name for span in forward] == ["first", "relu", "left", "right", "same"]
    assert [span.name for span in backward] == ["right", "left", "relu", "first"]
    for stream in (forward, backward):
        assert all(span.start_s < span.stop_s for span in stream)
        assert all(one.stop_s <= other.start_s for one, other in pairwise(stream))


def test_after_detach_nothing_is_left() -> None:
    net, trace = Branches(), Trace(0)
    spans = LayerSpans(list(net.named.items()), trace)
    trace.is_active = True
    spans.attach()
    run(net)
    spans.detach()
    assert trace.take()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    trace = Trace(0)
    run(net)
    assert trace.take() == []


def test_a_pass_without_gradients_has_no_backward() -> None:
    net, trace = Branches(), Trace(0)
    trace.is_active = True
    spans = LayerSpans(list(net.named.items()), trace)
    spans.attach()
    with torch.no_grad():
        net(torch.ones(3, 4))
    spans.detach()
    assert {span.stream for span in trace.take()} == {"forward"}
