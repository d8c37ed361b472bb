"""A run that was stopped and goes on ends with the bits of one that was never stopped."""

import random
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.multiproc.command import Command, last_step, metrics_of, result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver

TIMES = ("seconds", "samples_per_second", "last_rank")  # of a step
NUM_STEPS = 200
LAST_STOP, MORE_STEPS = 60, 40
ENDLESS = 10_000_000

Arguments = tuple[object, ...]
Unbroken = Callable[..., Path]


def arguments_of(solver: Path, workers: int, shuffle: bool, num_steps: int = NUM_STEPS) -> Arguments:
    shape = ("--workers", workers, "--threads-per-worker", 1, "--iterations", num_steps)
    return ("train", "--solver", solver, *shape, *(["--shuffle"] if shuffle else []))


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    return write_solver(write_net(tmp_path_factory.mktemp("nets"), digits), NUM_STEPS)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, solver: Path) -> Unbroken:
    """The folder of an uninterrupted run; each is made once."""

    @cache
    def get(workers: int, shuffle: bool, num_steps: int = NUM_STEPS) -> Path:
        folder = tmp_path_factory.mktemp("unbroken")
        succeed(*arguments_of(solver, workers, shuffle, num_steps), "--out", "out", folder=folder)
        return folder / "out"

    return get


def assert_same_run(out: Path, unbroken: Path, num_steps: int = NUM_STEPS) -> None:
    """The same weights, momentum, losses and tests, each step once."""
    mine, theirs = result_of(out), result_of(unbroken)
    assert mine["weights_sha256"] == theirs["weights_sha256"]
    assert mine["steps"] == theirs["steps"] == num_steps
    assert mine["stopped_by"] is None
    assert len(mine["peak_memory_bytes"]) == mine["workers"]
    assert min(mine["peak_memory_bytes"]) > 100 << 20  # PyTorch alone takes more
    assert (mine["test_loss"], mine["test_accuracy"]) == (theirs["test_loss"], theirs["test_accuracy"])
    for name in ("weights", "momentum"):
        files = [run / "snapshots" / f"step_{num_steps:08}" / f"{name}.safetensors" for run in (out, unbroken)]
        assert files[0].read_bytes() == files[1].read_bytes()
    lines, wanted = metrics_of(out), metrics_of(unbroken)
    for line in (*lines, *wanted):
        for name in [name for name in line if name in TIMES or name.endswith("_s")]:
            del line[name]
    assert lines == wanted
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, num_steps + 1))


@pytest.mark.parametrize(
    ("workers", "shuffle"),
    [(1, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, False), (2, True), (2, False)))],
)
def test_an_interrupted_run_goes_on_with_the_same_bits(
    solver: Path, unbroken: Unbroken, tmp_path: Path, workers: int, shuffle: bool
) -> None:
    """SIGINT at a random step, then --snapshot latest: neither names the run folder.

    The run has no end of its own, which a slow test might come too late for.
    """
    step = random.Random(f"{workers} {shuffle}").randrange(1, LAST_STOP)
    with Command(*arguments_of(solver, workers, shuffle, ENDLESS), folder=tmp_path, is_forked=True) as command:
        command.until(lambda: list(tmp_path.glob("runs/*")), "the run folder")
        (out,) = tmp_path.glob("runs/*")
        command.wait_for_step(out, step)
        command.send(signal.SIGINT)
        ended = command.wait()
    assert ended.return_code == 0, ended.errors
    stopped = result_of(out)
    assert stopped["stopped_by"] == "SIGINT"
    assert stopped["test_accuracy"] is None  # these weights were not tested
    assert f"stopped by SIGINT after step {stopped['steps']}" in ended.output
    assert step <= stopped["steps"]
    assert last_step(out) == stopped["steps"]
    assert (out / "snapshots" / "latest").read_text().strip() == f"step_{stopped['steps']:08}"
    num_steps = stopped["steps"] + MORE_STEPS
    succeed(*arguments_of(solver, workers, shuffle, num_steps), "--snapshot", "latest", folder=tmp_path)
    assert list(tmp_path.glob("runs/*")) == [out]
    assert_same_run(out, unbroken(workers, shuffle, num_steps), num_steps)


@pytest.mark.slow
def test_a_run_goes_on_from_a_folder_and_from_a_solverstate(solver: Path, unbroken: Unbroken, tmp_path: Path) -> None:
    """SIGHUP saves a snapshot on the way; from it the same weights come in another run folder."""
    out = tmp_path / "out"
    with Command(*arguments_of(solver, 1, False, ENDLESS), "--out", out, folder=tmp_path) as command:
        command.wait_for_step(out, 20)
        command.send(signal.SIGHUP)
        command.until(lambda: list(out.glob("snapshots/step_*")), "the snapshot")
        (saved,) = out.glob("snapshots/step_*")
        command.wait_for_step(out, int(saved.name.removeprefix("step_")) + MORE_STEPS)
        command.send(signal.SIGINT)
        ended = command.wait()
    assert ended.return_code == 0, ended.errors
    num_steps = result_of(out)["steps"]
    first, last = sorted(out.glob("snapshots/step_*"))
    assert first == saved
    assert 20 <= int(saved.name.removeprefix("step_")) < num_steps
    assert last.name == f"step_{num_steps:08}"
    (solverstate,) = saved.glob("*.solverstate")
    wanted = (last / "weights.safetensors").read_bytes()
    (later,) = last.glob("*.caffemodel")
    (tmp_path / solverstate.with_suffix(".caffemodel").name).write_bytes(later.read_bytes())  # of another run, perhaps
    arguments = arguments_of(solver, 1, False, num_steps)
    for name, start in (("from folder", saved), ("from solverstate", solverstate)):
        succeed(*arguments, "--snapshot", start, "--out", name, folder=tmp_path)
        assert (tmp_path / name / "snapshots" / last.name / "weights.safetensors").read_bytes() == wanted
        assert result_of(tmp_path / name)["weights_sha256"] == result_of(out)["weights_sha256"]
    whole = unbroken(1, False, num_steps) / "snapshots" / last.name
    for name in ("weights", "momentum"):
        assert (last / f"{name}.safetensors").read_bytes() == (whole / f"{name}.safetensors").read_bytes()


