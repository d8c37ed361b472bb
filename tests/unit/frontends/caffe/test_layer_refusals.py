"""The refusals of each layer, with the line and the next step."""

from collections.abc import Callable

import pytest
import torch

from samovar.core.errors import InputError
from samovar.frontends.caffe import parameters
from samovar.frontends.caffe.net import CaffeNet

BuildNet = Callable[..., CaffeNet]
INPUTS = {"data": (2, 3, 4, 4), "label": (2,), "matrix": (3, 3)}

REFUSED = [
    ("Clip", "", "clip_param is missing"),
    ("Clip", "clip_param { min: 0 max: inf }", "max: inf; it must be a finite number"),
    ("Log", "log_param { base: 1 }", "base: 1 has no logarithm"),
    ("Log", "log_param { base: 0 }", "base: 0.0; it must be above 0"),
    ("Exp", "exp_param { shift: 1e30 }", "base.shift is too large"),
    ("Power", "power_param { power: nan }", "power: nan; it must be a finite number"),
    ("Threshold", "loss_weight: 1", "type Threshold has no gradient and takes no loss_weight"),
    ("ArgMax", "argmax_param { top_k: 4 axis: 1 }", "top_k: 4 of 3 values"),
    ("LRN", "lrn_param { local_size: 2 }", "local_size: 2; it must be odd"),
    ("Dropout", "dropout_param { dropout_ratio: 1.5 }", "dropout_ratio: 1.5; it must be between 0 and 1"),
    ("Scale", "scale_param { axis: 2 num_axes: 3 }", "num_axes: 3 from axis 2 .* allowed are -1 .* to 2"),
    ("Scale", 'bottom: "label"', "second bottom of shape 2 does not fit the first, 2 x 3 x 4 x 4, from axis 1"),
    ("Concat", 'bottom: "label"', "bottoms of shapes 2 x 3 x 4 x 4 and 2 may differ on axis 1 only"),
    ("Slice", 'top: "z" slice_param { slice_point: 3 }', "slice_points 3 must rise and be between 1 and 2"),
    ("Crop", 'bottom: "label"', "bottoms of shapes 2 x 3 x 4 x 4 and 2; both need as many axes"),
    ("Flatten", "flatten_param { axis: 2 end_axis: 1 }", "end_axis 1 is before axis 2"),
    ("Reshape", "reshape_param { shape { dim: -2 } }", "sizes may be above 0"),
    ("Reshape", "reshape_param { shape { dim: 0 } axis: -1 }", "size 0 is 0 .keep., but .* has no axis 4"),
    ("Reshape", "reshape_param { shape { dim: 5 dim: -1 } }", "has 96 values, which do not fit 5 x -1"),
    ("Reshape", "reshape_param { axis: 6 }", "axis 6 of .* allowed are -5 to 4"),
    ("Reshape", "reshape_param { num_axes: 7 }", "num_axes: 7 from axis 0"),
    ("Eltwise", "", "number of bottoms is 1"),
    ("Embed", "embed_param { num_output: 3 }", "input_dim is missing or 0"),
    ("HingeLoss", 'bottom: "data"', "labels of shape 2 x 3 x 4 x 4; each of 2 samples has one"),
    ("InfogainLoss", 'bottom: "label" infogain_loss_param { axis: 0 }', "labels of shape 2 are 2, but"),
    ("ContrastiveLoss", 'bottom: "data" bottom: "label"', "they must be N x C, N x C and N"),
    ("EuclideanLoss", 'bottom: "label"', "have 96 and 2 values; both need as many"),
    ("EuclideanLoss", 'bottom: "matrix"', "the first axis is the samples' and must agree"),
    ("BatchNorm", "param { lr_mult: 0 } param { lr_mult: 2 }", "lr_mult: 2.0 for a running statistic"),
    (
        "Deconvolution",
        "convolution_param { num_output: 2 kernel_size: 1 pad: 2 }",
        "the output would have shape 2 x 2 x 0",
    ),
]


@pytest.mark.parametrize(("kind", "settings", "message"), REFUSED)
def test_refused(net_of: BuildNet, kind: str, settings: str, message: str) -> None:
    text = f'layer {{ name: "x" type: "{kind}" bottom: "data" top: "y"\n {settings} }}'

    with pytest.raises(InputError, match=rf"net.prototxt:[45]: layer 'x': .*{message}"):
        net_of(text, INPUTS)


NO_BOTTOM = [
    ("Parameter", 'top: "y"', "shape is missing"),
    ("DummyData", 'top: "y"', "sizes do not fit 1 tops"),
    ("DummyData", 'top: "y" dummy_data_param { num: 1 shape { dim: 2 } }', "both given; keep shape"),
    ("DummyData", 'top: "y" dummy_data_param { shape { dim: 2 } data_filler { type: "n" } }', "unknown filler 'n'"),
    (
        "DummyData",
        'top: "y" dummy_data_param { shape { dim: 2 } data_filler { type: "gaussian" sparse: 1 } }',
        "data_filler takes no sparse",
    ),
    ("Silence", "", "number of bottoms is 0"),
    ("ReLU", 'bottom: "data"', "number of tops is 0"),
]


