"""`samovar convert --model`: the arrays of a file are compared with the net."""

from pathlib import Path

import pytest
import torch

import samovar
from samovar.core.errors import InputError
from samovar.files.conversion import convert

NET = """name: "two"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1" inner_product_param { num_output: 4 } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" inner_product_param { num_output: 5 } }
"""
OF_A_DATABASE = NET.replace(
    'type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } }',
    'type: "Data" top: "data" data_param { source: "nowhere_lmdb" batch_size: 2 backend: LMDB }',
)
TARGETS = ("b.caffemodel", "b.caffemodel.h5", "b.safetensors", "b.pt")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


def saved(model: Path, *without: str, **more: torch.Tensor) -> Path:
    """The net's state without the arrays whose names begin so, and with more of the layer ip2."""
    state = samovar.caffe.load(model).state_dict()
    state = {name: value for name, value in state.items() if not name.startswith(without or ("-",))}
    torch.save(state | {f"ip2.{name}": value for name, value in more.items()}, model.with_name("a.pt"))
    return model.with_name("a.pt")


@pytest.mark.parametrize("target", [*TARGETS, "b.onnx"])
def test_a_layer_that_the_file_lacks_does_not_come_from_its_filler(model: Path, target: str) -> None:
    with pytest.raises(InputError, match=r"a\.pt: lacks the arrays of layers \['ip2'\] of .*net\.prototxt; give"):
        convert(saved(model, "ip2"), model.with_name(target), model, force=False)
    assert not model.with_name(target).exists()


@pytest.mark.parametrize("target", [*TARGETS, "b.onnx"])
def test_an_array_of_another_shape_is_refused(model: Path, target: str) -> None:
    source = saved(model, weight=torch.ones(7, 3))
    with pytest.raises(InputError, match=r"'ip2', array 0 has shape 7 x 3, but 5 x 4 in the net"):
        convert(source, model.with_name(target), model, force=False)


@pytest.mark.parametrize("target", TARGETS)
def test_without_the_data_of_the_net_layers_are_compared_and_it_says_so(model: Path, target: str) -> None:
    whole, target_path = saved(model), model.with_name(target)
    model.write_text(OF_A_DATABASE)
    first, last = convert(whole, target_path, model, force=False)
    assert "shapes were not compared with this net; `samovar inspect` says why" in first
    assert "4 arrays" in last
    model.write_text(NET)
    source = saved(model, "ip2")
    model.write_text(OF_A_DATABASE)
    with pytest.raises(InputError, match=r"lacks the arrays of layers \['ip2'\]"):
        convert(source, target_path, model, force=True)


def test_a_layer_of_the_test_phase_alone_is_not_asked_for(model: Path) -> None:
    more = 'layer { name: "more" type: "PReLU" bottom: "ip2" top: "more" include { phase: TEST } }'
    source = saved(model)
    for net in (NET, OF_A_DATABASE):
        model.write_text(net + more)
        assert "4 arrays" in convert(source, model.with_name("b.caffemodel"), model, force=True)[-1]


def test_a_factor_from_another_blob_is_no_array(model: Path) -> None:
    more = 'layer { name: "times" type: "Scale" bottom: "ip2" bottom: "ip2" top: "times" scale_param { axis: 0 } }'
    source = saved(model)
    model.write_text(OF_A_DATABASE + more)
    assert "4 arrays" in convert(source, model.with_name("b.caffemodel"), model, force=False)[-1]


def test_onnx_leaves_out_layers_that_the_net_lacks_and_says_so(model: Path) -> None:
    """A deploy net lacks the classifiers that help in training."""
    source = saved(model)
    model.write_text(NET[: NET.index('layer { name: "ip2"')])
    first, _ = convert(source, model.with_name("b.onnx"), model, force=False)
    assert first == f"{source}: layers ['ip2.weight', 'ip2.bias'] are not in this net; ignored"
    with pytest.raises(InputError, match="no layer 'ip2'"):
        convert(source, model.with_name("b.caffemodel"), model, force=False)


@pytest.mark.parametrize("target", TARGETS)
def test_a_bias_does_not_take_the_place_of_weights(model: Path, target: str) -> None:
    source = saved(model, "ip2.weight")
    with pytest.raises(InputError, match=r"first array of layer 'ip2' is 'bias', not one of mean, .*--model"):
        convert(source, model.with_name(target), None, force=False)
    model.write_text('layer { name: "ip2" type: "Bias" bottom: "x" top: "y" }')
    source = saved_bias(model)
    assert "1 arrays" in convert(source, model.with_name(target), model, force=False)[-1]


def saved_bias(model: Path) -> Path:
    torch.save({"ip2.bias": torch.ones(5)}, model.with_name("bias.pt"))
    return model.with_name("bias.pt")
