"""How layers become a net: names, shapes, sharing, order, and everything that is refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from samovar.core.errors import InputError
from samovar.frontends.caffe.net import CaffeNet

BuildNet = Callable[..., CaffeNet]

SMALL = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "c" param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "ip" type: "InnerProduct" bottom: "c" top: "y" param { lr_mult: 0 }
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "y" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
INPUTS = {"data": (2, 2, 5, 6), "label": (2,)}


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {"data": torch.randn(2, 2, 5, 6, generator=generator), "label": torch.tensor([1.0, 3.0])}


def test_parameters_and_outputs(net_of: BuildNet, batch: dict[str, torch.Tensor]) -> None:
    net = net_of(SMALL, INPUTS, phase="TEST")

    output = net(batch)

    assert [(i.name, i.layer, i.index, i.lr_mult, i.decay_mult) for i in net.parameter_infos] == [
        ("conv/0", "conv", 0, 1, 1),
        ("conv/1", "conv", 1, 2, 0),
        ("ip/0", "ip", 0, 0, 1),
        ("ip/1", "ip", 1, 1, 1),
    ]
    assert [tuple(i.parameter.shape) for i in net.parameter_infos] == [(3, 2, 3, 3), (3,), (4, 36), (4,)]
    assert [i.parameter.requires_grad for i in net.parameter_infos] == [True, True, False, True]
    assert list(output.scalars) == ["accuracy", "loss"]  # Caffe's order, not the file's
    assert not output.scalars["loss"].requires_grad
    assert output.loss is not None
    assert torch.equal(output.loss.detach(), output.scalars["loss"])


def test_layers_for_a_caffemodel(net_of: BuildNet) -> None:
    outlines = net_of(SMALL, INPUTS).layers_for_caffemodel()

    assert [(o.name, o.type, o.parameter_names) for o in outlines] == [
        ("data", "Input", ()),
        ("label", "Input", ()),
        ("conv", "Convolution", ("conv/0", "conv/1")),
        ("relu", "ReLU", ()),
        ("ip", "InnerProduct", ("ip/0", "ip/1")),
        ("loss", "SoftmaxWithLoss", ()),
    ]
    assert outlines[2].bottoms == ("data",)
    assert outlines[2].tops == ("c",)


def test_data_layers_take_their_shapes_from_the_caller(net_of: BuildNet) -> None:
    net = net_of(
        'layer { name: "d" type: "Data" top: "data" top: "label" }' + SMALL,
        data_shapes={"data": (7, 1, 4, 4), "label": (7,)},
    )

    assert net.input_names == ("data", "label")
    assert tuple(net.parameter_infos[2].parameter.shape) == (4, 3 * 2 * 2)
    assert net.layers_for_caffemodel()[0].type == "Data"


@pytest.mark.parametrize("channels_last", [False, True])
def test_layout_of_weights_and_images_changes_nothing(
    net_of: BuildNet, batch: dict[str, torch.Tensor], channels_last: bool
) -> None:
    reference, net = net_of(SMALL, INPUTS), net_of(SMALL, INPUTS)
    reference(batch).loss.backward()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    weight = net.parameter_infos[0].parameter
    weight.data = weight.data.contiguous(memory_format=layout)

    net(batch | {"data": batch["data"].contiguous(memory_format=layout)}).loss.backward()

    for ours, theirs in zip(net.parameter_infos, reference.parameter_infos, strict=True):
        if theirs.parameter.requires_grad:
            torch.testing.assert_close(ours.parameter.grad, theirs.parameter.grad, rtol=1e-5, atol=1e-6)


def test_the_test_net_uses_the_very_parameters_of_the_training_net(
    net_of: BuildNet, batch: dict[str, torch.Tensor]
) -> None:
    train, test = net_of(SMALL, INPUTS, seed=1), net_of(SMALL, INPUTS, phase="TEST", seed=2)
    before = float(test(batch).scalars["loss"])

    test.share_parameters(train)

    for ours, theirs in zip(test.parameter_infos, train.parameter_infos, strict=True):
        assert ours.parameter is theirs.parameter
    train.parameter_infos[3].parameter.data.add_(torch.tensor([1.0, 0, 0, -1]))
    assert float(test(batch).scalars["loss"]) == float(train(batch).scalars["loss"]) != before


def test_nets_that_cannot_share(net_of: BuildNet) -> None:
    train = net_of(SMALL, INPUTS)
    other = net_of(SMALL.replace("num_output: 3", "num_output: 5"), INPUTS)

    with pytest.raises(InputError, match=r"layer 'conv' has parameters 5 x 2 x 3 x 3, 5, but 3 x 2 x 3 x 3, 3"):
        other.share_parameters(train)


SHARED = """
layer {{ name: "a" type: "InnerProduct" bottom: "data" top: "h" param {{ name: "w" {0} }} param {{ name: "b" }}
  inner_product_param {{ num_output: 3 weight_filler {{ type: "gaussian" }} bias_filler {{ type: "gaussian" }} }} }}
