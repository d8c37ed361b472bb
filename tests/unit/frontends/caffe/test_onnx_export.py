"""ONNX export: names, the free batch, in-place work, what it refuses. Values: also tests/parity."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch

from samovar.core.errors import InputError
from samovar.formats.onnx import OnnxGraph
from samovar.frontends.caffe.layers.registry import register_layer
from samovar.frontends.caffe.module import Net
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.onnx_export import encode_onnx, export_onnx
from tests.parity.onnx_runtime import run_onnx

BuildNet = Callable[..., CaffeNet]
NetOf = Callable[..., Net]


@pytest.fixture
def module_of(net_of: BuildNet) -> NetOf:
    def build(text: str, inputs: Mapping[str, tuple[int, ...]], phase: Literal["TRAIN", "TEST"] = "TEST") -> Net:
        return Net(net_of(text, inputs, phase), inputs, phase)

    return build


def both(net: Net, images: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The results of onnxruntime and of the net, for its one input and output."""
    (found,) = run_onnx(encode_onnx(net), {net.input_names[0]: images}).values()
    with torch.no_grad():
        expected = net(torch.from_numpy(images))
    assert isinstance(expected, torch.Tensor)
    return found, expected.numpy()


POOLINGS = [
    "pool: MAX kernel_size: 3 stride: 2",
    "pool: AVE kernel_size: 3 stride: 2",
    "pool: AVE kernel_size: 3 stride: 2 pad: 1",
    "pool: AVE kernel_size: 2 stride: 3 pad: 1",
    "pool: MAX kernel_size: 2 stride: 3 pad: 1",
    "pool: MAX kernel_h: 2 kernel_w: 5 stride_h: 1 stride_w: 3 pad_h: 0 pad_w: 4",
    "pool: AVE kernel_size: 3 stride: 2 round_mode: FLOOR",
    "pool: STOCHASTIC kernel_size: 3 stride: 2",
    "pool: MAX global_pooling: true",
]


