"""`samovar.caffe.load` and `samovar convert` on what BVLC Caffe wrote: values of a first batch, a run by torch's own
optimizer, and every recorded file there and back."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import samovar
from samovar.data.reader import BatchReader
from samovar.files.conversion import convert
from samovar.formats.caffe.caffemodel import read_caffemodel
from samovar.frontends.caffe.definition import load_net

pytestmark = pytest.mark.golden


@pytest.mark.parametrize("name", ["quick", "full", "bn_crop"])
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_the_first_batch_of_a_net(
    golden_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, phase: str
) -> None:
    """Also through a safetensors file and a torch state_dict."""
    folder = golden_folder / "cifar"
    monkeypatch.chdir(folder)
    weights = tmp_path / "w.pt"
    convert(folder / f"{name}.init.caffemodel", tmp_path / "w.safetensors", None, force=False)
    convert(tmp_path / "w.safetensors", weights, None, force=False)
    recorded = np.load(folder / name / "first_batch.npz")
    net = samovar.caffe.load(f"{name}.net.prototxt", weights, phase)  # type: ignore[arg-type]
    with BatchReader(load_net(Path(f"{name}.net.prototxt")).data_layers(phase), phase == "TRAIN") as reader:  # type: ignore[arg-type]
        batch = reader.read(0, reader.batch_size)
    with torch.no_grad():
        outputs = net(*(batch[blob] for blob in net.input_names))
    assert outputs
    for blob, value in outputs.items():
        np.testing.assert_allclose(value, recorded[f"{phase.lower()}/{blob}"], rtol=1e-5, atol=1e-6)


def test_torchs_own_sgd_learns_as_caffe_did(golden_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fixed rate torch's momentum is Caffe's."""
    folder = golden_folder / "lenet"
    monkeypatch.chdir(folder)
    recorded = json.loads((folder / "sgd_fixed/result.json").read_text())
    solver = (folder / "sgd_fixed.solver.prototxt").read_text()
    rate, decay, momentum = (float(solver.split(f"{name}:")[1].split()[0]) for name in SOLVER_FIELDS)
    net = samovar.caffe.load("net.prototxt", "init.caffemodel", "TRAIN")
    optimizer = torch.optim.SGD(net.parameter_groups(rate, decay), rate, momentum=momentum)
    losses = []
    with BatchReader(load_net(Path("net.prototxt")).data_layers("TRAIN"), True) as reader:
        for step in range(len(recorded["raw_loss"])):
            batch = reader.read(step * reader.batch_size, reader.batch_size)
            optimizer.zero_grad()
            outputs = net(batch["data"], batch["label"])
            outputs["loss"].backward()
            optimizer.step()
            losses.append(outputs["loss"].item())
    np.testing.assert_allclose(losses, recorded["raw_loss"], rtol=1e-5)
    expected = read_caffemodel(folder / f"sgd_fixed/snap_iter_{len(losses)}.caffemodel")
    for layer, arrays in expected.items():
        for kind, array in zip(("weight", "bias"), arrays, strict=True):
            np.testing.assert_allclose(net.get_parameter(f"{layer}.{kind}").detach(), array, atol=1e-5)


SOLVER_FIELDS = ("base_lr", "weight_decay", "momentum")


def test_every_recorded_caffemodel_there_and_back(golden_folder: Path, tmp_path: Path) -> None:
    sources = sorted(
        path for path in golden_folder.rglob("*.caffemodel") if "iter_2.c" in path.name or "init" in path.name
    )
    sources.append(golden_folder / "old-formats/v1_weights.caffemodel")
    assert len(sources) > 20
    for number, source in enumerate(sources):
        names = [tmp_path / f"{number}{suffix}" for suffix in (".safetensors", ".caffemodel", ".pt", ".caffemodel.h5")]
        for before, after in zip([source, *names], names, strict=False):
            convert(before, after, None, force=False)
        expected, found = read_caffemodel(source), read_caffemodel(names[-1])
        assert found.keys() == expected.keys()
        for layer, arrays in expected.items():
            for array, back in zip(arrays, found[layer], strict=True):
                np.testing.assert_array_equal(back.ravel(), array.ravel(), err_msg=f"{source}: {layer}")


@pytest.mark.parametrize("name", ["sgd_hdf5/snap_iter_15.solverstate.h5", "adam_fixed/snap_iter_15.solverstate"])
def test_recorded_solver_states_there_and_back(golden_folder: Path, tmp_path: Path, name: str) -> None:
    source = golden_folder / "lenet" / name
    suffixes = (".solverstate", ".solverstate.h5") if name.endswith("h5") else (".solverstate.h5", ".solverstate")
    there, back = (tmp_path / f"{order}{suffix}" for order, suffix in zip(("there", "back"), suffixes, strict=True))
    convert(source, there, None, force=False)
    convert(there, back, None, force=False)
    if name.endswith("solverstate"):
        assert back.read_bytes() == source.read_bytes()
    convert(back, tmp_path / "again.solverstate", None, force=False)
    convert(source, tmp_path / "plain.solverstate", None, force=False)
    assert (tmp_path / "again.solverstate").read_bytes() == (tmp_path / "plain.solverstate").read_bytes()


def test_the_recorded_mean_there_and_back(golden_folder: Path, tmp_path: Path) -> None:
    source = golden_folder / "cifar/mean.binaryproto"
    convert(source, tmp_path / "mean.npy", None, force=False)
    convert(tmp_path / "mean.npy", tmp_path / "mean.binaryproto", None, force=False)
    assert (tmp_path / "mean.binaryproto").read_bytes() == source.read_bytes()
