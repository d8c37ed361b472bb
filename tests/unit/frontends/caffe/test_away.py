"""Layers and nets on a device that has no native kernels and keeps its tensors apart: the way that a GPU goes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samovar.core.errors import InputError
from samovar.frontends.caffe.costs import NetTimer
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.layers import kernels
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.model import direct
from tests.fake_device import AWAY, Away, away_mode
from tests.unit.frontends.caffe.conftest import BuildNet
from tests.unit.frontends.caffe.reference.case import Array, Case, Draw
from tests.unit.frontends.caffe.test_layer_definitions import (
    CASES,
    assert_near,
    net_of,
    outputs_of,
    parameters_of,
    thorough,
)


@pytest.fixture(scope="session")
def net_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layer") / "net.prototxt"


def test_a_tensor_of_both_places_is_found() -> None:
    with away_mode():
        weight = torch.ones(2, 3).to(AWAY)
        assert isinstance(weight, Away)
        with pytest.raises(AssertionError, match=r"shape \(4, 3\) is on the CPU"):
            torch.nn.functional.linear(torch.ones(4, 3), weight)
        with pytest.raises(RuntimeError):
            weight.numpy()


def test_native_kernels_are_for_the_cpu() -> None:
    x, scores = torch.empty(2, 64, 3, 3, device="meta"), torch.empty(2, 3, device="meta")
    last = x.contiguous(memory_format=torch.channels_last)
    assert not kernels.takes(x)
    assert not kernels.takes_channels_last(last)
    assert not kernels.takes_scores(scores, torch.empty(2, 1, dtype=torch.int64, device="meta"))
    assert not direct._is_for_onednn(scores)


@pytest.mark.parametrize("name", CASES)
@thorough(2)
@given(data=st.data())
def test_every_layer_computes_what_its_definition_says(name: str, net_file: Path, data: st.DataObject) -> None:
    check(CASES[name](Draw(data)), net_file)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
@thorough(100)
@given(data=st.data())
def test_every_layer_computes_what_its_definition_says_at_length(
    name: str, net_file: Path, data: st.DataObject
) -> None:
    check(CASES[name](Draw(data)), net_file)


def check(case: Case, path: Path) -> None:
    """Outputs are those of the definition, gradients those on the CPU."""
    exact = [np.array(array, np.float64, order="C") for array in (*case.inputs, *case.parameters)]
    tops, gradients = computed(case, net_of(case, path, in_place=False), None)
    with away_mode():
        away_tops, away_gradients = computed(case, net_of(case, path, in_place=False), AWAY)
    for found, wanted in zip(away_tops, case.reference(*exact), strict=True):
        assert_near(found, wanted, "output")
    assert [top.shape for top in tops] == [top.shape for top in away_tops]
    for found, wanted in zip(away_gradients, gradients, strict=True):
        assert_near(found, wanted, "gradient")


def computed(case: Case, net: CaffeNet, device: torch.device | None) -> tuple[list[Array], list[Array]]:
    net.place(device)
    inputs = [torch.from_numpy(array.copy()).to(device or "cpu") for array in case.inputs]
    if case.has_gradient:
        for index, tensor in enumerate(inputs):
            tensor.requires_grad_(index not in case.fixed)
    tops = outputs_of(net, inputs)
    assert all(top.device == (device or torch.device("cpu")) for top in tops)
    gradients = []
    if case.has_gradient:
        wanted = [t for t in (*inputs, *(i.parameter for i in parameters_of(net))) if t.requires_grad]
        total = torch.stack([top.sum() for index, top in enumerate(tops) if index not in case.fixed_tops]).sum()
        gradients = list(torch.autograd.grad(total, wanted))
    found = [[t.detach().cpu().contiguous().numpy() for t in tensors] for tensors in (tops, gradients)]
    return found[0], found[1]


@pytest.mark.parametrize(
    "layer",
    [
        'type: "SoftmaxWithLoss" bottom: "data" bottom: "label"',
        'type: "Accuracy" bottom: "data" bottom: "label"',
        'type: "HingeLoss" bottom: "data" bottom: "label"',
        'type: "Embed" bottom: "label" embed_param { input_dim: 3 num_output: 2 }',
    ],
)
def test_a_number_out_of_range_is_told_before_a_gpu_meets_it(net_of: BuildNet, layer: str) -> None:
    inputs = {"data": (2, 3), "label": (2,)}
    with away_mode():
        net = net_of(f'layer {{ name: "x" top: "x" {layer} }}', inputs)
        net.place(AWAY)
        with pytest.raises(InputError, match=r"(labels are|values) 1 to 3"):
            net({"data": torch.ones(2, 3), "label": torch.tensor([1, 3])})


def test_dummy_data_is_where_the_net_is(net_of: BuildNet) -> None:
    filler = 'data_filler { type: "constant" value: 2 } data_filler { type: "gaussian" }'
    with away_mode():
        net = net_of(
            f'layer {{ name: "d" type: "DummyData" top: "a" top: "b" dummy_data_param {{ shape {{ dim: 2 dim: 3 }} '
            f"{filler} }} }} "
            'layer { name: "ip" type: "InnerProduct" bottom: "b" top: "c" inner_product_param { num_output: 3 } } '
            'layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "c" top: "y" }'
        )
        net.place(AWAY)
        y = net({}).scalars["y"]
        assert isinstance(y, Away)
        assert y.tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("name", ["lenet", pytest.param("cifar10_full", marks=pytest.mark.slow)])
def test_nets_of_the_zoo_are_timed_there(repository_root: Path, name: str) -> None:
    definition = load_net(repository_root / "examples/zoo" / name / "train_val.prototxt")
    deploy = load_net(repository_root / "examples/zoo" / name / "deploy.prototxt")
    _, *sizes = deploy.input_shapes("TEST")["data"]
    batch = {"data": torch.rand(2, *sizes), "label": torch.tensor([1, 2])}
    waits: list[None] = []
    losses = [loss_of(build_net(definition, "TRAIN", shapes_of(batch), 1), batch, None, [])]
    with away_mode():
        losses.append(loss_of(build_net(definition, "TRAIN", shapes_of(batch), 1), batch, AWAY, waits))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert len(waits) >= 2 * len(definition.in_phase("TRAIN"))  # before and after each layer, forward and backward


def shapes_of(batch: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in batch.items()}


def loss_of(net: CaffeNet, batch: Mapping[str, torch.Tensor], device: torch.device | None, waits: list[None]) -> float:
    net.place(device)
    timer = NetTimer(net, lambda: waits.append(None))
    loss = timer.warm_up(batch)
    timer.run(batch)
    assert loss is not None
    return loss
