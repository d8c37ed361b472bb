"""Layer types that a program adds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import samovar
from samovar.core.errors import InputError
from samovar.frontends.caffe.layers import registry
from samovar.frontends.caffe.layers.registry import register_layer
from samovar.frontends.caffe.net import CaffeNet

BuildNet = Callable[..., CaffeNet]


class Gated(nn.Module):
    """y = (W x) sigmoid(gate x), and the gate as a second output."""

    def __init__(self, settings: dict[str, Any], shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.inner = nn.Linear(shapes[0][1], settings.get("size", 2))
        self.gate = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(x), torch.sigmoid(self.gate * x)


@pytest.fixture(autouse=True)
def _gated() -> Iterator[None]:
    before = dict(registry._LAYERS)
    register_layer("Gated", Gated)
    yield
    registry._LAYERS.clear()
    registry._LAYERS.update(before)


TEXT = """
layer {{ name: "g" type: "Gated" bottom: "data" top: "y" top: "gate" param {{ }} param {{ lr_mult: 0 }}
  python_param {{ param_str: '{}' }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "y" top: "z" loss_weight: 1 inner_product_param {{ num_output: 1
  weight_filler {{ value: 1 }} }} }}
"""


def test_a_module_is_a_layer(net_of: BuildNet) -> None:
    net = net_of(TEXT.format('{"size": 5}'), {"data": (3, 4)})
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))

    output = net({"data": x})
    output.loss.backward()

    infos = {info.name: info for info in net.parameter_infos}
    assert {name: tuple(info.parameter.shape) for name, info in infos.items()} == {
        "g/0": (),
        "g/1": (5, 4),
        "g/2": (5,),
        "ip/0": (1, 5),
        "ip/1": (1,),
    }
    weight, bias = infos["g/1"].parameter, infos["g/2"].parameter
    assert not weight.requires_grad
    torch.testing.assert_close(output.loss.detach(), (x @ weight.T + bias.detach()).sum())
    torch.testing.assert_close(bias.grad, torch.full((5,), 3.0))
    torch.testing.assert_close(output.scalars["gate"], torch.sigmoid(x))


def test_a_python_layer_is_the_registered_module_of_its_name(net_of: BuildNet) -> None:
    """The module that it names is not imported: there is none of that name."""
    python = TEXT.replace('"Gated"', '"Python"').replace(
        "python_param {{", 'python_param {{ module: "no.such" layer: "Gated"'
    )
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))

    net = net_of(python.format('{"size": 5}'), {"data": (3, 4)})
    same = net_of(TEXT.format('{"size": 5}'), {"data": (3, 4)})

    assert isinstance(net.layers[0].module, Gated)
    assert net.layers_for_caffemodel()[1].type == "Python"
    torch.testing.assert_close(net({"data": x}).loss, same({"data": x}).loss, rtol=0, atol=0)


def test_its_start_follows_from_the_seed_and_the_test_net_shares_it(net_of: BuildNet) -> None:
    inputs = {"data": (3, 4)}
    state = torch.random.get_rng_state()
    one, same, other = (net_of(TEXT.format("{}"), inputs, seed=seed) for seed in (1, 1, 2))
    test = net_of(TEXT.format("{}"), inputs, phase="TEST", seed=3)

    test.share_parameters(one)

    values = [net.parameter_infos[1].parameter for net in (one, same, other, test)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
    assert values[3] is values[0]
    assert test.layers[0].module.inner.weight is values[0]
    assert (one.layers[0].module.training, test.layers[0].module.training) == (True, False)
    assert torch.equal(state, torch.random.get_rng_state())


def test_refused(net_of: BuildNet) -> None:
    inputs = {"data": (3, 4)}
    with pytest.raises(InputError, match=r"net.prototxt:4: layer 'g': param_str must be a JSON object"):
        net_of(TEXT.format("[1]"), inputs)
    with pytest.raises(InputError, match="layer 'g': 1 tops, but the module of type Gated gives 2"):
        net_of(TEXT.format("{}").replace('top: "gate"', ""), inputs)
    with pytest.raises(InputError, match="unknown layer type 'Gate'; did you mean 'Gated'"):
        net_of(TEXT.format("{}").replace('"Gated"', '"Gate"'), inputs)
    for name, message in (("ReLU", "is Caffe's own"), ("Python", "is Caffe's own"), ("Data", "own"), ("", "a name")):
        with pytest.raises(ValueError, match=message):
            register_layer(name, Gated)


class Twice(nn.Module):
    """Has buffers, a tied and a frozen parameter."""

    def __init__(self, _settings: dict[str, Any], shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        size = shapes[0][1]
        self.norm = nn.BatchNorm1d(size)
        self.one, self.two = nn.Linear(size, size), nn.Linear(size, size)
        self.two.weight = self.one.weight
        self.fixed = nn.Parameter(torch.ones(size), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(self.norm(x) * self.fixed))


def test_ties_frozen_parameters_and_buffers_stay(tmp_path: Path) -> None:
    register_layer("Twice", Twice)
    path = tmp_path / "net.prototxt"
    path.write_text('input: "x" input_shape { dim: 4 dim: 3 } layer { name: "t" type: "Twice" bottom: "x" top: "y" }')
    net = samovar.caffe.load(path, phase="TRAIN")
    net(torch.randn(4, 3) + 5)
    module: Any = net.get_submodule("t.module")
    assert module.one.weight is module.two.weight
    assert not module.fixed.requires_grad
    samovar.caffe.save(net, tmp_path / "w.pt")
    again = samovar.caffe.load(path, tmp_path / "w.pt", seed=9)
    assert torch.equal(again.get_buffer("t.module.norm.running_mean"), module.norm.running_mean)
    assert torch.equal(again.get_parameter("t.module.two.weight"), module.two.weight)
    with pytest.warns(UserWarning, match="layer 't': its module has buffers .*running_mean"):
        samovar.caffe.save(net, tmp_path / "w.caffemodel")
