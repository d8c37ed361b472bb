"""`samovar caffe`: its log is that of BVLC Caffe's own run, line by line, with the same figures."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from samovar.formats.caffe.solverstate import read_solverstate
from tests.multiproc.caffe_log import ParsedLog, parse_log
from tests.multiproc.command import succeed
from tests.parity.test_caffe_runs import assert_weights_equal

pytestmark = pytest.mark.golden

# What Caffe's parts say of how they are built; and threads that read ahead.
SETTING_UP = re.compile(r"^. (net\.cpp|layer_factory\.hpp|data_layer\.cpp|db_lmdb\.cpp)")
ONE_THREAD = ("-threads_per_worker", 1)


@pytest.fixture
def run_folder(golden_folder: Path, tmp_path: Path) -> Path:
    """The recorded runs with their data in a folder that can be written to, without what Caffe wrote."""
    for name in ("lenet", "cifar"):
        (tmp_path / name).mkdir()
        for path in (golden_folder / name).iterdir():
            if path.is_file():
                shutil.copyfile(path, tmp_path / name / path.name)
            else:
                (tmp_path / name / path.name).mkdir()
    (tmp_path / "lmdb").symlink_to(golden_folder / "lmdb")
    return tmp_path


# Of two numbers with six digits, the last may differ by the order of additions.
SIX_DIGITS = 1.1e-5
MEASURED = re.compile(r"(?<== )-?\d[\w.+-]*")


def words_and_numbers(log: ParsedLog) -> tuple[list[str], list[float]]:
    """The lines of training with a sign for each value; the values."""
    lines = [line for line in log.lines if not SETTING_UP.match(line)]
    return [MEASURED.sub("#", line) for line in lines], [float(x) for line in lines for x in MEASURED.findall(line)]


def without_time(rows: list[dict[str, float]]) -> list[Any]:
    return [pytest.approx({**row, "Seconds": 0}, rel=SIX_DIGITS) for row in rows]


@pytest.mark.parametrize(("folder", "name", "weights"), [("lenet", "sgd_fixed", ""), ("cifar", "full", "full.")])
def test_the_log_of_a_run(folder: str, name: str, weights: str, run_folder: Path, golden_folder: Path) -> None:
    arguments = (f"-solver={name}.solver.prototxt", "--weights", f"{weights}init.caffemodel", *ONE_THREAD)
    ended = succeed("caffe", "train", *arguments, folder=run_folder / folder)
    ours = parse_log(ended.errors)
    caffes = parse_log((golden_folder / folder / name / "caffe.log").read_text())
    (words, values), (caffes_words, caffes_values) = words_and_numbers(ours), words_and_numbers(caffes)
    assert words == caffes_words
    assert len(values) > 80
    assert values == pytest.approx(caffes_values, rel=SIX_DIGITS)
    assert [{**row, "Seconds": 0} for row in ours.train + ours.test] == without_time(caffes.train + caffes.test)
    assert ours.smoothed == pytest.approx(caffes.smoothed, rel=SIX_DIGITS)
    assert ended.output == ""


DEBUGGED = """net: "full.net.prototxt" test_iter: 5 test_interval: 3 max_iter: 3 display: 1 debug_info: true
base_lr: 0.05 momentum: 0.9 weight_decay: 0.004 lr_policy: "step" gamma: 0.5 stepsize: 12 type: "SGD" solver_mode: CPU
snapshot_after_train: false snapshot_prefix: "full/debug" weights: "full.init.caffemodel"
"""
MEAN = re.compile(r"(?<=data: |diff: )\S+")


def of_values(log: ParsedLog) -> list[tuple[str, float]]:
    """Every line of a value, without the value, and that; the first word is the level and the place."""
    lines = [line for line in log.lines if "    [" in line and "All net params" not in line]
    return [(MEAN.sub("#", line), float(MEAN.search(line)[0])) for line in lines]


def test_debug_info(run_folder: Path, golden_folder: Path) -> None:
    """The same lines in the same order, those of Caffe's Split layers too; after two updates a figure is 5e-5 off."""
    (run_folder / "cifar/debug.solver.prototxt").write_text(DEBUGGED)
    ended = succeed("caffe", "train", "-solver", "debug.solver.prototxt", *ONE_THREAD, folder=run_folder / "cifar")
    ours = parse_log(ended.errors)
    caffes = parse_log((golden_folder / "cifar/full/debug.log").read_text())
    assert [line for line, _ in of_values(ours)] == [line for line, _ in of_values(caffes)]
    assert len(of_values(ours)) > 400
    values = [value for _, value in of_values(ours)]
    assert values == pytest.approx([value for _, value in of_values(caffes)], rel=5e-5)
    norms = [[float(x) for x in re.findall(r"\d+\.\d+", line)] for line in ours.lines if "All net params" in line]
    assert norms == [
        pytest.approx([384.67, 101.031, 7.97486, 2.80107], rel=1e-5),
        pytest.approx([378.376, 86.7623, 7.87381, 2.51026], rel=5e-5),
        pytest.approx([366.583, 55.8457, 7.69849, 1.50196], rel=5e-5),
    ]


def test_files_and_a_resumed_run(run_folder: Path, golden_folder: Path) -> None:
    """As Caffe: files where snapshot_prefix says, and after a resume the records from the first one on."""
    lenet, recorded = run_folder / "lenet", golden_folder / "lenet/sgd_fixed"
    solver = ("-solver", "sgd_fixed.solver.prototxt")
    succeed("caffe", "train", *solver, "-weights", "init.caffemodel", *ONE_THREAD, folder=lenet)
    names = [f"snap_iter_{step}.{kind}" for step in (15, 30) for kind in ("caffemodel", "solverstate")]
    assert sorted(path.name for path in (lenet / "sgd_fixed").iterdir()) == sorted(names)
    assert_weights_equal(lenet / "sgd_fixed/snap_iter_30.caffemodel", recorded / "snap_iter_30.caffemodel", 1e-5)
    state = read_solverstate(lenet / "sgd_fixed/snap_iter_15.solverstate")
    assert state.learned_net == read_solverstate(recorded / "snap_iter_15.solverstate").learned_net
    ended = succeed(
        "caffe", "train", *solver, "-snapshot", "sgd_fixed/snap_iter_15.solverstate", *ONE_THREAD, folder=lenet
    )
    resumed: dict[str, Any] = json.loads((recorded / "result.json").read_text())["resumed"]
    log = parse_log(ended.errors)
    assert [row["loss"] for row in log.train] == pytest.approx(resumed["printed_loss"], rel=1e-5)
    assert [row["accuracy"] for row in log.test] == [resumed["test"][0]["accuracy"]]
    assert_weights_equal(lenet / "sgd_fixed/snap_iter_30.caffemodel", recorded / "resumed_iter_30.caffemodel", 1e-5)


def test_caffe_test(golden_folder: Path) -> None:
    folder = golden_folder / "cifar"
    arguments = ("-model", "quick.net.prototxt", "-weights=quick/snap_iter_20.caffemodel", "-iterations", 5)
    ended = succeed("caffe", "test", *arguments, *ONE_THREAD, folder=folder)
    recorded = json.loads((folder / "quick/caffe_test.json").read_text())
    found = re.findall(r"\] Batch (\d+), (\S+) = (\S+)$", ended.errors, re.MULTILINE)
    assert [[number, name, pytest.approx(float(value), rel=1e-5)] for number, name, value in found] == recorded[
        "per_batch"
    ]
