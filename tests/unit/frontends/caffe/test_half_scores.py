"""In bfloat16 a net's scores stay exact: what a loss takes is computed in float32, and pooling adds up in it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from samovar.core.buffer import FlatBuffer
from samovar.core.device import BF16, FP32
from samovar.frontends.caffe.net import CaffeNet
from samovar.model.model import Model, layout_of

BuildNet = Callable[..., CaffeNet]
SHAPES = {"data": (40, 8, 9, 9), "label": (40,)}
FILLERS = 'weight_filler { type: "xavier" } bias_filler { type: "constant" value: 0.01 }'
HIDDEN = f"""
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 32 kernel_size: 3 pad: 1 {FILLERS} }} }}
layer {{ name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param {{ pool: AVE kernel_size: 3 stride: 1 }} }}
layer {{ name: "ip1" type: "InnerProduct" bottom: "pool" top: "ip1"
  inner_product_param {{ num_output: 64 {FILLERS} }} }}
"""
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }\n'
NET = (
    HIDDEN
    + f"""
layer {{ name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" inner_product_param {{ num_output: 10 {FILLERS} }} }}
"""
    + LOSS
)


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    data = torch.randn(SHAPES["data"], generator=generator)
    return {"data": data, "label": torch.randint(10, SHAPES["label"], generator=generator)}


def types_of(net: CaffeNet) -> dict[str, torch.dtype]:
    """Each layer's first top's, filled by the next step."""
    found: dict[str, torch.dtype] = {}

    def keep(layer: Any, _inputs: object, tops: tuple[torch.Tensor, ...]) -> None:
        found[layer.spec.name] = tops[0].dtype

    for layer in net.layers:
        layer.register_forward_hook(keep)
    return found


def gradients(net: CaffeNet, precision: str) -> FlatBuffer:
    parameters = {info.name: info.parameter for info in net.parameter_infos}
    layout = layout_of(parameters)
    weights, gradients = FlatBuffer.zeros(layout), FlatBuffer.zeros(layout)
    model = Model(net, parameters, weights, gradients, layout.buckets(None), precision)
    model.forward_backward(
        batch(),
        loss_scale=1.0,
        first_part=True,
        last_part=True,
        before_forward=lambda _bucket: None,
        gradient_final=lambda _bucket: None,
    )
    return gradients


def test_scores_and_pooling_are_float32_and_what_lies_before_is_not(net_of: BuildNet) -> None:
    net = net_of(NET, SHAPES)
    types = types_of(net)
    gradients(net, BF16)
    half, full = torch.bfloat16, torch.float32
    assert types == {"conv": half, "pool": full, "ip1": half, "ip2": full, "loss": full}


def test_the_gradient_of_the_scores_is_not_rounded(net_of: BuildNet) -> None:
    """Its bias's, in which much cancels, is off by what came in alone: 6e-4, and 2.4e-3 where it is rounded."""
    half, full = (gradients(net_of(NET, SHAPES), precision) for precision in (BF16, FP32))
    for name, most in (("ip2/1", 1.2e-3), ("ip2/0", 1e-2), ("ip1/0", 1e-2), ("conv/0", 2e-2)):
        ours, theirs = half.logical(name), full.logical(name)
        error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        print(f"{name}: {error:.2g}")
        assert 0 < error < most, f"{name}: {error:.2g}"


@pytest.mark.parametrize(
    ("text", "is_exact"),
    [
        ('layer { name: "x" type: "Softmax" bottom: "ip1" top: "x" }', True),
        ('layer { name: "x" type: "EuclideanLoss" bottom: "ip1" bottom: "target" top: "x" }', True),
        ('layer { name: "x" type: "ReLU" bottom: "ip1" top: "ip1" }', False),
        ('layer { name: "x" type: "Sigmoid" bottom: "ip1" top: "x" }', False),
    ],
)
def test_which_layers_give_scores(net_of: BuildNet, text: str, is_exact: bool) -> None:
    net = net_of(HIDDEN + text, {**SHAPES, "target": (40, 64)}, phase="TEST")
    takes = {layer.spec.name: layer.takes_half for layer in net.layers}
    assert takes["conv"]
    assert takes["ip1"] is not is_exact
