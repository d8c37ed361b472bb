"""`samovar caffe`, as a user of Caffe types it."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest

from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel, read_caffemodel
from samovar.formats.caffe.solverstate import read_solverstate
from tests.multiproc.caffe_log import parse_log
from tests.multiproc.command import Command, run, succeed
from tests.multiproc.nets import write_net, write_solver

ONE_THREAD = ("-threads_per_worker", 1)


@pytest.fixture
def net(tmp_path: Path, digits: Path) -> Path:
    return write_net(tmp_path, digits)


def test_train(net: Path) -> None:
    folder = net.parent
    solver = write_solver(net, 20, display=5, snapshot=10, test_compute_loss="true", solver_mode="CPU")
    first = succeed("caffe", "train", f"--solver={solver}", *ONE_THREAD, folder=folder)
    log = parse_log(first.errors)
    assert [row["NumIters"] for row in log.train] == [0, 5, 10, 15]
    assert [row["NumIters"] for row in log.test] == [0]
    assert all(set(row) == {"NumIters", "Seconds", "loss", "LearningRate"} for row in log.train)
    assert log.train[3]["LearningRate"] == pytest.approx(0.01 * (1 + 0.0001 * 15) ** -0.75, rel=1e-5)
    assert list(log.smoothed) == [0, 5, 10, 15, 20]  # the last: one forward pass more
    assert "Test loss: " in first.errors
    assert first.errors.splitlines()[-1].endswith("caffe.cpp:250] Optimization Done.")
    files = ["narrow_iter_10.caffemodel", "narrow_iter_10.solverstate"]
    files += ["narrow_iter_20.caffemodel", "narrow_iter_20.solverstate"]
    assert sorted(path.name for path in folder.glob("narrow_iter*")) == files
    assert not (folder / "runs").exists()
    assert read_solverstate(folder / "narrow_iter_10.solverstate").learned_net == "narrow_iter_10.caffemodel"


@pytest.mark.slow
def test_resume_and_test(net: Path) -> None:
    folder = net.parent
    solver = write_solver(net, 20, display=5, snapshot=10)
    succeed("caffe", "train", f"--solver={solver}", *ONE_THREAD, folder=folder)
    resumed = succeed("caffe", "train", "-solver", solver, "-snapshot", "narrow_iter_10.solverstate", folder=folder)
    again = parse_log(resumed.errors)
    assert [row["NumIters"] for row in again.train] == [10, 15]
    assert "Resuming from narrow_iter_10.solverstate" in resumed.errors
    assert "has no data position" not in resumed.errors  # `samovar train` warns so; here reading starts anew

    tested = succeed(
        "caffe", "test", "-model", net, "-weights", "narrow_iter_20.caffemodel", "-iterations", 3, folder=folder
    )
    batches = re.findall(r"\] Batch (\d), accuracy = (\S+)", tested.errors)
    (mean,) = re.findall(r"\] accuracy = (\S+)", tested.errors)
    assert [number for number, _ in batches] == ["0", "1", "2"]
    assert float(mean) == pytest.approx(sum(float(value) for _, value in batches) / 3, rel=1e-5)


def test_two_workers_and_no_snapshot_after_train(net: Path) -> None:
    """The default solver_mode, GPU, gives a notice; snapshot_after_train works, and the mean has each worker's loss."""
    solver = write_solver(net, 6, display=1, snapshot_after_train="false")
    ended = succeed("caffe", "train", "-solver", solver, "-workers", 2, *ONE_THREAD, folder=net.parent)
    assert "solver_mode is GPU (Caffe's default); this run computes on the CPU" in ended.errors
    assert list(parse_log(ended.errors).smoothed) == list(range(7))
    assert list(net.parent.glob("*.caffemodel")) == []


STATES = """name: "states"
layer { name: "made" type: "DummyData" top: "x" top: "y" dummy_data_param {
  shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 } data_filler { type: "constant" value: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "twice" type: "Power" bottom: "ip" top: "seen" power_param { shift: 2 } include { stage: "two" } }
layer { name: "once" type: "Power" bottom: "ip" top: "seen" power_param { shift: 1 } exclude { stage: "two" } }
layer { name: "high" type: "EuclideanLoss" bottom: "seen" bottom: "y" top: "high" include { min_level: 1 } }
layer { name: "low" type: "EuclideanLoss" bottom: "seen" bottom: "y" top: "low" include { max_level: 0 } }
layer { name: "each" type: "Reduction" bottom: "seen" top: "each" reduction_param { axis: 1 }
  include { phase: TEST } }
"""
FIELDS = 'base_lr: 0.01 lr_policy: "fixed" max_iter: 2 display: 1 snapshot_after_train: false solver_mode: CPU\n'


@pytest.mark.slow
def test_nets_inside_the_solver_with_states(tmp_path: Path) -> None:
    """Several test nets, in Caffe's order; a state of the solver, and one of the command line."""
    (tmp_path / "net.prototxt").write_text(STATES)
    (tmp_path / "solver.prototxt").write_text(
        f'{FIELDS} net: "net.prototxt" test_net_param {{ {STATES} }} test_iter: 1 test_iter: 2 test_interval: 2\n'
        'train_state { stage: "two" } test_state { stage: "two" } test_state { level: 1 }'
    )
    ended = succeed("caffe", "train", "-solver", "solver.prototxt", "-level", 1, folder=tmp_path)
    log = parse_log(ended.errors)
    assert [set(row) - {"NumIters", "Seconds"} for row in log.train] == [{"high", "LearningRate"}] * 2
    assert [row["net"] for row in log.test] == [0, 1, 0, 1]
    assert log.test[0] | log.test[1] | {"Seconds": 0} == {
        "NumIters": 0,
        "Seconds": 0,
        "net": 1,
        "each": 2.0,  # of the second net; of the first 4
        "low": pytest.approx(1.0),
        "high": pytest.approx(0.0),
    }
    assert ended.errors.count(" each = 4") == 4  # each of four samples
    order = re.findall(r"Creating test net \(#(\d)\) specified by (.*)", ended.errors)
    assert order == [("0", "test_net_param"), ("1", "net file: net.prototxt")]