@pytest.mark.parametrize("size", [6, 7, 8, 9])
@pytest.mark.parametrize("settings", POOLINGS)
def test_pooling_rounds_and_divides_as_caffe(
    module_of: NetOf, rng: np.random.Generator, settings: str, size: int
) -> None:
    net = module_of(
        f'layer {{ name: "x" type: "Pooling" bottom: "data" top: "x" pooling_param {{ {settings} }} }}',
        {"data": (1, 2, size, size)},
    )
    found, expected = both(net, rng.random((3, 2, size, size), np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


IN_PLACE = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "y"
  convolution_param { num_output: 4 kernel_size: 3 group: 2 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "y" top: "y" }
layer { name: "scale" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true filler { value: 2 } } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
layer { name: "drop" type: "Dropout" bottom: "y" top: "y" }
"""


@pytest.mark.parametrize("batch_size", [None, 4])
def test_inputs_of_another_first_axis_keep_it(
    module_of: NetOf, rng: np.random.Generator, batch_size: int | None
) -> None:
    scale = 'layer { name: "x" type: "Scale" bottom: "data" bottom: "s" top: "y" scale_param { axis: 1 } }'
    net = module_of(scale, {"data": (2, 3), "s": (3,)})
    data, factors = rng.random((4, 3), np.float32), rng.random(3, np.float32)
    found = run_onnx(encode_onnx(net, batch_size), {"data": data, "s": factors})
    np.testing.assert_allclose(found["y"], data * factors, rtol=1e-6)


def test_names_are_those_of_blobs_and_parameters(module_of: NetOf, rng: np.random.Generator) -> None:
    net = module_of(IN_PLACE, {"data": (1, 4, 5, 5)})
    net.caffe_net.parameter_infos[4].parameter.data.fill_(1)  # BatchNorm's count
    content = encode_onnx(net)
    images = rng.standard_normal((2, 4, 5, 5)).astype(np.float32)
    assert run_onnx(content, {"data": images}).keys() == {"y"}
    assert b"conv/0" in content
    assert b"y@conv" in content
    found, expected = both(net, images)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_batch_is_free_through_reshapes(module_of: NetOf, rng: np.random.Generator, batch_size: int) -> None:
    net = module_of(
        """
layer { name: "a" type: "Reshape" bottom: "data" top: "a" reshape_param { shape { dim: 0 dim: 2 dim: -1 } } }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b"
  inner_product_param { num_output: 3 axis: 2 weight_filler { type: "xavier" } } }
layer { name: "c" type: "Flatten" bottom: "b" top: "c" }
layer { name: "d" type: "Softmax" bottom: "c" top: "d" }
""",
        {"data": (2, 4, 3)},
    )
    found, expected = both(net, rng.standard_normal((batch_size, 4, 3)).astype(np.float32))
    assert found.shape == (batch_size, 6)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_given_batch_size_is_fixed(module_of: NetOf) -> None:
    net = module_of('layer { name: "x" type: "TanH" bottom: "data" top: "x" }', {"data": (1, 3)})
    content = encode_onnx(net, batch_size=4)
    assert run_onnx(content, {"data": np.zeros((4, 3), np.float32)})["x"].shape == (4, 3)
    with pytest.raises(Exception, match="Got: 3 Expected: 4"):
        run_onnx(content, {"data": np.zeros((3, 3), np.float32)})


def test_a_batch_that_a_layer_fixes_is_fixed(module_of: NetOf) -> None:
    net = module_of(
        """
layer { name: "a" type: "InnerProduct" bottom: "data" top: "a" inner_product_param { num_output: 6 } }
layer { name: "b" type: "Reshape" bottom: "a" top: "b" reshape_param { shape { dim: 2 dim: 3 dim: 2 } } }
""",
        {"data": (2, 4)},
    )
    with pytest.raises(Exception, match="Got: 1 Expected: 2"):
        run_onnx(encode_onnx(net), {"data": np.zeros((1, 4), np.float32)})


def test_a_blob_called_like_a_parameter_is_not_taken_for_it(module_of: NetOf, rng: np.random.Generator) -> None:
    layer = (
        'layer {{ name: "{0}" type: "InnerProduct" bottom: "{1}" top: "{2}" '
        'inner_product_param {{ num_output: 4 weight_filler {{ type: "xavier" }} }} }}'
    )
    net = module_of(layer.format("a", "data", "b/0") + layer.format("b", "b/0", "b"), {"data": (1, 4)})
    found, expected = both(net, rng.standard_normal((1, 4)).astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_shared_parameters_stand_in_the_file_once(module_of: NetOf, rng: np.random.Generator) -> None:
    layer = (
        'layer {{ name: "{0}" type: "InnerProduct" bottom: "{1}" top: "{0}" param {{ name: "w" }} '
        'inner_product_param {{ num_output: 100 bias_term: false weight_filler {{ type: "xavier" }} }} }}'
    )
    net = module_of(layer.format("a", "data") + layer.format("b", "a"), {"data": (1, 100)})
    assert 40_000 < len(encode_onnx(net)) < 60_000
    found, expected = both(net, rng.standard_normal((2, 100)).astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_outputs_that_no_operator_makes(module_of: NetOf) -> None:
    net = module_of(
        """
layer { name: "s" type: "Split" bottom: "data" top: "one" top: "two" }
layer { name: "p" type: "Parameter" top: "p" parameter_param { shape { dim: 2 } } }
""",
        {"data": (1, 2)},
    )
    images = np.array([[1, 2], [3, 4]], np.float32)
    found = run_onnx(encode_onnx(net), {"data": images})
    assert found.keys() == {"one", "two", "p"}
    np.testing.assert_array_equal(found["one"], images)
    np.testing.assert_array_equal(found["two"], images)
    np.testing.assert_array_equal(found["p"], [0, 0])


def test_the_same_net_gives_the_same_bytes(module_of: NetOf) -> None:
    net = module_of(IN_PLACE, {"data": (1, 4, 5, 5)})
    assert encode_onnx(net) == encode_onnx(net)


def test_training_mode_is_refused(module_of: NetOf) -> None:
    net = module_of(IN_PLACE, {"data": (1, 4, 5, 5)}, "TRAIN")
    with pytest.raises(InputError, match=r"net.prototxt:\d+: layer 'norm': works as in training.* call eval\(\)"):
        encode_onnx(net)
    assert encode_onnx(net.eval())


def test_types_without_a_counterpart_are_refused_by_name(module_of: NetOf) -> None:
    net = module_of(
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "data" bottom: "label" top: "loss" }',
        {"data": (1, 3), "label": (1,)},
    )
    with pytest.raises(InputError, match="layer 'loss': a layer of type SoftmaxWithLoss cannot be exported to ONNX"):
        encode_onnx(net)


def test_types_of_a_program_are_refused(module_of: NetOf) -> None:
    register_layer("OnlyHere", lambda _settings, _shapes: torch.nn.Identity())
    net = module_of('layer { name: "x" type: "OnlyHere" bottom: "data" top: "x" }', {"data": (1, 3)})
    with pytest.raises(InputError, match="layer 'x': a layer of type OnlyHere cannot be exported to ONNX"):
        encode_onnx(net)


def test_a_file_is_written_whole_or_not_at_all(module_of: NetOf, tmp_path: Path) -> None:
    net = module_of('layer { name: "x" type: "TanH" bottom: "data" top: "x" }', {"data": (1, 3)})
    path = tmp_path / "net.onnx"
    path.write_bytes(b"before")
    export_onnx(net, path)
    assert path.read_bytes() == encode_onnx(net)
    assert list(tmp_path.glob("*.onnx*")) == [path]
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        export_onnx(net, tmp_path / "none" / "net.onnx")


def test_more_than_two_gigabytes_are_refused() -> None:
    graph = OnnxGraph("large")
    with pytest.raises(InputError, match="net 'large' has more than 2 GB of weights"):
        graph.add_constant("w", np.broadcast_to(np.float32(0), (1 << 29, 2)))
