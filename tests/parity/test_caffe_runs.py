"""Whole training runs, through the command line, against what BVLC Caffe recorded: losses and weights."""

import json
from pathlib import Path

import numpy as np
import pytest

from samovar.formats.caffe.caffemodel import read_caffemodel
from samovar.formats.caffe.solverstate import read_solverstate
from samovar.report.metrics import read_metrics
from tests.multiproc.command import run, succeed

# The others run in this process: tests/parity/test_caffe_solvers.py.
SELDOM = ("sgd_average_loss", "sgd_iter_size", "nesterov_poly_l1")  # test_caffe_solvers has all, within one process
RUNS = ("sgd_fixed", *(pytest.param(name, marks=pytest.mark.slow) for name in SELDOM))
LOSS_TOLERANCE = 1e-5  # relative; Caffe's own two BLAS kernels differ by 7e-7
WEIGHT_TOLERANCES = {1: 1e-6, 2: 1e-6, 30: 1e-5}  # absolute

pytestmark = pytest.mark.golden


def train(golden_folder: Path, name: str, out: Path, *arguments: str) -> None:
    files = ("--solver", f"{name}.solver.prototxt", "--weights", "init.caffemodel", "--out", out)
    more = ("--threads-per-worker", 1, *arguments)
    succeed("train", *files, *more, folder=golden_folder / "lenet", output_folder=out)


def assert_weights_equal(ours: Path, caffe: Path, tolerance: float) -> None:
    recorded = read_caffemodel(caffe)
    trained = read_caffemodel(ours)
    assert set(trained) == set(recorded)
    for layer, arrays in recorded.items():
        for index, array in enumerate(arrays):
            difference = np.abs(trained[layer][index].reshape(array.shape) - array).max()
            assert difference <= tolerance, f"{layer}/{index} is {difference:.2g} from Caffe's"


@pytest.mark.parametrize("name", RUNS)
def test_losses_and_weights(name: str, golden_folder: Path, tmp_path: Path) -> None:
    recorded = json.loads((golden_folder / "lenet" / name / "result.json").read_text())
    train(golden_folder, name, tmp_path)
    told = read_metrics(tmp_path / "metrics.jsonl")
    lines = [line for line in told if line["kind"] == "train"]
    np.testing.assert_allclose([line["learning_rate"] for line in lines], recorded["lr"], rtol=1e-5)
    if "iter_size" not in name:  # there Caffe recorded the loss of the last part only
        np.testing.assert_allclose([line["loss"] for line in lines], recorded["raw_loss"], rtol=LOSS_TOLERANCE)
    (model,) = tmp_path.glob("snapshots/step_00000030/*.caffemodel")
    assert_weights_equal(model, golden_folder / "lenet" / name / "snap_iter_30.caffemodel", WEIGHT_TOLERANCES[30])
    for test in recorded["test"]:
        (line,) = [line for line in told if (line["kind"], line["step"]) == ("test", test["iter"])]
        assert line["accuracy"] == pytest.approx(test["accuracy"], abs=1e-6)
        assert line["loss"] == pytest.approx(test["loss"], rel=1e-4)


@pytest.mark.parametrize("steps", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_first_steps(steps: int, golden_folder: Path, tmp_path: Path) -> None:
    """Where one wrong term would show."""
    train(golden_folder, "sgd_inv", tmp_path, "--iterations", str(steps))
    (model,) = tmp_path.glob(f"snapshots/step_{steps:08}/*.caffemodel")
    recorded = golden_folder / "lenet" / "sgd_inv" / f"snap_iter_{steps}.caffemodel"
    assert_weights_equal(model, recorded, WEIGHT_TOLERANCES[steps])


@pytest.mark.parametrize(
    ("name", "suffix"), [("adam_fixed", ""), pytest.param("sgd_hdf5", ".h5", marks=pytest.mark.slow)]
)
def test_a_pair_of_files_by_caffe_resumes(name: str, suffix: str, golden_folder: Path, tmp_path: Path) -> None:
    """Steps 16 to 30 from Caffe's files after 15: the same weights and state as Caffe's own unbroken run."""
    folder = golden_folder / "lenet"
    solver, state = folder / f"{name}.solver.prototxt", folder / name / f"snap_iter_15.solverstate{suffix}"
    words = ("--solver", solver, "--snapshot", state, "--out", tmp_path)
    ended = succeed("train", *words, folder=folder, output_folder=tmp_path)
    assert "has no data position" in ended.errors
    (model,) = tmp_path.glob(f"snapshots/step_00000030/*.caffemodel{suffix}")
    assert_weights_equal(model, folder / name / f"snap_iter_30.caffemodel{suffix}", WEIGHT_TOLERANCES[30])
    ours = read_solverstate(Path(str(model).replace("caffemodel", "solverstate")))
    theirs = read_solverstate(folder / name / f"snap_iter_30.solverstate{suffix}")
    assert (ours.iteration, ours.learned_net, ours.current_step) == (30, model.name, theirs.current_step)
    for array, expected in zip(ours.history, theirs.history, strict=True):
        np.testing.assert_allclose(array, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_a_state_of_another_type_of_solver_is_refused(golden_folder: Path, tmp_path: Path) -> None:
    state = golden_folder / "lenet/adam_fixed/snap_iter_15.solverstate"
    words = ("--solver", "sgd_fixed.solver.prototxt", "--snapshot", state, "--out", tmp_path)
    ended = run("train", *words, folder=golden_folder / "lenet", output_folder=tmp_path)
    assert ended.return_code == 2
    assert "has 2 histories a parameter, type SGD keeps 1" in ended.error