@pytest.mark.slow
def test_time(net: Path) -> None:
    ended = succeed(
        "caffe", "time", f"-model={net}", "-iterations", 2, "-phase", "TEST", *ONE_THREAD, folder=net.parent
    )
    assert re.findall(r"\] +(\w+)\tbackward: ", ended.errors)[:3] == ["test", "conv1", "pool1"]
    assert len(re.findall(r"forward-backward time: [\d.]+ ms\.", ended.errors)) == 2
    assert re.search(r"\] Average Forward-Backward: [\d.]+ ms\.", ended.errors)


def test_time_as_a_table(net: Path) -> None:
    solver = write_solver(net, 6)
    arguments = ("--solver", solver, "--iterations", 2, "--threads-per-worker", 1)
    ended = succeed("time", *arguments, folder=net.parent)
    names = [line.split()[0] for line in ended.output.splitlines()[2:]]
    assert names == ["train", "conv1", "pool1", "conv2", "pool2", "ip1", "relu1", "ip2", "loss", "whole"]


@pytest.mark.slow
def test_fine_tuning_with_a_renamed_last_layer(net: Path) -> None:
    """Two files: the later wins for the layers it has; the new layer starts from its filler."""
    folder = net.parent
    succeed("caffe", "train", "-solver", write_solver(net, 1), *ONE_THREAD, folder=folder)
    first = folder / "narrow_iter_1.caffemodel"
    outline = [LayerRecord(name, "InnerProduct", (), (), arrays) for name, arrays in read_caffemodel(first).items()]
    changed = [layer._replace(blobs=[array + 1 for array in layer.blobs]) for layer in outline if layer.name != "conv1"]
    (folder / "second.caffemodel").write_bytes(encode_caffemodel("second", changed))
    (folder / "new.prototxt").write_text(net.read_text().replace('"ip2"', '"ip2_new"'))
    files = f"{first.name},second.caffemodel"
    solver = write_solver(folder / "new.prototxt", 0)
    ended = succeed("train", "--solver", solver, "--weights", files, "--out", "out", folder=folder)
    assert f"{files.replace(',', ', ')}: have no layers ['ip2_new']; they start from their fillers" in ended.errors
    (tuned,) = (folder / "out").glob("snapshots/*/*.caffemodel")
    found, source = read_caffemodel(tuned), read_caffemodel(first)
    assert set(found) == {"conv1", "conv2", "ip1", "ip2_new"}
    for name, added in (("conv1", 0), ("conv2", 1), ("ip1", 1)):
        for ours, theirs in zip(found[name], source[name], strict=True):
            np.testing.assert_array_equal(ours, theirs + np.float32(added))
    assert found["ip2_new"][0].std() > 0


@pytest.mark.parametrize(
    ("effects", "signals", "files"),
    [
        pytest.param((), [signal.SIGHUP, signal.SIGINT], 2, marks=pytest.mark.slow),
        (("-sigint_effect=snapshot", "-sighup_effect=none"), [signal.SIGHUP, signal.SIGINT, signal.SIGTERM], 2),
    ],
)
def test_signals(net: Path, effects: tuple[str, ...], signals: list[signal.Signals], files: int) -> None:
    """SIGHUP saves and SIGINT stops (and saves); or what the flags say."""
    solver = write_solver(net, 10_000_000, display=1, snapshot_format="HDF5")
    folder = net.parent
    with Command("caffe", "train", "-solver", solver, *effects, *ONE_THREAD, folder=folder, is_forked=True) as command:
        (log,) = folder.glob(".errors-*")
        command.until(lambda: "Iteration 3," in log.read_text(), "iteration 3")
        for number in signals[:-1]:
            command.when_handled(number)
        command.until(lambda: list(folder.glob("*.solverstate.h5")), "a snapshot")
        command.send(signals[-1])
        ended = command.wait()
    assert ended.return_code == (75 if signals[-1] is signal.SIGTERM else 0)
    assert "Optimization stopped early." in ended.errors
    assert len(list(folder.glob("*.solverstate.h5"))) == files


def test_errors_are_one_sentence(net: Path) -> None:
    folder = net.parent
    solver = write_solver(net, 6, debug="x").with_suffix(".missing_folder")
    solver.write_text(write_solver(net, 6).read_text().replace('"narrow"', '"nowhere/narrow"'))
    cases = {
        ("train",): "-solver is missing",
        ("train", "-solver", "none"): "-solver none: no such file",
        ("train", "-solver", solver): "folder nowhere does not exist; make it, or change snapshot_prefix",
        ("train", "-solver", solver, "-snapshot", solver, "-weights", "a"): "exclude each other",
        ("test", "-model", net): "-weights is missing",
        ("time", "-model", net, "-gpu", "all"): "-gpu all: give the number of one GPU, such as 0",
    }
    for words, message in cases.items():
        ended = run("caffe", *words, folder=folder)
        assert ended.return_code == 2
        assert message in ended.error
