"""`samovar convert`: round trips between all files that hold the same, and files that are not what they say."""

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import safetensors.torch
import torch

import samovar
from samovar.checkpoint.reading import read_snapshot
from samovar.checkpoint.store import SnapshotStore
from samovar.core.errors import InputError
from samovar.core.stateful import State
from samovar.files.conversion import convert
from samovar.files.inspection import describe
from samovar.files.inspection_nets import Wanted
from samovar.formats.caffe.blob import encode_mean
from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel, read_caffemodel
from samovar.formats.caffe.schema import message_class
from samovar.formats.caffe.solverstate import SolverState, encode_solverstate
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import build_net
from samovar.frontends.caffe.weight_files import read_stored
from samovar.frontends.caffe.weights import load_weights
from tests.multiproc.command import run

NET = """
name: "mixed"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "block.1/conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4
  kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true
  filler { type: "uniform" } } }
layer { name: "slope" type: "PReLU" bottom: "conv" top: "conv" }
layer { name: "twin a" type: "InnerProduct" bottom: "conv" top: "a" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "twin b" type: "InnerProduct" bottom: "conv" top: "b" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
layer { name: "prob" type: "Softmax" bottom: "sum" top: "prob" }
"""
LAYERS = ("block.1/conv", "bn", "scale", "slope", "twin a", "twin b")
KINDS = (".caffemodel", ".caffemodel.h5", ".safetensors", ".pt", ".pth")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


@pytest.fixture
def state(model: Path) -> dict[str, torch.Tensor]:
    """A state of the net with running sums that are not zero."""
    net = samovar.caffe.load(model, seed=4)
    generator = torch.Generator().manual_seed(1)
    for name, buffer in net.named_buffers():
        buffer.copy_(torch.rand(buffer.shape, generator=generator) if name != "bn.count" else torch.ones(1))
    return net.state_dict()


@pytest.fixture
def weights(model: Path, state: dict[str, torch.Tensor]) -> Path:
    """The state as torch writes it."""
    path = model.with_name("weights.pt")
    torch.save(state, path)
    return path


def converted(source: Path, target: str, model: Path | None = None) -> Path:
    path = source.with_name(target)
    convert(source, path, model, force=False)
    return path


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_weights_come_back_bit_by_bit(
    weights: Path, model: Path, state: dict[str, torch.Tensor], first: str, second: str
) -> None:
    there = converted(weights, f"there{first}", model)
    back = converted(there, f"back{second}", model)
    loaded = samovar.caffe.load(model, back, seed=9).state_dict()
    assert list(loaded) == list(state)
    for name, value in state.items():
        assert torch.equal(loaded[name], value), name


def test_safetensors_are_a_state_dict(weights: Path, model: Path, state: dict[str, torch.Tensor]) -> None:
    path = converted(converted(weights, "a.caffemodel", model), "a.safetensors")
    arrays = safetensors.torch.load_file(path)
    assert {"block.1/conv.weight", "bn.variance", "scale.scale", "slope.slope", "twin b.bias"} <= arrays.keys()
    net = samovar.caffe.load(model, seed=9)
    net.load_state_dict(arrays)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())


@pytest.mark.parametrize("between", [".safetensors", ".caffemodel"])
def test_our_caffemodel_comes_back_byte_by_byte(weights: Path, model: Path, between: str) -> None:
    """Names, types, bottoms and tops too, without the net."""
    first = converted(weights, "first.caffemodel", model)
    last = converted(converted(first, f"between{between}"), "last.caffemodel")
    assert last.read_bytes() == first.read_bytes()
    stored = message_class("NetParameter").FromString(last.read_bytes())
    assert (stored.name, [layer.type for layer in stored.layer][1]) == ("mixed", "Convolution")


def test_names_alone_are_enough_for_a_caffemodel(weights: Path, state: dict[str, torch.Tensor]) -> None:
    arrays = read_caffemodel(converted(weights, "bare.caffemodel"))
    assert sorted(arrays) == sorted(LAYERS)
    for index, name in enumerate(("mean", "variance", "count")):
        np.testing.assert_array_equal(arrays["bn"][index], state[f"bn.{name}"])


@pytest.mark.parametrize("with_model", [True, False])
def test_opencv_reads_what_we_write(weights: Path, model: Path, with_model: bool) -> None:
    written = converted(weights, "ours.caffemodel", model if with_model else None)
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    theirs = cv2.dnn.readNetFromCaffe(str(model), str(written))
    theirs.setInput(images.numpy())
    with torch.no_grad():
        ours = samovar.caffe.load(model, weights)(images)
    np.testing.assert_allclose(theirs.forward(), ours, rtol=0, atol=1e-4 * float(ours.max()))


