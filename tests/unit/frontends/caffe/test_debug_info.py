"""`debug_info`: the lines of a pass, against the values themselves."""

from collections.abc import Callable, Sequence

import pytest
import torch

from samovar.core.buffer import FlatBuffer
from samovar.frontends.caffe.debug_info import DebugInfo, LayerValue
from samovar.frontends.caffe.net import CaffeNet
from samovar.model.model import Model, layout_of

BuildNet = Callable[..., CaffeNet]

# `h` is taken twice, `y` once and by its loss_weight; the ReLU would overwrite `h`, and the pool do a ReLU's work.
NET = """
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "h" param { name: "w" } param { lr_mult: 0 }
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" } bias_filler { value: -0.1 } } }
layer { name: "relu" type: "ReLU" bottom: "h" top: "h" }
layer { name: "scaled" type: "Power" bottom: "h" top: "y" loss_weight: 2 power_param { scale: 3 } }
layer { name: "sum" type: "Eltwise" bottom: "h" bottom: "y" top: "z" }
layer { name: "loss" type: "Reduction" bottom: "z" top: "loss" loss_weight: 1 }
layer { name: "idle" type: "Silence" bottom: "label" }
"""
INPUTS = {"data": (4, 5), "label": (4,)}


class Told(list[list[LayerValue]]):
    def __call__(self, lines: Sequence[LayerValue]) -> None:
        self.append(list(lines))

    @property
    def texts(self) -> list[list[str]]:
        return [[line.text.strip() for line in lines] for lines in self]


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {"data": torch.randn(4, 5, generator=generator), "label": torch.tensor([1, 3, 2, 0])}


def model_of(net: CaffeNet) -> Model:
    parameters = {info.name: info.parameter for info in net.parameter_infos}
    layout = layout_of(parameters)
    return Model(net, parameters, FlatBuffer.zeros(layout), FlatBuffer.zeros(layout), layout.buckets(None))


def step(model: Model, batch: dict[str, torch.Tensor], first_part: bool = True) -> None:
    model.forward_backward(
        batch,
        loss_scale=1.0,
        first_part=first_part,
        last_part=True,
        before_forward=lambda _bucket: None,
        gradient_final=lambda _bucket: None,
    )


def mean(values: torch.Tensor) -> str:
    return f"{float(values.double().abs().mean()):g}"


H, Y = "h_relu_0_split", "y_scaled_0_split"


def forward_lines(data: torch.Tensor, w: torch.Tensor, before: torch.Tensor) -> list[str]:
    h = before.relu()
    return [
        f"[Forward] Layer data, top blob data data: {mean(data)}",
        "[Forward] Layer label, top blob label data: 1.5",
        f"[Forward] Layer ip, top blob h data: {mean(before)}",
        f"[Forward] Layer ip, param blob w data: {mean(w)}",
        "[Forward] Layer ip, param blob 1 data: 0.1",
        f"[Forward] Layer relu, top blob h data: {mean(h)}",
        *(f"[Forward] Layer {H}, top blob {H}_{k} data: {mean(h)}" for k in (0, 1)),
        f"[Forward] Layer scaled, top blob y data: {mean(3 * h)}",
        *(f"[Forward] Layer {Y}, top blob {Y}_{k} data: {mean(3 * h)}" for k in (0, 1)),
        f"[Forward] Layer sum, top blob z data: {mean(4 * h)}",
        f"[Forward] Layer loss, top blob loss data: {mean((4 * h).sum())}",
    ]


def backward_lines(before: torch.Tensor, dw: torch.Tensor) -> list[str]:
    dz, dy, dh = (torch.full_like(before, value) for value in (1.0, 3.0, DH))
    return [
        f"[Backward] Layer loss, bottom blob z diff: {mean(dz)}",
        f"[Backward] Layer sum, bottom blob {H}_1 diff: {mean(dz)}",
        f"[Backward] Layer sum, bottom blob {Y}_1 diff: {mean(dz)}",
        f"[Backward] Layer {Y}, bottom blob y diff: {mean(dy)}",
        f"[Backward] Layer scaled, bottom blob {H}_0 diff: {mean(3 * dy)}",
        f"[Backward] Layer {H}, bottom blob h diff: {mean(dh)}",
        f"[Backward] Layer relu, bottom blob h diff: {mean(dh * (before > 0))}",
        f"[Backward] Layer ip, param blob w diff: {mean(dw)}",
    ]


