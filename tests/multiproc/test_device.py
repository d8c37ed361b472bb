"""--device from the command line: the same bits with the copies of a device, resumed, tested and timed too."""

import json
from pathlib import Path

import pytest

from tests.multiproc.command import metrics_of, result_of, succeed
from tests.multiproc.nets import write_net, write_solver

STEPS, SAVED = 12, 5
COMPARED = ("weights_sha256", "train_loss", "test_loss", "test_accuracy")


def test_ranks_connect_their_devices_and_keep_the_model_there(tmp_path: Path, digits: Path) -> None:
    solver = write_solver(write_net(tmp_path, digits), 5)
    runs = {}
    for device in ("cpu", "cpu-near"):
        out = tmp_path / device
        words = ("--workers", 2, "--threads-per-worker", 1, "--device", device, "--out", out)
        said = succeed("train", "--solver", solver, *words, folder=tmp_path).output
        runs[device] = {name: result_of(out)[name] for name in COMPARED}, metrics_of(out, "train")
        assert ("gloo" in said) == (device == "cpu-near"), said
    (result, steps), (result_near, steps_near) = runs["cpu"], runs["cpu-near"]
    assert result_near == result
    assert [(one["step"], one["loss"]) for one in steps_near] == [(one["step"], one["loss"]) for one in steps]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "workers"), [("round-robin-easgd", 2), ("async-sgd", 1), ("async-easgd", 1), ("shm-easgd", 1)]
)
def test_a_run_at_a_center_is_the_run_on_the_cpu(tmp_path: Path, digits: Path, name: str, workers: int) -> None:
    solver = write_solver(write_net(tmp_path, digits), STEPS, snapshot=SAVED)
    shape = ("--workers", workers, "--threads-per-worker", 1, "--sync-period", 3, "--strategy", name)
    runs, resumed = {}, {}
    for device in ("cpu", "cpu-staged", "cpu-near"):
        out, later = tmp_path / device, tmp_path / "resumed" / device
        words = ("train", "--solver", solver, *shape, "--device", device)
        said = succeed(*words, "--out", out, folder=tmp_path).output
        assert "copies the model" not in said
        saved = out / "snapshots" / f"step_{SAVED:08}"
        succeed(*words, "--snapshot", saved, "--out", later, folder=tmp_path)
        runs[device], resumed[device] = (
            {name: result_of(folder)[name] for name in COMPARED} for folder in (out, later)
        )
    assert runs["cpu-staged"] == runs["cpu-near"] == runs["cpu"]
    assert resumed["cpu-staged"] == resumed["cpu-near"] == resumed["cpu"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["async-sgd", "async-easgd", "shm-easgd"])
def test_two_workers_at_a_center_repeat_on_devices_the_order_of_the_cpu(
    tmp_path: Path, digits: Path, name: str
) -> None:
    words = ("train", "--solver", write_solver(write_net(tmp_path, digits), STEPS))
    shape = ("--workers", 2, "--threads-per-worker", 1, "--sync-period", 2, "--strategy", name, "--recipe", "none")
    succeed(*words, *shape, "--record", "--out", "cpu", folder=tmp_path)
    settings = tmp_path / "cpu" / "config.json"  # a replay asks for the recorded device
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"device": "cpu-near"}))
    again = ("--device", "cpu-near", "--replay", "cpu", "--out", "near")
    succeed(*words, *shape, *again, folder=tmp_path)
    ours, theirs = (result_of(tmp_path / out)["weights_sha256"] for out in ("near", "cpu"))
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_on_a_device_is_the_run_on_the_cpu(tmp_path: Path, digits: Path) -> None:
    net = write_net(tmp_path, digits)
    solver = write_solver(net, STEPS, snapshot=SAVED)
    shape = ("--workers", 2, "--threads-per-worker", 1, "--sync-period", 3, "--strategy", "sync-easgd")
    runs = {}
    for device in ("cpu", "cpu-staged", "cpu-near"):
        out = tmp_path / device
        succeed("train", "--solver", solver, *shape, "--device", device, "--out", out, folder=tmp_path)
        runs[device] = {name: result_of(out)[name] for name in COMPARED}
    assert runs["cpu-staged"] == runs["cpu-near"] == runs["cpu"]
    for device in ("cpu-staged", "cpu-near"):
        saved = tmp_path / device / "snapshots" / f"step_{SAVED:08}"
        resumed = tmp_path / "resumed" / device
        more = ("--device", device, "--snapshot", saved, "--out", resumed)
        succeed("train", "--solver", solver, *shape, *more, folder=tmp_path)
        assert {name: result_of(resumed)[name] for name in COMPARED} == runs["cpu"]
        assert metrics_of(resumed, "test") == metrics_of(tmp_path / "cpu", "test")[-1:]
    weights = next((tmp_path / "cpu" / "snapshots" / f"step_{STEPS:08}").glob("*.caffemodel"))
    tested = [
        succeed("test", "--model", net, "--weights", weights, "--iterations", 3, "--device", device, folder=tmp_path)
        for device in ("cpu", "cpu-staged")
    ]
    assert tested[0].output == tested[1].output
    assert "accuracy" in tested[0].output
    timed = succeed("time", "--model", net, "--iterations", 2, "--device", "cpu-staged", folder=tmp_path)
    assert "conv1" in timed.output