BATCH_NORM = """name: "bn"
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 8 dim: 16 } shape { dim: 8 } data_filler { type: "gaussian" std: 1 } data_filler { value: 1 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1" inner_product_param { num_output: 256
  weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "ip1" top: "bn" }
layer { name: "ip2" type: "InnerProduct" bottom: "bn" top: "ip2" inner_product_param { num_output: 256
  weight_filler { type: "xavier" } } }
layer { name: "ip3" type: "InnerProduct" bottom: "ip2" top: "ip3" inner_product_param { num_output: 4
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip3" bottom: "label" top: "loss" }
"""


def test_a_snapshot_waits_for_weights_that_are_under_way(tmp_path: Path) -> None:
    """Ranks with statistics of their own save their weights, too, and owners send these behind the next step."""
    (tmp_path / "net.prototxt").write_text(BATCH_NORM)
    solver = tmp_path / "solver.prototxt"
    fields = 'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 20 snapshot: 1 snapshot_prefix: "x"'
    solver.write_text(fields)
    shape = ("--workers", 2, "--threads-per-worker", 1, "--overlap", "full", "--bucket", 65_536)
    succeed("train", "--solver", solver, *shape, "--out", "whole", folder=tmp_path)
    for saved in sorted((tmp_path / "whole" / "snapshots").glob("step_*")):
        common = load_file(saved / "weights.safetensors")
        for rank in range(2):
            own = load_file(saved / f"rank_{rank}.safetensors")
            different = [
                name
                for name, value in common.items()
                if not name.startswith("bn/") and (own[f"weights/{name}"] != value).any()
            ]
            assert not different, (saved.name, rank)
    before = result_of(tmp_path / "whole")
    succeed("train", "--solver", solver, *shape, "--snapshot", "auto", "--out", "whole", folder=tmp_path)
    assert before["samples"] == 20 * 16
    assert result_of(tmp_path / "whole") == before  # of the run that trained: this one made no step


def test_a_run_without_a_step_leaves_the_snapshot_that_it_resumed(solver: Path, tmp_path: Path) -> None:
    """Of another strategy and number of workers: it would leave out what only the old ones had."""
    with_center = (*arguments_of(solver, 2, False, 4), "--strategy", "sync-easgd", "--out", "out")
    succeed(*with_center, folder=tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "out/snapshots").rglob("*") if path.is_file()}
    assert {"rank_0.safetensors", "rank_1.safetensors"} <= {path.name for path in before}
    for out in "out", "other":
        succeed(*arguments_of(solver, 1, False, 4), "--snapshot", "out/snapshots/latest", "--out", out, folder=tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "out/snapshots").rglob("*") if path.is_file()} == before
    assert list(tmp_path.glob("other/snapshots/step_*"))


def test_a_run_that_resumes_with_another_batch_says_so(solver: Path, tmp_path: Path) -> None:
    """Not for one worker, whose batch is the whole one in any case."""
    for workers, num_notices in (2, 1), (1, 0):
        out = ("--out", f"out{workers}")
        succeed(*arguments_of(solver, workers, False, 2), *out, folder=tmp_path)
        more = (*arguments_of(solver, 2, False, 4), *out, "--snapshot", "latest", "--batch-mode", "global")
        ended = succeed(*more, folder=tmp_path)
        assert ended.errors.count("saved with other --batch-mode, --exact or --recipe; steps count on") == num_notices
        same = (*arguments_of(solver, 2, False, 6), *out, "--snapshot", "latest", "--batch-mode", "global")
        assert "saved with other" not in succeed(*same, folder=tmp_path).errors


def test_a_run_resumes_without_the_weights_that_it_started_from(tmp_path: Path, digits: Path) -> None:
    net = write_net(tmp_path, digits)
    alone = ("--workers", 1, "--threads-per-worker", 1)
    succeed("train", "--solver", write_solver(net, 1), *alone, "--out", "before", folder=tmp_path)
    (model,) = tmp_path.glob("before/snapshots/*/*.caffemodel")
    start = tmp_path / "start.caffemodel"
    start.write_bytes(model.read_bytes())

    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'{write_solver(net, 4).read_text()}\nweights: "start.caffemodel"')
    train = ("train", "--solver", solver, *alone)
    succeed(*train, "--iterations", 2, "--out", "out", folder=tmp_path)
    start.unlink()
    succeed(*train, "--snapshot", "latest", "--out", "out", folder=tmp_path)
    assert result_of(tmp_path / "out")["steps"] == 4
    (state,) = tmp_path.glob("out/snapshots/step_00000002/*.solverstate")
    succeed("caffe", "train", f"-solver={solver}", f"-snapshot={state}", folder=tmp_path)
    succeed("inspect", solver, folder=tmp_path)
    succeed("time", "--solver", solver, "--iterations", 1, *alone[2:], folder=tmp_path)

    refused = run(*train, "--out", "new", folder=tmp_path)
    assert refused.return_code == 2
    assert "weights: 'start.caffemodel' does not exist" in refused.error
    assert not (tmp_path / "new").exists()
    caffe = run("caffe", "train", f"-solver={solver}", folder=tmp_path)
    assert "weights: 'start.caffemodel' does not exist" in caffe.errors
    succeed(*train, "--weights", model, "--out", "new", folder=tmp_path)
