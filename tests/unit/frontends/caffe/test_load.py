"""`samovar.caffe.load`: a Caffe net that behaves as an ordinary torch module."""

import copy
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

import samovar
from samovar.core.errors import InputError
from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel, encode_caffemodel_hdf5

BODY = """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param { num_output: 4 kernel_size: 3
  weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "inception_3a/ip" type: "InnerProduct" bottom: "conv1" top: "ip" param { lr_mult: 1 }
  param { lr_mult: 2 decay_mult: 0 } inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
"""
DEPLOY = 'name: "small" input: "data" input_dim: 2 input_dim: 1 input_dim: 6 input_dim: 6 ' + BODY
TRAIN = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "nowhere" batch_size: 8 backend: LMDB } transform_param { crop_size: 6 mean_value: 1
  mean_value: 2 } }
layer { name: "data" type: "Input" top: "data" include { phase: TEST }
  input_param { shape { dim: 1 dim: 2 dim: 6 dim: 6 } } }
layer { name: "drop" type: "Dropout" bottom: "data" top: "data" }
layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn" }
layer { name: "ip" type: "InnerProduct" bottom: "bn" top: "ip" inner_product_param { num_output: 3
  weight_filler { type: "xavier" } } }
layer { name: "l" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "l" loss_weight: 0.5
  include { phase: TRAIN } }
layer { name: "sum" type: "Reduction" bottom: "ip" top: "sum" loss_weight: 2 include { phase: TRAIN } }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "net.prototxt"
    path.write_text(text)
    return path


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def test_a_deploy_net_is_a_function_of_one_tensor(tmp_path: Path) -> None:
    net = samovar.caffe.load(written(tmp_path, DEPLOY))
    x = images(5, 1, 6, 6)
    state = net.state_dict()
    assert list(state) == ["conv1.weight", "conv1.bias", "inception_3a/ip.weight", "inception_3a/ip.bias"]
    hidden = F.relu(F.conv2d(x, state["conv1.weight"], state["conv1.bias"]))
    expected = F.linear(hidden.flatten(1), state["inception_3a/ip.weight"], state["inception_3a/ip.bias"])
    for given in (net(x), net(data=x)):
        torch.testing.assert_close(given, expected)
    net(x).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert not net.training
    assert net.input_shapes == {"data": (2, 1, 6, 6)}


def test_a_training_net_gives_its_losses_with_their_graphs(tmp_path: Path) -> None:
    net = samovar.caffe.load(written(tmp_path, TRAIN), phase="TRAIN")
    assert net.training
    assert net.input_shapes == {"data": (8, 2, 6, 6), "label": (8,)}
    outputs = net(images(4, 2, 6, 6), torch.tensor([0, 1, 2, 0]))
    assert sorted(outputs) == ["l", "sum"]
    torch.testing.assert_close(outputs.loss, 0.5 * outputs["l"] + 2 * outputs["sum"].sum())
    outputs["l"].backward()
    assert net.get_parameter("ip.weight").grad is not None


def test_train_and_eval_switch_random_layers_and_statistics(tmp_path: Path) -> None:
    net = samovar.caffe.load(written(tmp_path, TRAIN), batch_size=4)
    assert dict(net.named_buffers()).keys() == {"bn.mean", "bn.variance", "bn.count"}
    x = images(4, 2, 6, 6)
    net.eval()
    assert torch.equal(net(x), net(x))
    assert net.get_buffer("bn.count") == 0
    net.train()
    torch.manual_seed(1)
    first, second = net(x), net(x)
    assert not torch.equal(first, second)
    assert net.get_buffer("bn.count") > 1
    torch.manual_seed(1)
    assert torch.equal(net(x), first)


def test_a_layers_own_phase_stays(tmp_path: Path) -> None:
    text = DEPLOY + 'layer { name: "d" type: "Dropout" bottom: "ip" top: "ip" phase: TRAIN }'
    net = samovar.caffe.load(written(tmp_path, text))
    x = images(64, 1, 6, 6)
    assert (net.eval()(x) == 0).any()


def test_copies_types_and_optimizers(tmp_path: Path) -> None:
    net = samovar.caffe.load(written(tmp_path, TRAIN), phase="TRAIN")
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.get_parameter("ip.weight").zero_()
        twin.get_buffer("bn.mean").fill_(7)
    assert net.get_parameter("ip.weight").abs().sum() > 0
    assert net.get_buffer("bn.mean").abs().sum() == 0
    net.load_state_dict(twin.state_dict())
    assert net.get_buffer("bn.mean").tolist() == [7, 7]
    doubled = net.double()(images(2, 2, 6, 6).double(), torch.tensor([0, 1]))
    assert doubled["sum"].dtype == torch.float64


LSTM = """
layer { name: "x" type: "Input" top: "x" top: "cont" top: "static" input_param { shape { dim: 3 dim: 2 dim: 4 }
  shape { dim: 3 dim: 2 } shape { dim: 2 } } }
layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" bottom: "static" top: "h" recurrent_param { num_output: 5
  weight_filler { type: "uniform" } } }
"""