def test_old_layers_get_todays_names_and_axes(tmp_path: Path) -> None:
    net = message_class("NetParameter")()
    layer = net.layers.add(name="f1", type=14)  # INNER_PRODUCT
    layer.blobs.add(num=1, channels=1, height=2, width=3, data=range(6))
    layer.blobs.add(num=1, channels=1, height=1, width=2, data=range(2))
    old = net.layers.add()
    old.layer.name, old.layer.type = "c0", "conv"
    old.layer.blobs.add(num=2, channels=1, height=1, width=1, data=range(2))
    (tmp_path / "old.caffemodel").write_bytes(net.SerializeToString())
    arrays = safetensors.torch.load_file(converted(tmp_path / "old.caffemodel", "new.safetensors"))
    shapes = {name: tuple(value.shape) for name, value in arrays.items()}
    assert shapes == {"f1.weight": (2, 3), "f1.bias": (2,), "c0.weight": (2, 1, 1, 1)}


def test_solver_states_keep_all(tmp_path: Path) -> None:
    history = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(0, np.float32), np.array(7, np.float32)]
    content = encode_solverstate(SolverState(15, "snap_iter_15.caffemodel", history, current_step=2))
    source = tmp_path / "a.solverstate"
    source.write_bytes(content)
    back = converted(converted(source, "b.solverstate.h5"), "c.solverstate")
    assert back.read_bytes() == content
    assert converted(source, "d.h5").read_bytes()[1:4] == b"HDF"


def test_mean_images_keep_all(tmp_path: Path) -> None:
    mean = np.random.default_rng(1).random((3, 4, 5), np.float32)
    source = tmp_path / "mean.binaryproto"
    source.write_bytes(encode_mean(mean))
    array = converted(source, "mean.npy")
    np.testing.assert_array_equal(np.load(array), mean)
    assert converted(array, "again.binaryproto").read_bytes() == source.read_bytes()


def test_onnx_needs_the_net(weights: Path, model: Path) -> None:
    with pytest.raises(InputError, match="--model"):
        converted(weights, "net.onnx")
    path = converted(weights, "net.onnx", model)
    assert path.stat().st_size > weights.stat().st_size // 4


def test_the_momentum_of_a_snapshot_is_not_taken_as_weights(weights: Path, model: Path) -> None:
    """It has the names and shapes of the weights, and lies next to them."""
    net = build_net(load_net(model), "TRAIN", {}, seed=9)
    arrays: State = {info.name: info.parameter.detach().numpy() for info in net.parameter_infos}
    saved = SnapshotStore(model.parent / "snapshots").save(2, {"weights": arrays, "momentum": arrays})
    part = saved / "momentum.safetensors"
    with pytest.raises(InputError, match=r"holds the momentum of a snapshot, not its weights; give weights.safetens"):
        load_weights(net, [part])
    with pytest.raises(InputError, match=r"momentum.safetensors: holds the momentum"):
        converted(part, "m.caffemodel", model)
    assert load_weights(net, [saved / "weights.safetensors"]) == ()
    assert read_snapshot(saved).step == 2
    assert describe(part, Wanted()).kind == "tensors by name"


SHARING = """name: "siam"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "a" type: "InnerProduct" bottom: "data" top: "a" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 4 } }
layer { name: "b" type: "InnerProduct" bottom: "data" top: "b" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 4 } }
layer { name: "c" type: "InnerProduct" bottom: "data" top: "c" param { name: "w" }
  inner_product_param { num_output: 4 } }
"""


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_that_caffe_left_out_come_from_the_layer_that_shares_them(tmp_path: Path, kind: str) -> None:
    """In HDF5, Caffe writes a shared array with the first of its layers alone."""
    model, source = tmp_path / "net.prototxt", tmp_path / "caffe.caffemodel.h5"
    model.write_text(SHARING)
    generator = np.random.default_rng(1)
    with h5py.File(source, "w") as file:
        file["data/a/0"], file["data/a/1"] = generator.random((4, 3), np.float32), generator.random(4, np.float32)
        file.create_group("data/b")
        file["data/c/1"] = generator.random(4, np.float32)
        a, bias, own = (file[f"data/{name}"][()] for name in ("a/0", "a/1", "c/1"))
    assert describe(source, Wanted()).kind == "weights (caffemodel)"
    with pytest.raises(InputError, match=r"layer 'c' lacks an array, .* with --model"):
        converted(source, f"without{kind}")
    stored = read_stored(converted(source, f"with{kind}", model), None)
    found = {record.name: record.blobs for record in stored.layers if record.blobs}
    for name, arrays in {"a": (a, bias), "b": (a, bias), "c": (a, own)}.items():
        assert all(map(np.array_equal, found[name], arrays)), name
        assert len(found[name]) == 2


