"""Weights and solver states in HDF5: written, read, and refused where damaged or leading elsewhere."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.formats.caffe.blob import read_mean
from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel_hdf5, read_caffemodel, read_stored_net
from samovar.formats.caffe.hdf5 import is_hdf5
from samovar.formats.caffe.solverstate import SolverState, encode_solverstate_hdf5, read_solverstate

Change = Callable[[h5py.File], None]


@pytest.fixture
def state(rng: np.random.Generator) -> SolverState:
    history = [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3), (3,), (1, 2, 1, 4), ())] * 3
    return SolverState(20_000_001, "folder/net_iter_20000001.caffemodel.h5", history, 7)


@pytest.fixture
def records(rng: np.random.Generator) -> list[LayerRecord]:
    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return [
        LayerRecord("data", "Data", (), ("data", "label"), ()),
        LayerRecord("inception/1x1", "Convolution", ("data",), ("c",), (array(4, 2, 3, 3), array(4))),
        LayerRecord("ip", "InnerProduct", ("c",), ("y",), (array(5, 7).T, array(5))),
    ]


def test_weights_come_back(tmp_path: Path, records: list[LayerRecord]) -> None:
    path = tmp_path / "w.caffemodel"  # the content tells the form, not the name
    path.write_bytes(encode_caffemodel_hdf5(records))

    weights = read_caffemodel(path)

    assert list(weights) == ["inception/1x1", "ip"]
    for record in records[1:]:
        for ours, theirs in zip(weights[record.name], record.blobs, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert (ours.dtype, ours.flags.c_contiguous) == (np.float32, True)


def test_a_state_comes_back(tmp_path: Path, state: SolverState) -> None:
    path = tmp_path / "s.solverstate.h5"
    path.write_bytes(encode_solverstate_hdf5(state))

    found = read_solverstate(path)

    assert (found.iteration, found.learned_net, found.current_step) == (20_000_001, state.learned_net, 7)
    for ours, theirs in zip(found.history, state.history, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.shape == theirs.shape


def test_what_caffe_sees(tmp_path: Path, state: SolverState, records: list[LayerRecord]) -> None:
    """The names, types and shapes that Caffe's own functions ask for."""
    path = tmp_path / "file.h5"
    path.write_bytes(encode_solverstate_hdf5(state))
    with h5py.File(path) as file:
        assert sorted(file) == ["current_step", "history", "iter", "learned_net"]
        assert {file[name].shape for name in ("iter", "current_step")} == {(1,)}
        assert {file[name].dtype for name in ("iter", "current_step")} == {np.dtype("<i4")}
        kind = file["learned_net"].id.get_type()
        assert (kind.is_variable_str(), kind.get_size()) == (False, len(state.learned_net) + 1)
        assert {array.dtype for array in file["history"].values()} == {np.dtype("<f4")}
    assert path.read_bytes()[8] == 0, "the superblock of HDF5 1.8 and older"
    path.write_bytes(encode_caffemodel_hdf5(records))
    with h5py.File(path) as file:
        assert list(file) == ["data"]
        assert list(file["data"]) == ["data", "inception", "ip"]
        assert list(file["data/data"]) == []


def test_double_precision_and_compression_are_read(tmp_path: Path, rng: np.random.Generator) -> None:
    path, values = tmp_path / "w.h5", rng.standard_normal((50, 40))
    with h5py.File(path, "w") as file:
        file.create_dataset("data/ip/0", data=values, compression="gzip")

    np.testing.assert_array_equal(read_caffemodel(path)["ip"][0], values.astype(np.float32))
    with h5py.File(path, "w") as file:
        file.create_dataset("data/ip/0", (1000, 1000, 1000), "f4", compression="gzip", fillvalue=0.1)
        file["data/ip/0"][0] = 0.1

    with pytest.raises(InputError, match=r"'0' has shape \(1000, 1000, 1000\), which is 4000000000 bytes, but holds"):
        read_caffemodel(path)


def _link_to_itself(file: h5py.File) -> None:
    file["data/ip/again"] = file["data"]


def _array_elsewhere(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (3,))
    file["data/ip"].create_virtual_dataset("0", layout)


def _set(name: str, value: object) -> Change:
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file[name] = value

    return change