def test_states_go_on_after_inference_and_conversion(tmp_path: Path) -> None:
    net = samovar.caffe.load(written(tmp_path, LSTM))
    inputs = images(3, 2, 4), torch.ones(3, 2), images(2)

    with torch.inference_mode():
        first = net(*inputs)
    net(*inputs).sum().backward()
    doubled = net.double()(*(value.double() for value in inputs))

    assert first.shape == (3, 2, 5)
    assert doubled.dtype == torch.float64
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_a_net_in_bfloat16(tmp_path: Path) -> None:
    """As with any module, `to` converts all layers with parameters, whatever the type of the inputs."""
    layers = """
layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn" }
layer { name: "up" type: "Deconvolution" bottom: "bn" top: "up" convolution_param { num_output: 2 kernel_size: 2
  weight_filler { type: "xavier" } } }
layer { name: "prelu" type: "PReLU" bottom: "up" top: "up" }
"""
    net = samovar.caffe.load(written(tmp_path, DEPLOY[: DEPLOY.index("layer")] + layers))
    half = copy.deepcopy(net).to(torch.bfloat16)

    for is_training in (False, True):
        expected = net.train(is_training)(images(2, 1, 6, 6)).detach()
        for kind in (torch.float32, torch.bfloat16):
            found = half.train(is_training)(images(2, 1, 6, 6).to(kind)).detach()
            assert float((found - expected).norm() / expected.norm()) < 0.02


def test_groups_for_an_optimizer_follow_lr_mult(tmp_path: Path) -> None:
    net = samovar.caffe.load(written(tmp_path, DEPLOY))
    groups = net.parameter_groups(lr=0.1, weight_decay=0.01)
    assert [(len(g["params"]), g["lr"], g["weight_decay"]) for g in groups] == [(3, 0.1, 0.01), (1, 0.2, 0)]
    torch.optim.SGD(groups, lr=0.1)


def test_groups_hold_the_parameters_that_a_loaded_state_brought(tmp_path: Path) -> None:
    """`assign=True` puts new parameters into the layers; an optimizer of the old ones would train nothing."""
    net = samovar.caffe.load(written(tmp_path, DEPLOY))
    net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)
    grouped = [parameter for group in net.parameter_groups(lr=0.1) for parameter in group["params"]]
    assert {id(parameter) for parameter in grouped} == {id(parameter) for parameter in net.parameters()}


def test_a_layer_is_not_replaced_without_an_effect(tmp_path: Path) -> None:
    net = samovar.caffe.load(written(tmp_path, DEPLOY))
    with pytest.raises(InputError, match=r"its layer 'conv1' cannot be replaced .*; change the layer in the prototxt"):
        net.conv1 = torch.nn.Identity()
    net.conv1 = net.conv1
    net.note = "kept"  # anything else may be set
    net.head = torch.nn.Linear(3, 2)
    assert net.note == "kept"


def test_weights_of_every_form(tmp_path: Path) -> None:
    path = written(tmp_path, DEPLOY)
    net = samovar.caffe.load(path, seed=5)
    state = net.state_dict()
    arrays = {name: value.numpy() for name, value in state.items()}
    records = [
        LayerRecord(layer, "", (), (), [arrays[f"{layer}.weight"], arrays[f"{layer}.bias"]])
        for layer in ("conv1", "inception_3a/ip")
    ]
    (tmp_path / "w.caffemodel").write_bytes(encode_caffemodel("small", records))
    (tmp_path / "w.caffemodel.h5").write_bytes(encode_caffemodel_hdf5(records))
    safetensors.torch.save_file({n: v.contiguous() for n, v in state.items()}, tmp_path / "w.safetensors")
    numbered = {f"{n.rpartition('.')[0]}/{int(n.endswith('bias'))}": v.contiguous() for n, v in state.items()}
    safetensors.torch.save_file(numbered, tmp_path / "snapshot.safetensors")
    torch.save(state, tmp_path / "w.pt")
    torch.save({"epoch": 3, "state_dict": {f"module.{n}": v for n, v in state.items()}}, tmp_path / "checkpoint.pth")
    files = ["w.caffemodel", "w.caffemodel.h5", "w.safetensors", "snapshot.safetensors", "w.pt", "checkpoint.pth"]
    for name in files:
        loaded = samovar.caffe.load(path, tmp_path / name, seed=6)
        for key, value in loaded.state_dict().items():
            assert torch.equal(value, state[key]), (name, key)