DH = 1.0 + 3 * (1 + 2)  # by z, and by y and its own loss


def test_lines_of_a_pass(net_of: BuildNet, batch: dict[str, torch.Tensor]) -> None:
    net, told = net_of(NET, INPUTS), Told()
    model = model_of(net)
    model.watch = DebugInfo(net, told)

    step(model, batch)

    w = net.parameter_infos[0].parameter.detach()
    before = batch["data"] @ w.T - 0.1
    dw = DH * (before > 0).float().T @ batch["data"]
    *lines, last = told.texts[1]
    assert told.texts[0] == forward_lines(batch["data"], w, before)
    assert lines == backward_lines(before, dw)
    assert [line.kind for line in told[1]] == ["bottom"] * 7 + ["gradient", "all"]
    found = last.removeprefix("[Backward] All net params (data, diff): L1 norm = (").removesuffix(")")
    figures = [float(figure) for figure in found.replace("); L2 norm = (", ", ").split(", ")]
    norms = [w.abs().sum() + 0.3, dw.abs().sum(), (w.square().sum() + 0.03).sqrt(), dw.square().sum().sqrt()]
    assert figures == pytest.approx([float(norm) for norm in norms], rel=1e-5)


def test_values_are_those_of_the_net_that_nobody_watches(net_of: BuildNet, batch: dict[str, torch.Tensor]) -> None:
    """Off, then on: the same gradients bit by bit, and lines only where it is on; `iter_size` batches add up."""
    nets = [net_of(NET, INPUTS), net_of(NET, INPUTS)]
    models, told = [model_of(net) for net in nets], Told()
    watch = DebugInfo(nets[1], told)
    models[1].watch = watch
    watch.is_on = False
    for model in models:
        step(model, batch)
    assert not told
    watch.is_on = True
    for model in models:
        step(model, batch, first_part=False)

    gradients = [model._gradients.host.tensor_N for model in models]
    assert (gradients[0] == gradients[1]).all()
    assert (
        told.texts[1][-2] == f"[Backward] Layer ip, param blob w diff: {mean(models[1]._gradients.near.view('ip/0'))}"
    )


def test_a_net_that_is_tested_has_forward_lines_alone(net_of: BuildNet, batch: dict[str, torch.Tensor]) -> None:
    net, told = net_of(NET, INPUTS, phase="TEST"), Told()
    DebugInfo(net, told)
    with torch.no_grad():
        net(batch)
        net(batch)
    assert [len(lines) for lines in told.texts] == [13, 13]
    assert all(text.startswith("[Forward]") for text in told.texts[0])


def test_every_layer_works_by_itself_while_it_is_watched(net_of: BuildNet) -> None:
    net = net_of(
        """layer { name: "p" type: "Pooling" bottom: "data" top: "p" pooling_param { kernel_size: 2 } }
        layer { name: "r" type: "ReLU" bottom: "p" top: "p" }
        layer { name: "n" type: "LRN" bottom: "p" top: "n" }""",
        {"data": (2, 3, 4, 4)},
    )
    told = Told()
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1)) - 1
    assert net.layers[1].is_merged
    before = net({"data": x}).scalars["n"]

    DebugInfo(net, told)

    assert torch.equal(net({"data": x}).scalars["n"], before)
    pooled = torch.nn.functional.max_pool2d(x, 2, stride=1)
    assert told.texts[0][1:3] == [
        f"[Forward] Layer p, top blob p data: {mean(pooled)}",
        f"[Forward] Layer r, top blob p data: {mean(pooled.relu())}",
    ]