MODELS: dict[str, tuple[Change, str]] = {
    "no data": (lambda file: file.__delitem__("data"), "has no group 'data'"),
    "no weights": (lambda file: file.__delitem__("data/ip"), "holds no weights"),
    "soft link": (_set("data/ip/0", h5py.SoftLink("/data/ip/1")), "'0' is a link to elsewhere"),
    "external link": (_set("data/x", h5py.ExternalLink("/etc/passwd", "/")), "'x' is a link to elsewhere"),
    "external array": (
        lambda file: file["data/ip"].create_dataset("0", (3,), "f4", external="/etc/passwd") and None,
        "the numbers of '0' are in another file",
    ),
    "virtual array": (_array_elsewhere, "the numbers of '0' are in another file"),
    "text": (_set("data/ip/0", "numbers"), "has no numbers in '0'"),
    "group": (lambda file: file.create_group("data/ip/0") and None, "has no numbers in '0'"),
    "nothing stored": (
        lambda file: file["data/ip"].create_dataset("0", (1 << 40,), "f4", chunks=(1 << 20,)) and None,
        r"'0' has shape \(1099511627776,\), which is 4398046511104 bytes, but holds 0",
    ),
    "gap": (_set("data/ip/100", [1.0]), r"has the arrays \[1, 100\]; those before are missing"),
    "circle": (_link_to_itself, "has groups deeper than 16"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_not_sound(tmp_path: Path, name: str) -> None:
    change, message = MODELS[name]
    path = tmp_path / "w.caffemodel.h5"
    with h5py.File(path, "w") as file:
        file["data/ip/1"] = np.ones(3, np.float32)
        change(file)

    with pytest.raises(InputError, match=f"w.caffemodel.h5: .*{message}"):
        read_caffemodel(path)


def test_arrays_that_a_layer_shares_may_be_missing(tmp_path: Path) -> None:
    """Caffe writes a shared array with the first of its layers."""
    path = tmp_path / "w.caffemodel.h5"
    with h5py.File(path, "w") as file:
        file["data/ip/1"] = np.ones(3, np.float32)

    assert [array.shape for array in read_caffemodel(path)["ip"]] == [(0,), (3,)]
    assert [array.shape for array in read_stored_net(path).layers[0].blobs] == [(0,), (3,)]


@pytest.mark.parametrize("name", ["/conv", "conv/", "a//b", ".", "./a"])
def test_names_that_would_come_back_as_others(name: str) -> None:
    with pytest.raises(InputError, match=r"HDF5 cannot hold this net's names: .*layer"):
        encode_caffemodel_hdf5([LayerRecord(name, "InnerProduct", (), (), (np.ones(3, np.float32),))])


def test_layers_without_weights_need_no_name(tmp_path: Path) -> None:
    layers = [LayerRecord("", "ReLU", (), (), ()), LayerRecord("ip", "InnerProduct", (), (), (np.ones(3, np.float32),))]
    (path := tmp_path / "w.h5").write_bytes(encode_caffemodel_hdf5(layers))
    assert list(read_caffemodel(path)) == ["ip"]


STATES: dict[str, tuple[Change, str]] = {
    "a model": (lambda file: file.__delitem__("history"), "has no group 'history'"),
    "no iteration": (lambda file: file.__delitem__("iter"), "has no numbers in 'iter'"),
    "negative": (_set("iter", [-5]), "'iter' is not one number of steps"),
    "several": (_set("current_step", [1, 2]), "'current_step' is not one number of steps"),
    "not a number": (_set("iter", [np.nan]), "'iter' is not one number of steps"),
    "no net": (_set("learned_net", [1.0]), "has no text in 'learned_net'"),
    "long net": (
        lambda file: (file.__delitem__("learned_net"), file.create_dataset("learned_net", (), f"S{1 << 30}"))[0],
        "has no text in 'learned_net'",
    ),
    "gap": (lambda file: file.__delitem__("history/3"), "has the histories .* they must be numbered from 0"),
}


@pytest.mark.parametrize("name", STATES)
def test_states_that_are_not_sound(tmp_path: Path, state: SolverState, name: str) -> None:
    change, message = STATES[name]
    path = tmp_path / "s.solverstate.h5"
    path.write_bytes(encode_solverstate_hdf5(state))
    with h5py.File(path, "r+") as file:
        change(file)

    with pytest.raises(InputError, match=f"s.solverstate.h5: .*{message}"):
        read_solverstate(path)


def test_files_of_another_kind(tmp_path: Path, state: SolverState, records: list[LayerRecord]) -> None:
    path = tmp_path / "file"
    path.write_bytes(encode_solverstate_hdf5(state))
    with pytest.raises(InputError, match="file: has no group 'data'"):
        read_caffemodel(path)
    with pytest.raises(InputError, match="is an HDF5 file, but a mean is a binary protobuf"):
        read_mean(path)
    path.write_bytes(encode_caffemodel_hdf5(records))
    with pytest.raises(InputError, match="file: has no group 'history'"):
        read_solverstate(path)
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(InputError, match="file: is not a sound HDF5 caffemodel"):
        read_caffemodel(path)


def test_a_pipe_is_no_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.h5")
    assert not is_hdf5(tmp_path / "pipe.h5")


def test_names_that_hdf5_cannot_hold() -> None:
    layers = [LayerRecord(name, "InnerProduct", (), (), (np.ones(3, np.float32),)) for name in ("ip", "ip/0")]

    with pytest.raises(InputError, match=r"HDF5 cannot hold this net's names: .*; use snapshot_format: BINARYPROTO"):
        encode_caffemodel_hdf5(layers)


def test_damaged_files_are_read_or_refused(tmp_path: Path, state: SolverState) -> None:
    content = encode_solverstate_hdf5(state)
    path = tmp_path / "s.solverstate.h5"
    messages = []
    for seed in range(150):
        chance = random.Random(seed)
        damaged = bytearray(content[: chance.randrange(len(content))] if seed % 3 == 0 else content)
        for _ in range(seed % 3):
            damaged[chance.randrange(min(len(damaged), 4000))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            read_solverstate(path)
        except InputError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert all(message.startswith(str(path)) for message in messages)
