"""Where images are brought to channels-last, which ReLUs the next layer does, and that neither changes a value."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch

from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.layers.activations import ReLU
from samovar.frontends.caffe.layers.normalization import LRN
from samovar.frontends.caffe.layers.pooling import Pooling
from samovar.frontends.caffe.module import Net
from samovar.frontends.caffe.net import CaffeNet, build_net

BuildNet = Callable[..., CaffeNet]
LAST = torch.channels_last
SHAPE = (2, 3, 8, 8)


def conv(name: str, bottom: str, top: str = "") -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{top or name}" '
        'convolution_param { num_output: 32 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }\n'
    )


def layer(name: str, kind: str, bottoms: str, top: str = "", settings: str = "") -> str:
    taken = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return f'layer {{ name: "{name}" type: "{kind}" {taken} top: "{top or name}" {settings} }}\n'


POOL = "pooling_param { kernel_size: 2 stride: 2 }"
MEAN = "pooling_param { kernel_size: 2 stride: 2 pool: AVE }"


def conversions(net: CaffeNet) -> dict[str, tuple[str, ...]]:
    """By layer, the blobs that are brought to channels-last before it."""
    return {step.layer.spec.name: step.channels_last for step in net.steps if step.channels_last}


def merged(net: CaffeNet) -> list[str]:
    return [layer.spec.name for layer in net.layers if isinstance(layer, ReLU) and layer.is_merged]


@pytest.mark.parametrize("name", ["lenet", "cifar10_quick", "cifar10_full", "alexnet", "caffenet", "nin", "googlenet"])
def test_nets_of_the_zoo_convert_nothing_but_their_data(repository_root: Path, name: str) -> None:
    definition = load_net(repository_root / "examples" / "zoo" / name / "deploy.prototxt")
    net = build_net(definition, "TEST", {}, seed=1)
    (name,) = net.input_names
    assert list(conversions(net).values()) == [(name,)]


def test_a_blob_is_converted_once_and_stays(net_of: BuildNet) -> None:
    text = (
        conv("a", "data") + conv("b", "data") + layer("sum", "Eltwise", "a b") + layer("p", "Pooling", "sum", "", POOL)
    )
    net = net_of(text + conv("c", "p"), {"data": SHAPE})
    assert conversions(net) == {"a": ("data",)}


def test_what_meets_channels_last_images_becomes_so_too(net_of: BuildNet) -> None:
    net = net_of(conv("a", "data") + layer("both", "Concat", "a other"), {"data": SHAPE, "other": SHAPE})
    assert conversions(net) == {"a": ("data",), "both": ("other",)}
    output = net({"data": torch.randn(SHAPE), "other": torch.randn(SHAPE)}).scalars["both"]
    assert output.is_contiguous(memory_format=LAST)


def test_layers_without_convolution_keep_the_order(net_of: BuildNet) -> None:
    net = net_of(layer("r", "ReLU", "data") + layer("p", "Pooling", "r", "", POOL), {"data": SHAPE})
    assert conversions(net) == {}


def test_a_layer_of_another_order_ends_it(net_of: BuildNet) -> None:
    text = conv("a", "data") + layer("m", "MVN", "a") + conv("b", "m")
    assert conversions(net_of(text, {"data": SHAPE})) == {"a": ("data",), "b": ("m",)}


@pytest.mark.parametrize("top", ["a", "r"])
@pytest.mark.parametrize("reader", [("LRN", ""), ("Pooling", POOL)], ids=lambda reader: reader[0])
def test_a_relu_is_done_by_the_only_layer_that_takes_it(net_of: BuildNet, top: str, reader: tuple[str, str]) -> None:
    kind, settings = reader
    text = conv("a", "data") + layer("r", "ReLU", "a", top) + layer("y", kind, top, "", settings)
    net = net_of(text, {"data": SHAPE})
    assert merged(net) == ["r"]
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    assert_same(net, {"data": x})


@pytest.mark.parametrize("top", ["p", "y"])
def test_a_relu_is_done_by_the_maxima_before_it(net_of: BuildNet, top: str) -> None:
    text = conv("a", "data") + layer("p", "Pooling", "a", "", POOL) + layer("r", "ReLU", "p", top)
    net = net_of(text + (layer("y", "Power", "p") if top == "p" else ""), {"data": SHAPE})
    assert len(merged(net)) == 1
    assert_same(net, {"data": torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))})


def assert_same(net: CaffeNet, batch: Mapping[str, torch.Tensor]) -> None:
    """Output and gradients are those of the same layers, one by one, with a ReLU of its own."""
    weights = [info.parameter for info in net.parameter_infos]
    _, outputs = net.run(batch)
    found = [outputs["y"], *torch.autograd.grad(outputs["y"].square().sum(), weights)]
    for each in net.layers:
        if isinstance(each, ReLU):
            each.is_merged = False
        if isinstance(each, LRN | Pooling):
            each.rectifies_bottom = False
    _, outputs = net.run(batch)
    expected = [outputs["y"], *torch.autograd.grad(outputs["y"].square().sum(), weights)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "rest",
    [
        layer("y", "Pooling", "a", "", MEAN),
        layer("y", "Pooling", "a", "", POOL) + layer("z", "LRN", "a"),
        layer("y", "LRN", "a") + layer("z", "Silence", "a").replace('top: "z"', ""),
        layer("z", "Sigmoid", "a", "a") + layer("y", "LRN", "a"),
        "",
    ],
    ids=["mean", "two readers", "another reader", "another layer in between", "an output"],
)
def test_a_relu_that_others_see_is_done(net_of: BuildNet, rest: str) -> None:
    assert merged(net_of(conv("a", "data") + layer("r", "ReLU", "a", "a") + rest, {"data": SHAPE})) == []


def test_a_leaky_relu_is_done(net_of: BuildNet) -> None:
    leaky = layer("r", "ReLU", "a", "a", "relu_param { negative_slope: 0.1 }")
    assert merged(net_of(conv("a", "data") + leaky + layer("y", "LRN", "a"), {"data": SHAPE})) == []


def test_a_hook_sees_the_values_of_its_own_layer(net_of: BuildNet) -> None:
    """Without hooks, a and q do the work of r and s."""
    text = conv("a", "data") + layer("r", "ReLU", "a", "a") + layer("p", "Pooling", "a", "", POOL)
    text += conv("b", "p") + layer("q", "Pooling", "b", "", POOL) + layer("s", "ReLU", "q")
    net = Net(net_of(text, {"data": SHAPE}), {"data": SHAPE}, "TEST")
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    expected, seen = net(x), {}

    def see(name: str, _layer: object, _inputs: object, tops: tuple[torch.Tensor, ...]) -> None:
        seen[name] = tops[0].min().item()

    for name in "rqs":
        net.get_submodule(name).register_forward_hook(partial(see, name))
    torch.testing.assert_close(net(x), expected)
    assert seen["r"] == seen["s"] == 0 > seen["q"]