def test_later_weights_win_and_missing_layers_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, DEPLOY)
    for name, value in (("a", 1.0), ("b", 2.0)):
        arrays = [np.full((4, 1, 3, 3), value, np.float32), np.zeros(4, np.float32)]
        (tmp_path / name).write_bytes(encode_caffemodel("", [LayerRecord("conv1", "", (), (), arrays)]))
    with pytest.warns(UserWarning, match="inception_3a/ip.*fillers"):
        net = samovar.caffe.load(path, [tmp_path / "a", str(tmp_path / "b")])
    assert net.get_parameter("conv1.weight").unique().tolist() == [2.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"phase": "LEARN"}, "phase is 'LEARN'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"input_shapes": {"dta": (1, 2)}}, "not an input of phase TEST; did you mean 'data'"),
        ({"input_shapes": {"data": (1, 1, 2, 2)}}, "conv1"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        samovar.caffe.load(written(tmp_path, DEPLOY), **arguments)  # type: ignore[arg-type]


def test_a_source_that_is_not_there_asks_for_shapes(tmp_path: Path) -> None:
    text = TRAIN.replace("crop_size: 6", "")
    advice = r"input_shapes=\{'data': .*--shape data=\.\.\. to samovar inspect or predict$"
    with pytest.raises(InputError, match=f"nowhere.*{advice}"):
        samovar.caffe.load(written(tmp_path, text), phase="TRAIN")
    net = samovar.caffe.load(written(tmp_path, text), phase="TRAIN", input_shapes={"data": (2, 2, 5, 5)})
    assert net.input_shapes == {"data": (2, 2, 5, 5), "label": (2,)}


def test_wrong_inputs(tmp_path: Path) -> None:
    net = samovar.caffe.load(written(tmp_path, DEPLOY))
    x = images(2, 1, 6, 6)
    for call, message in (
        (net, "input 'data' is missing"),
        (lambda: net(x, x), "got 2 inputs; it takes"),
        (lambda: net(date=x), "did you mean 'data'"),
        (lambda: net(x, data=x), "given twice"),
        (lambda: net(x[0]), "1 x 6 x 6; it was built for 2 x 1 x 6 x 6"),
        (lambda: net(x.numpy()), "is a ndarray"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_layers_of_any_name(tmp_path: Path) -> None:
    names = ["a.b", "a", "a.b.c", "type", "forward", "x/1", "..", "é 1"]
    layers = "".join(
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "t{index}" '
        "inner_product_param { num_output: 2 } }\n"
        for index, (name, bottom) in enumerate(zip(names, ["data", *(f"t{i}" for i in range(7))], strict=True))
    )
    path = written(tmp_path, 'input: "data" input_shape { dim: 1 dim: 3 }' + layers)
    net = samovar.caffe.load(path)
    state = net.state_dict()
    assert sorted(state) == sorted(f"{name}.{kind}" for name in names for kind in ("weight", "bias"))
    net.load_state_dict({name: torch.ones_like(value) for name, value in state.items()})
    assert all((parameter == 1).all() for parameter in net.parameters())
    assert net(images(4, 3)).shape == (4, 2)


@pytest.mark.parametrize("name", ["training", "block.training.1", "training.a"])
def test_a_name_of_torchs_own_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(f"""layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 1 }} }} }}
        layer {{ name: "{name}" type: "ReLU" bottom: "data" top: "y" }}""")
    with pytest.raises(InputError, match=rf"net.prototxt:2: layer '{name}': .*'training' of their own; rename"):
        samovar.caffe.load(path)


@pytest.mark.parametrize("name", ["w.caffemodel", "w.caffemodel.h5", "w.safetensors", "w.pt"])
def test_saved_weights_are_loaded_again(tmp_path: Path, name: str) -> None:
    net = samovar.caffe.load(written(tmp_path, TRAIN), phase="TRAIN")
    net(images(4, 2, 6, 6), torch.tensor([0, 1, 2, 0])).loss.backward()
    for _ in range(2):  # also over what is there
        samovar.caffe.save(net, tmp_path / name)
    again = samovar.caffe.load(tmp_path / "net.prototxt", tmp_path / name, seed=7)
    for key, value in again.state_dict().items():
        assert torch.equal(value, net.state_dict()[key]), key
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["net.prototxt", name])


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    net = samovar.caffe.load(written(tmp_path, DEPLOY))
    with pytest.raises(InputError, match="not that of a weights file"):
        samovar.caffe.save(net, tmp_path / "w.bin")
    with pytest.raises(InputError, match="cannot be written"):
        samovar.caffe.save(net, tmp_path / "nowhere/w.pt")
    with torch.no_grad():
        net.get_parameter("conv1.bias")[1] = torch.nan
    with pytest.raises(InputError, match="'conv1', array 1 has 1 values"):
        samovar.caffe.save(net, tmp_path / "w.pt")


def test_one_stage_may_be_given_by_its_name(tmp_path: Path) -> None:
    text = DEPLOY + 'layer { name: "r" type: "ReLU" bottom: "ip" top: "y" include { stage: "deploy" } }'
    assert samovar.caffe.load(written(tmp_path, text), stages="deploy").output_names == ("y",)
