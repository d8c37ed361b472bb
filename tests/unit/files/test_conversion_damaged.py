"""Files with bytes changed, cut off or put in: `samovar convert` and `inspect` read them or say what is wrong."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from samovar.core.errors import InputError
from samovar.files.conversion import convert
from samovar.files.inspection import Wanted, describe
from samovar.formats.caffe.blob import encode_mean
from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel, encode_caffemodel_hdf5
from samovar.formats.caffe.solverstate import SolverState, encode_solverstate, encode_solverstate_hdf5

NUM_MUTATIONS = 60  # of each kind of file
TARGETS = {
    "a.caffemodel": "b.safetensors",
    "a.caffemodel.h5": "b.caffemodel",
    "a.safetensors": "b.pt",
    "a.pt": "b.caffemodel",
    "old.pt": "b.caffemodel",
    "a.solverstate": "b.solverstate.h5",
    "a.solverstate.h5": "b.solverstate",
    "a.binaryproto": "b.npy",
    "a.npy": "b.binaryproto",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small file of every kind."""
    folder = tmp_path_factory.mktemp("sound")
    rng = np.random.default_rng(1)
    arrays = [rng.random((3, 4), np.float32), rng.random(3, np.float32)]
    records = [LayerRecord(name, "InnerProduct", ("x",), (name,), arrays) for name in ("first", "second/1x1")]
    state = SolverState(7, "a.caffemodel", arrays, 1)
    (folder / "a.caffemodel").write_bytes(encode_caffemodel("net", records))
    (folder / "a.caffemodel.h5").write_bytes(encode_caffemodel_hdf5(records))
    (folder / "a.solverstate").write_bytes(encode_solverstate(state))
    (folder / "a.solverstate.h5").write_bytes(encode_solverstate_hdf5(state))
    (folder / "a.binaryproto").write_bytes(encode_mean(rng.random((3, 4, 5), np.float32)))
    convert(folder / "a.binaryproto", folder / "a.npy", None, force=False)
    convert(folder / "a.caffemodel", folder / "a.safetensors", None, force=False)
    convert(folder / "a.caffemodel", folder / "a.pt", None, force=False)
    tensors = torch.load(folder / "a.pt", weights_only=True)
    torch.save(tensors, folder / "old.pt", _use_new_zipfile_serialization=False)
    return folder


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    how = rng.integers(4)
    if how == 0:
        return content[: rng.integers(len(content))]
    changed = bytearray(content)
    for _ in range(rng.choice([1, 3, 20])):
        place = int(rng.integers(min(len(changed), rng.choice([100, 1000, 1 << 30]))))
        if how == 1:
            changed[place] ^= 1 << int(rng.integers(8))
        elif how == 2:
            changed[place : place + 8] = b"\xff" * len(changed[place : place + 8])
        else:
            changed[place:place] = rng.bytes(4)
    return bytes(changed)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_refused(sound: Path, tmp_path: Path, name: str) -> None:
    content, rng = (sound / name).read_bytes(), np.random.default_rng(len(name))
    target = tmp_path / TARGETS[name]
    messages = []
    for _ in range(NUM_MUTATIONS):
        (tmp_path / name).write_bytes(damaged(content, rng))
        for read in (
            lambda: convert(tmp_path / name, target, None, True),
            lambda: describe(tmp_path / name, WITH_VALUES),
        ):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # statistics of huge values
                    read()
            except InputError as error:
                messages.append(str(error))
    assert messages
    assert all(str(tmp_path) in message and len(message) < 1000 for message in messages)
    assert {path.name for path in tmp_path.iterdir()} <= {name, target.name}


WITH_VALUES = Wanted(values=True)