def test_numbers_that_a_snapshot_leaves_out_come_from_the_layer_that_shares_them(tmp_path: Path) -> None:
    model, source = tmp_path / "net.prototxt", tmp_path / "weights.safetensors"
    model.write_text(SHARING)
    net = build_net(load_net(model), "TRAIN", {}, seed=9)
    arrays = {info.name: info.parameter.detach() for info in net.parameter_infos}
    assert arrays.keys() == {"a/0", "a/1", "c/1"}
    safetensors.torch.save_file(arrays, source)
    with pytest.raises(InputError, match=r"layer 'c' lacks an array, .* with --model"):
        converted(source, "without.caffemodel")
    found = read_caffemodel(converted(source, "with.caffemodel", model))
    assert all(map(np.array_equal, found["c"], (arrays["a/0"], arrays["c/1"])))
    assert all(map(np.array_equal, found["b"], (arrays["a/0"], arrays["a/1"])))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("bn.mean", "twin a.bias"), "layer 'bn' of type BatchNorm has 1 arrays"),
        (("twin a.bias",), r"InnerProduct with 1 array\(s\) has weight, and this file 'twin a.bias'"),
        (("scale.weight", "scale.bias"), "has scale, bias, and this file 'scale.weight'"),
        (("twin a.weight", "twin a/0"), "arrays of layer 'twin a' have names and numbers"),
        (("twin a/0", "twin a/00"), "'twin a/00' does not name an array"),
        (("scale/1",), "layer 'scale' lacks an array"),
    ],
)
def test_an_array_does_not_take_the_place_of_another(
    tmp_path: Path, model: Path, names: tuple[str, ...], message: str
) -> None:
    torch.save({name: torch.ones(3) for name in names}, tmp_path / "a.pt")
    with pytest.raises(InputError, match=message):
        converted(tmp_path / "a.pt", "b.caffemodel", model)


def test_nothing_is_overwritten_unasked(weights: Path, model: Path) -> None:
    target = converted(weights, "a.caffemodel", model)
    before = target.read_bytes()
    with pytest.raises(InputError, match=r"exists already.*--force"):
        converted(weights, "a.caffemodel")
    assert target.read_bytes() == before
    convert(weights, target, None, force=True)
    assert target.read_bytes() != before
    with pytest.raises(InputError, match="source itself"):
        convert(target, target, None, force=True)
    with pytest.raises(InputError, match="cannot be a file"):
        convert(weights, weights.parent / "nowhere/a.pt", None, force=False)


def test_a_failed_conversion_leaves_nothing(weights: Path, model: Path) -> None:
    target = converted(weights, "a.safetensors", model)
    content = target.read_bytes()
    target.write_bytes(content[:-9])
    before = sorted(target.parent.iterdir())
    with pytest.raises(InputError, match=r"a\.safetensors.*cut short"):
        converted(target, "b.caffemodel")
    assert sorted(target.parent.iterdir()) == before


def write(path: Path, layers: dict[str, list[list[float]]]) -> None:
    records = [
        LayerRecord(name, "InnerProduct", (), (), [np.array(values, np.float32) for values in blobs])
        for name, blobs in layers.items()
    ]
    path.write_bytes(encode_caffemodel("", records))


def savez(path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, a=np.ones(3))


def npy_of_size(size: int) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, {size}), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