layer {{ name: "z" type: "InnerProduct" bottom: "h" top: "y" param {{ name: "w" {1} }} param {{ name: "b" }}
  inner_product_param {{ num_output: 3 }} loss_weight: 1 }}
"""


def test_shared_parameters_collect_the_gradient_of_both_layers(net_of: BuildNet) -> None:
    net = net_of(SHARED.format("", "lr_mult: 3"), {"data": (2, 3)})
    w, b = (info.parameter for info in net.parameter_infos)
    x = torch.tensor([[1.0, 2, 3], [-1, 0, 1]])

    loss = net({"data": x}).loss
    loss.backward()

    h = x @ w.detach().T + b.detach()
    dy = torch.ones(2, 3)
    torch.testing.assert_close(w.grad, dy.T @ h + (dy @ w.detach()).T @ x)
    torch.testing.assert_close(b.grad, dy.sum(0) + (dy @ w.detach()).sum(0))
    torch.testing.assert_close(loss.detach(), (h @ w.detach().T + b.detach()).sum())
    assert [(i.name, i.lr_mult) for i in net.parameter_infos] == [("a/0", 3), ("a/1", 1)]
    assert net.layers_for_caffemodel()[2].parameter_names == ("a/0", "a/1")


def test_sharing_layers_must_agree(net_of: BuildNet) -> None:
    with pytest.raises(InputError, match=r"net\.prototxt:6: layer 'z': .* with lr_mult: 2.0, but lr_mult: 3.0 here"):
        net_of("\n" + SHARED.format("lr_mult: 2", "lr_mult: 3"), {"data": (2, 3)})
    with pytest.raises(InputError, match="shared with layer 'a', where it has shape 3 x 4, but 3 x 3 here"):
        net_of(SHARED.format("", ""), {"data": (2, 4)})


PERMISSIVE = """
layer { name: "a" type: "Convolution" bottom: "data" top: "h" param { name: "w" }
  convolution_param { num_output: 2 kernel_size: 2 bias_term: false weight_filler { type: "gaussian" } } }
layer { name: "z" type: "InnerProduct" bottom: "h" top: "y" param { name: "w" share_mode: PERMISSIVE } loss_weight: 1
  inner_product_param { num_output: 3 bias_term: false } }
"""


def test_permissive_sharing_takes_the_values_in_another_shape(net_of: BuildNet) -> None:
    """A filter 2 x 3 x 2 x 2 and a weight 3 x 8, over the same values in Caffe's order."""
    net, test = (net_of(PERMISSIVE, {"data": (5, 3, 3, 3)}, phase=phase) for phase in ("TRAIN", "TEST"))
    test.share_parameters(net)
    (w,) = (info.parameter for info in net.parameter_infos)
    x = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(1))

    output = net({"data": x})
    output.loss.backward()

    own = w.detach().clone().requires_grad_()
    h = torch.nn.functional.conv2d(x, own)
    expected = torch.nn.functional.linear(h.flatten(1), own.reshape(3, 8)).sum()
    expected.backward()
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(w.grad, own.grad)
    torch.testing.assert_close(test({"data": x}).loss, expected)
    assert [outline.parameter_shapes for outline in net.layers_for_caffemodel()] == [(), ((2, 3, 2, 2),), ((3, 8),)]