@pytest.mark.parametrize(("kind", "settings", "message"), NO_BOTTOM)
def test_refused_without_a_bottom(net_of: BuildNet, kind: str, settings: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"layer 'x': .*{message}"):
        net_of(f'layer {{ name: "x" type: "{kind}" {settings} }}', INPUTS)


def test_values_that_are_no_index(net_of: BuildNet) -> None:
    embed = net_of(
        'layer { name: "x" type: "Embed" bottom: "w" top: "y" embed_param { num_output: 2 input_dim: 4 } }', {"w": (2,)}
    )
    with pytest.raises(InputError, match=r"layer 'x': input has values 1 to 4; allowed are 0 to 3"):
        embed({"w": torch.tensor([1, 4])})
    hinge = net_of('layer { name: "x" type: "HingeLoss" bottom: "s" bottom: "l" top: "y" }', {"s": (2, 3), "l": (2,)})
    with pytest.raises(InputError, match=r"layer 'x': labels are 0 to 3, but there are 3 classes"):
        hinge({"s": torch.zeros(2, 3), "l": torch.tensor([0, 3])})


def test_an_infogain_matrix_that_is_missing_or_of_another_size(net_of: BuildNet) -> None:
    inputs = {"s": (2, 4), "l": (2,), "h": (3, 3)}
    text = 'layer {{ name: "x" type: "InfogainLoss" bottom: "s" bottom: "l" {} top: "y" }}'

    with pytest.raises(InputError, match="no infogain matrix; give a third bottom, or source"):
        net_of(text.format(""), inputs)
    with pytest.raises(InputError, match=r"shape 3 x 3; for 4 classes it must be 4 x 4"):
        net_of(text.format('bottom: "h"'), inputs)
    with pytest.raises(InputError, match=r"'none\.binaryproto' does not exist"):
        net_of(text.format('infogain_loss_param { source: "none.binaryproto" }'), inputs)


def test_more_weights_than_the_machine_has_memory(net_of: BuildNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "available_bytes", lambda: 64 << 20)
    layer = 'layer {{ name: "{0}" type: "InnerProduct" bottom: "data" top: "{0}" {1} }}'
    one, other = (layer.format(name, "inner_product_param { num_output: 100000 }") for name in "xy")

    net_of(one, INPUTS)
    with pytest.raises(InputError, match=r"'y': with parameter 0 of shape 100000 x 48 .* 7\d MiB .*, 64 MiB are free"):
        net_of(one + other, INPUTS)


def test_blobs_count_in_training_and_for_every_worker(net_of: BuildNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "available_bytes", lambda: 64 << 20)
    text = 'layer { name: "t" type: "Tile" bottom: "data" top: "t" tile_param { tiles: 60000 } }'  # 23 MB of its top
    again = 'layer { name: "p" type: "Power" bottom: "t" top: "p" }'

    net_of(text + again, INPUTS)
    net_of(text + again + again.replace('"p"', '"q"'), INPUTS, "TEST")
    with pytest.raises(InputError, match=r"'q': with top 'q' of shape 2 x 180000 x .* blobs\), 64 MiB are free"):
        net_of(text + again + again.replace('"p"', '"q"'), INPUTS)


def test_no_tensor_is_made_before_all_shapes_are_known(net_of: BuildNet, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = []
    monkeypatch.setattr(parameters, "_fill", lambda *_arguments: filled.append(1))
    filler = 'inner_product_param { num_output: 4 weight_filler { type: "xavier" } }'
    layer = f'layer {{ name: "x" type: "InnerProduct" bottom: "data" top: "x" {filler} }}'

    with pytest.raises(InputError, match="nowhere"):
        net_of(layer + 'layer { name: "y" type: "ReLU" bottom: "nowhere" top: "y" }', INPUTS)
    assert not filled


def test_an_address_space_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "available_bytes", lambda: 64 << 20)
    monkeypatch.setattr(parameters, "address_space_left", lambda: 1 << 20)
    assert parameters._free_bytes(2) == 2 << 20


COUNTED = [
    'layer { name: "r" type: "Reshape" bottom: "data" top: "r" reshape_param { shape { dim: 4 dim: -1 } } } '
    'layer { name: "x" type: "InnerProduct" bottom: "r" top: "y" inner_product_param { num_output: 2 } }',
    'layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 4 } } } '
    'layer { name: "x" type: "Scale" bottom: "data" bottom: "d" top: "y" }',  # 4 channels, not 4 samples
]


@pytest.mark.parametrize("text", COUNTED)
def test_a_part_of_a_batch_that_a_shape_counts_is_refused_with_its_layer(net_of: BuildNet, text: str) -> None:
    net = net_of(text, {"data": (4, 4)})
    net({"data": torch.zeros(4, 4)})
    with pytest.raises(InputError, match=r"layer 'x': a batch of 2 samples does not pass, .* built for 4: .* 0 or -1"):
        net({"data": torch.zeros(2, 4)})