BAD: dict[str, tuple[str, Callable[[Path], object], str, str]] = {
    "not a number": ("a.caffemodel", lambda p: write(p, {"ip": [[1, float("nan")]]}), "b.pt", "'ip', array 0 has 1"),
    "not a number by name": ("a.pt", lambda p: torch.save({"ip.bias": torch.tensor([torch.inf])}, p), "b.h5", "'ip'"),
    "not a number of a state": (
        "a.solverstate",
        lambda p: p.write_bytes(encode_solverstate(SolverState(5, "", [np.array([1, np.nan], np.float32)]))),
        "b.h5",
        "holds values that are NaN or infinite",
    ),
    "cut": ("a.caffemodel", lambda p: p.write_bytes(b"\x0a\x05abc"), "b.pt", "cut short"),
    "empty": ("a.caffemodel", lambda p: p.touch(), "b.pt", "0 bytes"),
    "missing": ("a.caffemodel", lambda _: None, "b.pt", "no such file"),
    "names of another net": (
        "a.pt",
        lambda p: torch.save({"bn1.running_mean": torch.ones(2)}, p),
        "b.caffemodel",
        "'bn1.running_mean'",
    ),
    "a whole module": ("a.pt", lambda p: torch.save(torch.nn.Linear(1, 1), p), "b.h5", "nothing in it was run"),
    "no tensors": ("a.pt", lambda p: torch.save({"ip.weight": 3}, p), "b.h5", "'ip.weight' is a int"),
    "a list": ("a.pt", lambda p: torch.save([torch.ones(1)], p), "b.h5", "holds a list"),
    "complex": ("a.pt", lambda p: torch.save({"ip.bias": torch.ones(1) * 1j}, p), "b.h5", "complex64"),
    "an endless tensor": (
        "a.pt",
        lambda p: torch.save({"ip.bias": torch.ones(1).expand(1 << 33)}, p),
        "b.h5",
        "larger than",
    ),
    "an archive of arrays": ("a.pt", savez, "b.h5", "compressed"),
    "huge header": ("a.safetensors", lambda p: p.write_bytes((1 << 38).to_bytes(8, "little") + b"{}"), "b.h5", "sound"),
    "wrong kind of target": ("a.caffemodel", lambda p: write(p, {"ip": [[1]]}), "b.solverstate", "is the name of"),
    "unknown target": (
        "a.caffemodel",
        lambda p: write(p, {"ip": [[1]]}),
        "b.txt",
        "with this suffix cannot be written",
    ),
    "objects": ("a.npy", lambda p: np.save(p, np.array([{}])), "b.binaryproto", "plain numbers"),
    "a cut mean": ("a.npy", lambda p: p.write_bytes(npy_of_size(1 << 30)), "b.binaryproto", "plain numbers"),
    "a mean that is none": ("a.npy", lambda p: np.save(p, np.ones(3)), "b.binaryproto", "channels, height, width"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sources(tmp_path: Path, name: str) -> None:
    source, make, target, message = BAD[name]
    make(tmp_path / source)
    with pytest.raises(InputError, match=message) as error:
        converted(tmp_path / source, target)
    assert str(tmp_path) in str(error.value)
    assert not (tmp_path / target).exists()


class Attack:
    """Unpickled by a reader without care, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("form", ["zip", "pickle", "npy"])
def test_code_in_a_file_is_not_run(tmp_path: Path, form: str) -> None:
    proof, source = tmp_path / "proof", tmp_path / ("a.npy" if form == "npy" else "a.pt")
    attack = {"ip.weight": Attack(proof)}
    if form == "zip":
        torch.save(attack, source)
        with zipfile.ZipFile(source) as archive:
            assert b"proof" in archive.read("a/data.pkl")
    elif form == "pickle":
        source.write_bytes(pickle.dumps(attack, protocol=2))
    else:
        np.save(source, np.array([attack]), allow_pickle=True)
    with pytest.raises(InputError):
        converted(source, "b.binaryproto" if form == "npy" else "b.caffemodel")
    assert not proof.exists()


def test_a_model_tells_layers_it_lacks(weights: Path, model: Path) -> None:
    other = model.with_name("other.prototxt")
    other.write_text(NET.replace('"twin b"', '"twin c"'))
    with pytest.raises(InputError, match=r"no layer 'twin b'; did you mean 'twin [ac]'"):
        converted(weights, "x.caffemodel", other)


def test_the_command(weights: Path, model: Path) -> None:
    ended = run("convert", weights.name, "out.safetensors", "--model", model.name, folder=model.parent)
    assert (ended.return_code, ended.errors) == (0, "")
    assert "out.safetensors: 12 arrays" in ended.output
    assert "exists already" in run("convert", weights.name, "out.safetensors", folder=model.parent).error


@pytest.mark.parametrize("kind", [".safetensors", ".pt"])
def test_training_starts_from_any_form(weights: Path, model: Path, state: dict[str, torch.Tensor], kind: str) -> None:
    definition = load_net(model)
    net = build_net(definition, "TRAIN", {}, seed=9)
    assert load_weights(net, [converted(weights, f"start{kind}", model)]) == ()
    for info in net.parameter_infos:
        if info.layer == "block.1/conv":
            assert torch.equal(info.parameter, state[f"{info.layer}.{('weight', 'bias')[info.index]}"])