def test_a_layer_may_share_with_itself(net_of: BuildNet) -> None:
    params = 'param { name: "w" } param { name: "w" share_mode: PERMISSIVE }'
    settings = 'inner_product_param { num_output: 4 weight_filler { type: "uniform" } }'
    net = net_of(
        f'layer {{ name: "a" type: "InnerProduct" bottom: "data" top: "y" {params} {settings} }}', {"data": (1, 1)}
    )
    (w,) = (info.parameter for info in net.parameter_infos)

    torch.testing.assert_close(net({"data": torch.ones(1, 1)}).scalars["y"], 2 * w.detach().reshape(1, 4))


def test_permissive_sharing_needs_as_many_values(net_of: BuildNet) -> None:
    with pytest.raises(
        InputError, match=r"2 x 3 x 2 x 2, but 4 x 8 here; .* with share_mode: PERMISSIVE as many values"
    ):
        net_of(PERMISSIVE.replace("num_output: 3", "num_output: 4"), {"data": (5, 3, 3, 3)})
    with pytest.raises(InputError, match="2 x 3 x 2 x 2, but 3 x 8 here"):
        net_of(PERMISSIVE.replace("share_mode: PERMISSIVE", ""), {"data": (5, 3, 3, 3)})


def test_in_place_relu_spares_what_others_need(net_of: BuildNet) -> None:
    """The softmax needs its output for backward, and `early` reads the blob before it is overwritten."""
    net = net_of(
        """
layer { name: "s" type: "Softmax" bottom: "data" top: "p" }
layer { name: "r1" type: "ReLU" bottom: "p" top: "p" }
layer { name: "ip" type: "InnerProduct" bottom: "p" top: "h" inner_product_param { num_output: 2
  weight_filler { type: "gaussian" } } }
layer { name: "early" type: "InnerProduct" bottom: "h" top: "e" loss_weight: 1 inner_product_param { num_output: 2
  weight_filler { type: "gaussian" } } }
layer { name: "r2" type: "ReLU" bottom: "h" top: "h" loss_weight: 1 }
""",
        {"data": (3, 4)},
    )
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)

    net({"data": x}).loss.backward()

    w, _, v, _ = (info.parameter.detach() for info in net.parameter_infos)
    y = x.detach().clone().requires_grad_()
    h = y.softmax(1) @ w.T
    torch.autograd.backward((h @ v.T).sum() + h.relu().sum())
    torch.testing.assert_close(x.grad, y.grad)
    assert [layer.overwrites_bottom for layer in net.layers] == [False, False, False, False, False]


def test_in_place_relu_after_an_inner_product_overwrites(net_of: BuildNet) -> None:
    net = net_of(SMALL, INPUTS)

    assert [layer.overwrites_bottom for layer in net.layers] == [False, True, False, False]


@pytest.mark.parametrize("forced", [False, True])
def test_propagate_down_stops_the_gradient_unless_it_is_forced(net_of: BuildNet, forced: bool) -> None:
    text = SMALL.replace('bottom: "c" top: "y"', 'bottom: "c" top: "y" propagate_down: false')
    text = "force_backward: true\n" * forced + text
    net = net_of(text, INPUTS)

    net({"data": torch.ones(2, 2, 5, 6), "label": torch.tensor([0, 1])}).loss.backward()

    assert (net.parameter_infos[0].parameter.grad is not None) == forced
    assert net.parameter_infos[3].parameter.grad is not None


@pytest.mark.parametrize(("kernel", "image"), [((1, 1), (8, 2)), ((3, 1), (7, 1))])
def test_a_dilated_kernel_of_one_pixel_is_a_plain_one(
    net_of: BuildNet, kernel: tuple[int, int], image: tuple[int, int]
) -> None:
    """In groups, oneDNN ends the process on channels-last images if such a kernel comes to it as dilated."""
    text = (
        'layer {{ name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param {{ num_output: 4 group: 2 '
        'pad: 3 stride: 2 kernel_h: {} kernel_w: {} {} weight_filler {{ type: "xavier" }} }} }}'
    )
    inputs = {"data": (1, 40, *image)}
    dilated, plain = (net_of(text.format(*kernel, more), inputs) for more in ("dilation: 1 dilation: 3", "dilation: 1"))
    batch = {"data": torch.randn(*inputs["data"], generator=torch.Generator().manual_seed(3))}

    got, expected = (net.double()({"data": batch["data"].double()}).scalars["c"] for net in (dilated, plain))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(dilated.float()(batch).scalars["c"].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_net_without_loss(net_of: BuildNet) -> None:
    output = net_of('layer { name: "s" type: "Softmax" bottom: "data" top: "p" }', {"data": (2, 3)})(
        {"data": torch.zeros(2, 3)}
    )

    assert output.loss is None
    np.testing.assert_allclose(output.scalars["p"].numpy(), np.full((2, 3), 1 / 3), rtol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        'type: "InnerProduct" inner_product_param { num_output: 2 }',
        'type: "BatchNorm"',
        'type: "Dropout"',
        'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 }',
    ],
)
def test_a_layer_with_weights_or_draws_needs_a_name(net_of: BuildNet, layer: str) -> None:
    with pytest.raises(InputError, match=r"net\.prototxt:3: layer '': has no name, .*; give it one"):
        net_of(f'layer {{ bottom: "data" top: "y" {layer} }}', INPUTS)


