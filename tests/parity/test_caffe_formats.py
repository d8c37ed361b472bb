"""Files that BVLC Caffe wrote, in their old and their HDF5 forms, and solver files of before 2015."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel_hdf5, read_caffemodel
from samovar.formats.caffe.solverstate import encode_solverstate_hdf5, read_solverstate
from samovar.frontends.caffe.solver import CaffeSolver, load_solver

pytestmark = pytest.mark.golden


def assert_same_weights(one: Path, other: Path) -> None:
    ours, theirs = read_caffemodel(one), read_caffemodel(other)
    assert ours.keys() == theirs.keys()
    for name, arrays in ours.items():
        for array, expected in zip(arrays, theirs[name], strict=True):
            np.testing.assert_array_equal(array.ravel(), expected.ravel(), err_msg=name)


def test_weights_of_old_layers_are_those_of_caffes_upgrade(golden_folder: Path) -> None:
    folder = golden_folder / "old-formats"
    assert_same_weights(folder / "v1_weights.caffemodel", folder / "v1_weights.upgraded.caffemodel")


@pytest.mark.parametrize("steps", [15, 30])
def test_both_forms_hold_the_same(golden_folder: Path, steps: int) -> None:
    """Two runs that differ in nothing but snapshot_format."""
    folder = golden_folder / "lenet"
    hdf5, binary = folder / f"sgd_hdf5/snap_iter_{steps}", folder / f"sgd_fixed/snap_iter_{steps}"
    assert_same_weights(hdf5.with_suffix(".caffemodel.h5"), binary.with_suffix(".caffemodel"))
    ours = read_solverstate(hdf5.with_suffix(".solverstate.h5"))
    theirs = read_solverstate(binary.with_suffix(".solverstate"))
    assert (ours.iteration, ours.current_step) == (theirs.iteration, theirs.current_step) == (steps, 0)
    assert ours.learned_net == f"sgd_hdf5/snap_iter_{steps}.caffemodel.h5"
    for array, expected in zip(ours.history, theirs.history, strict=True):
        np.testing.assert_array_equal(array, expected)


def members(path: Path) -> dict[str, tuple[object, ...]]:
    """Every dataset of a file: its shape, type and values."""
    found: dict[str, tuple[object, ...]] = {}

    def note(name: str, member: object) -> None:
        if isinstance(member, h5py.Dataset):
            found[name] = (member.shape, member.dtype, member[()].tolist(), member.chunks)

    with h5py.File(path) as file:
        file.visititems(note)
    return found


def test_what_we_write_is_laid_out_like_caffes(golden_folder: Path, tmp_path: Path) -> None:
    folder = golden_folder / "lenet/sgd_hdf5"
    state, model = folder / "snap_iter_15.solverstate.h5", folder / "snap_iter_15.caffemodel.h5"
    ours = tmp_path / "ours.h5"
    ours.write_bytes(encode_solverstate_hdf5(read_solverstate(state)))
    assert members(ours) == members(state)
    layers = [LayerRecord(name, "", (), (), arrays) for name, arrays in read_caffemodel(model).items()]
    ours.write_bytes(encode_caffemodel_hdf5(layers))
    assert members(ours) == members(model)


@pytest.mark.parametrize("kind", ["sgd", "nesterov", "adagrad", "rmsprop", "adadelta", "adam"])
def test_the_old_solver_type_is_that_of_caffes_upgrade(golden_folder: Path, kind: str) -> None:
    old, new = (
        load_solver(golden_folder / "old-formats" / f"solver_{kind}{suffix}.prototxt") for suffix in ("", ".upgraded")
    )

    def without_place(solver: CaffeSolver) -> CaffeSolver:
        return replace(solver, path=Path(), warnings=())

    assert without_place(old) == without_place(new)
    assert new.type.lower() == kind
