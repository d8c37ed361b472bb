"""Timing runs the same computation as training: the same loss, the same gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from samovar.frontends.caffe.costs import NetTimer, layer_counts
from samovar.frontends.caffe.net import CaffeNet
from samovar.model.half import use_half

CONVOLUTION = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "left" type: "InnerProduct" bottom: "conv" top: "left"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "right" type: "InnerProduct" bottom: "conv" top: "right"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
"""
LOSSES = """
layer { name: "sum" type: "Eltwise" bottom: "left" bottom: "right" top: "sum" }
layer { name: "accuracy" type: "Accuracy" bottom: "sum" bottom: "label" top: "accuracy" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "sum" bottom: "label" top: "loss" }
layer { name: "aux" type: "SoftmaxWithLoss" bottom: "left" bottom: "label" top: "aux" loss_weight: 0.25 }
"""
SHAPES = {"data": (5, 2, 6, 6), "label": (5,)}


def batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"data": torch.randn(SHAPES["data"]), "label": torch.tensor([0.0, 1.0, 2.0, 1.0, 0.0])}


def gradients_of(net: CaffeNet) -> dict[str, torch.Tensor]:
    """The traces of a pass of the timer, written by the layer itself or by autograd."""
    parameters: dict[str, Any] = {info.name: info.parameter for info in net.parameter_infos}
    return {name: p.gradient_sink.view if p.grad is None else p.grad for name, p in parameters.items()}


def test_gradients_and_loss_are_those_of_training(net_of: Callable[..., CaffeNet]) -> None:
    plain, timed = net_of(CONVOLUTION + LOSSES, SHAPES), net_of(CONVOLUTION + LOSSES, SHAPES)
    loss = plain(batch()).loss
    loss.backward()
    timer = NetTimer(timed)
    assert timer.warm_up(batch()) == pytest.approx(float(loss.detach()), rel=1e-6)
    assert timer.seconds.passes_s == []
    for _ in range(2):  # the second pass starts from no gradient again
        timer.run(batch())
    found = gradients_of(timed)
    assert len(found) == 6
    for info in plain.parameter_infos:
        torch.testing.assert_close(found[info.name], info.parameter.grad, rtol=1e-5, atol=1e-7)


def test_learned_and_other_parameters_are_counted_apart(net_of: Callable[..., CaffeNet]) -> None:
    frozen = CONVOLUTION.replace('top: "conv"', 'top: "conv" param { lr_mult: 0 } param { lr_mult: 2 }', 1)
    counts = layer_counts(net_of(frozen + LOSSES, SHAPES))
    found = {name: (of.num_parameters, of.num_unlearned) for name, of in counts.items() if name in ("conv", "left")}
    assert found == {"conv": (4, 4 * 2 * 3 * 3), "left": (3 * 4 * 4 * 4 + 3, 0)}


def test_each_layer_has_its_time(net_of: Callable[..., CaffeNet]) -> None:
    timer = NetTimer(net_of(CONVOLUTION + LOSSES, SHAPES))
    timer.run(batch())
    timer.run(batch())
    seconds = timer.seconds
    assert [layer.name for layer in seconds.layers] == [
        "conv",
        "relu",
        "left",
        "right",
        "sum",
        "accuracy",
        "loss",
        "aux",
    ]
    assert all(layer.forward_s > 0 for layer in seconds.layers)
    assert [layer.name for layer in seconds.layers if layer.backward_s == 0] == ["accuracy"]
    assert sum(seconds.passes_s) == pytest.approx(seconds.forward_s + seconds.backward_s)
    assert len(seconds.passes_s) == 2


def test_in_bf16_between_layers_that_take_it_and_others(net_of: Callable[..., CaffeNet]) -> None:
    net = net_of(CONVOLUTION + LOSSES, SHAPES)
    plain_loss = float(net(batch()).loss.detach())
    timer = NetTimer(net)
    use_half(info.parameter for info in net.parameter_infos)
    loss = timer.warm_up(batch())
    assert loss != plain_loss
    assert loss == pytest.approx(plain_loss, rel=0.02)
    timer.run(batch())
    assert len(gradients_of(net)) == 6


def test_a_net_without_a_loss(net_of: Callable[..., CaffeNet]) -> None:
    """A deploy net: backward starts from ones."""
    timer = NetTimer(net_of(CONVOLUTION, {"data": SHAPES["data"]}))
    assert timer.warm_up(batch()) is None
    timer.run(batch())
    assert all(layer.backward_s > 0 for layer in timer.seconds.layers)


def test_made_up_data_and_propagate_down(net_of: Callable[..., CaffeNet]) -> None:
    text = """
    layer { name: "made" type: "DummyData" top: "data" top: "target"
      dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 4 } data_filler { type: "gaussian" }
        data_filler { type: "constant" value: 1 } } }
    layer { name: "a" type: "InnerProduct" bottom: "data" top: "a" inner_product_param { num_output: 4 } }
    layer { name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "target" top: "loss" propagate_down: false
      propagate_down: false }
    """
    timer = NetTimer(net_of(text))
    assert timer.warm_up({}) == pytest.approx(2.0)
    timer.run({})
    assert [layer.name for layer in timer.seconds.layers if layer.backward_s > 0] == ["a"]