def test_layers_without_weights_and_draws_need_no_name(net_of: BuildNet) -> None:
    pooling = "pooling_param { pool: MAX kernel_size: 2 }"
    net = net_of(
        'layer { type: "ReLU" bottom: "data" top: "r" } layer { type: "Dropout" bottom: "r" top: "d" }'
        f'layer {{ type: "Pooling" bottom: "d" top: "p" {pooling} }} layer {{ type: "Flatten" bottom: "p" top: "f" }}'
        'layer { type: "SoftmaxWithLoss" bottom: "f" bottom: "label" top: "loss" }',
        INPUTS,
        "TEST",
    )

    assert net({name: torch.zeros(shape) for name, shape in INPUTS.items()}).loss is not None


RELU = 'layer { name: "x" type: "ReLU" bottom: "data" top: "y"'
IP = 'layer { name: "x" type: "InnerProduct" bottom: "data" top: "y"'
INPUT = 'layer { name: "i" type: "Input" top: "z"'
ON_LABELS = 'bottom: "data" bottom: "label" top: "y"'
BAD = [
    (
        RELU.replace("bottom:", "\n bottom:").replace('"data"', '"dta"') + "}",
        r"net\.prototxt:4: layer 'x': bottom 'dta' .* 'data'",
    ),
    (RELU.replace('"y"', '"label"') + "}", "top 'label' is already the top of a layer above"),
    (RELU.replace('"x"', '"data"') + "}", "another layer of this phase has the same name"),
    (RELU + 'bottom: "label" }', "number of bottoms is 2; .* has 1"),
    (RELU + 'top: "z" }', "number of tops is 2; .* has 1"),
    (RELU + "param { } }", "param is given 1 times, but .* 0 parameters"),
    (RELU + "loss_weight: 1 loss_weight: 1 }", "loss_weight is given 2 times"),
    (RELU + "loss_weight: inf }", "loss_weight must be a finite"),
    (RELU + "propagate_down: true propagate_down: true }", "propagate_down is given 2"),
    (IP + "}", "num_output is missing"),
    (IP + "inner_product_param { num_output: 2 axis: 4 } }", "axis 4 of .* 2 x 2 x 5 x 6; allowed are -4 to 3"),
    (IP + "inner_product_param { num_output: 4000000000 } }", "more than 2147483647 values"),
    (IP + "param { lr_mult: nan } inner_product_param { num_output: 2 } }", "lr_mult and decay_mult must be finite"),
    (
        f'layer {{ name: "x" type: "SoftmaxWithLoss" {ON_LABELS} }}',
        "labels of shape 2 are 2, but .* 2 x 2 x 5 x 6 .* need 60",
    ),
    (
        f'layer {{ name: "x" type: "Accuracy" {ON_LABELS} accuracy_param {{ top_k: 3 }} }}',
        "top_k: 3 of 2 classes",
    ),
    (INPUT + "}", "shape is given 0 times; give it once"),
    (INPUT + "input_param { shape { dim: -1 } } }", "input 'z' would have shape -1"),
    (INPUT + 'bottom: "data" input_param { shape { dim: 1 } } }', "takes no bottom"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_refused_nets(net_of: BuildNet, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        net_of(text, INPUTS)


def test_a_bottom_without_any_layer_above(net_of: BuildNet) -> None:
    with pytest.raises(InputError, match="bottom 'data' is not the top of a layer above; nothing is above it in phase"):
        net_of(RELU + "}", {})


BAD_CONVOLUTIONS = [
    ("kernel_size: 3", "num_output is missing"),
    ("num_output: 3", "kernel_size is missing"),
    ("num_output: 3 kernel_size: 0", "kernel_size is missing or 0"),
    ("num_output: 3 kernel_size: 7", "kernel of 7 .dilation 1. covers 7, more than the padded input's 5"),
    ("num_output: 3 kernel_size: 3 dilation: 3", "covers 7"),
    ("num_output: 3 kernel_size: 3 kernel_h: 3", "exclude kernel_size"),
    ("num_output: 3 kernel_h: 3", "kernel_size is missing"),
    (
        "num_output: 3 kernel_size: 3 stride: 1 stride: 1 stride: 1",
        "stride is given 3 times; give it once for all, or 2 times, once for each spatial axis",
    ),
    ("num_output: 3 kernel_size: 3 stride: 0", "stride: 0 0; allowed are 1 to"),
    ("num_output: 3 kernel_size: 3 group: 2", "group: 2 does not divide num_output: 3"),
    ("num_output: 3 kernel_size: 3 group: 3", "group: 3 does not divide input channels: 2"),
    ("num_output: 3 kernel_size: 3 group: 0", "group: 0 does not divide"),
    ("num_output: 3 kernel_size: 1 pad: 4000000000", "allowed are 0 to 2147483647"),
    ("num_output: 3 kernel_size: 1 pad: 2000000000 stride: 2000000000", "the padded input would have shape"),
    ("num_output: 3 kernel_size: 1 axis: 3", "has 0 spatial axes"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_CONVOLUTIONS)
def test_refused_convolutions(net_of: BuildNet, settings: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"net.prototxt:3: layer 'x': .*{message}"):
        net_of(
            f'layer {{ name: "x" type: "Convolution" bottom: "data" top: "y" convolution_param {{ {settings} }} }}',
            INPUTS,
        )


BAD_POOLINGS = [
    ("stride: 2", "give either kernel_size, or both kernel_h and kernel_w"),
    ("kernel_size: 2 kernel_h: 2 kernel_w: 2", "give either kernel_size"),
    ("kernel_h: 2", "give either kernel_size"),
    ("kernel_size: 2 pad_h: 1", "give either pad, or both pad_h and pad_w"),
    ("kernel_size: 2 stride: 1 stride_h: 1 stride_w: 1", "give either stride"),
    ("kernel_size: 2 pad: 2", "pad smaller than the kernel"),
    ("kernel_size: 2 stride: 0", "kernel and stride must be 1 to"),
    ("kernel_size: 4000000000", "kernel and stride must be 1 to"),
    ("kernel_size: 1000000000 pad: 999999999 stride: 2147483647", "the padded input would have shape"),
    ("global_pooling: true kernel_size: 2", "remove the kernel's size"),
    ("global_pooling: true stride: 2", "remove pad and stride"),
    ("kernel_size: 2 pad: 1 pool: STOCHASTIC", "STOCHASTIC takes no pad"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_POOLINGS)
def test_refused_poolings(net_of: BuildNet, settings: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"net.prototxt:3: layer 'x': .*{message}"):
        net_of(f'layer {{ name: "x" type: "Pooling" bottom: "data" top: "y" pooling_param {{ {settings} }} }}', INPUTS)


def test_losses_of_one_number_a_sample_and_a_scaled_loss(net_of: BuildNet) -> None:
    loss = 'layer { name: "l" type: "ContrastiveLoss" bottom: "a" bottom: "b" bottom: "s" top: "l" }'
    scale = 'layer { name: "w" type: "Scale" bottom: "l" top: "y" scale_param { num_axes: 0 filler { value: 3 } } }'
    net = net_of(loss + scale, {"a": (4,), "b": (4,), "s": (4,)})
    a, b, s = torch.tensor([1.0, 2, 3, 4]), torch.tensor([1.0, 1, 3, 2]), torch.tensor([1.0, 1, 0, 0])
    assert float(net({"a": a, "b": b, "s": s}).scalars["y"]) == 0.75
