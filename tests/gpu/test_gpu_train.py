"""`samovar train` on a real GPU: by NCCL, at a center and through the host's memory, against the CPU."""

import json
import signal
from pathlib import Path
from typing import get_args

import pytest

from samovar.strategies.ours import StrategyName
from tests.gpu.gpus import ALONE, apart, needs_gpu
from tests.multiproc.command import Command, metrics_of, result_of, run
from tests.multiproc.digits import digits
from tests.multiproc.nets import write_net, write_solver

__all__ = ["digits"]
pytestmark = [needs_gpu, pytest.mark.timeout(300)]
STEPS, SAVED, PERIOD = 12, 5, 3
NEAR = ("sync", "local-sgd", "diloco", "slowmo", "sync-easgd")
IN_STEP = (*NEAR, "hybrid-easgd", "round-robin-easgd")
CLOSE, NEARLY = 2e-4, 1e-2


def shape(name: str, workers: int) -> tuple[object, ...]:
    period = () if name in ("sync", "hogwild-sgd") else ("--sync-period", PERIOD)
    groups = ("--group-size", 2) if name == "hybrid-easgd" else ()
    shared = ("--workers", workers, "--threads-per-worker", 1, "--oversubscribe")
    return (*shared, "--strategy", name, "--recipe", "none", *period, *groups)


def trained(folder: Path, out: str, *words: object, prefix: tuple[str, ...] = ALONE) -> str:
    ended = run("train", *words, "--out", out, folder=folder, prefix=prefix)
    assert ended.return_code == 0, ended.errors
    return ended.output + ended.errors


def losses(out: Path) -> list[float]:
    return [one["loss"] for one in metrics_of(out, "train")]


def require_same_course(ours: Path, theirs: Path) -> None:
    assert losses(ours) == pytest.approx(losses(theirs), rel=CLOSE)
    assert result_of(ours)["test_loss"] == pytest.approx(result_of(theirs)["test_loss"], rel=CLOSE)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("name", NEAR)
def test_ranks_exchange_by_nccl_and_learn_as_on_the_cpu(tmp_path: Path, digits: Path, name: str, workers: int) -> None:
    solver = ("--solver", write_solver(write_net(tmp_path, digits, smooth=True), STEPS))
    trained(tmp_path, "cpu", *solver, *shape(name, workers))
    said = trained(tmp_path, "gpu", *solver, *shape(name, workers), "--device", "cuda", prefix=apart(tmp_path))
    assert "copies the model" not in said
    assert workers == 1 or "nccl" in said
    require_same_course(tmp_path / "gpu", tmp_path / "cpu")


@pytest.mark.parametrize("name", IN_STEP)
def test_workers_share_a_gpu_and_learn_as_on_the_cpu(tmp_path: Path, digits: Path, name: str) -> None:
    solver = ("--solver", write_solver(write_net(tmp_path, digits, smooth=True), STEPS))
    trained(tmp_path, "cpu", *solver, *shape(name, 2))
    said = trained(tmp_path, "gpu", *solver, *shape(name, 2), "--device", "cuda:0")
    assert "2 workers share 1" in said
    assert ("copies the model" in said) == (name != "round-robin-easgd")
    if name != "hybrid-easgd":
        require_same_course(tmp_path / "gpu", tmp_path / "cpu")
    else:  # groups are not awaited: which losses are told, and who makes the last step, differs from run to run
        ours, theirs = (result_of(tmp_path / out)["test_loss"] for out in ("gpu", "cpu"))
        assert ours == pytest.approx(theirs, rel=NEARLY)


@pytest.mark.parametrize("name", [name for name in get_args(StrategyName) if name not in IN_STEP])
def test_asynchronous_workers_share_a_gpu(tmp_path: Path, digits: Path, name: str) -> None:
    solver = ("--solver", write_solver(write_net(tmp_path, digits), 150))
    said = trained(tmp_path, "gpu", *solver, *shape(name, 2), "--device", "cuda:0", "--sync-period", 1)
    assert "copies the model" not in said
    assert result_of(tmp_path / "gpu")["test_accuracy"] > 0.8


@pytest.mark.parametrize("name", NEAR)
def test_a_resumed_run_has_the_bits_of_the_whole_one(tmp_path: Path, digits: Path, name: str) -> None:
    words = ("--solver", write_solver(write_net(tmp_path, digits), STEPS, snapshot=SAVED), *shape(name, 2))
    words = (*words, "--device", "cuda")
    trained(tmp_path, "whole", *words, prefix=apart(tmp_path))
    saved = tmp_path / "whole" / "snapshots" / f"step_{SAVED:08}"
    trained(tmp_path, "resumed", *words, "--snapshot", saved, prefix=apart(tmp_path))
    whole, resumed = (result_of(tmp_path / out) for out in ("whole", "resumed"))
    assert resumed["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize("by_nccl", [True, False])
def test_weights_that_are_not_finite_end_the_run(tmp_path: Path, digits: Path, by_nccl: bool) -> None:
    solver = write_solver(write_net(tmp_path, digits), 400)
    solver.write_text(solver.read_text().replace("base_lr: 0.01", "base_lr: 1e20"))
    prefix = apart(tmp_path) if by_nccl else ALONE
    words = ("train", "--solver", solver, *shape("sync", 2), "--device", "cuda", "--out", "out")
    ended = run(*words, folder=tmp_path, prefix=prefix)
    assert ended.return_code != 0
    assert "not finite" in ended.errors or "nan" in ended.errors.lower(), ended.errors


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_rank_of_nccl_that_is_killed_ends_the_run(tmp_path: Path, digits: Path, number: signal.Signals) -> None:
    """The others would wait for it on the GPU for ever. SIGINT goes to the launcher, and saves first."""
    solver = write_solver(write_net(tmp_path, digits), 1_000_000)
    words = ("train", "--solver", solver, *shape("sync", 2), "--device", "cuda", "--out", tmp_path / "out")
    with Command(*words, folder=tmp_path, prefix=apart(tmp_path)) as command:
        command.wait_for_step(tmp_path / "out", 20)
        if number == signal.SIGKILL:
            command.wait_for_rank(1).send_signal(number)
        else:
            command.send(number)
        ended = command.wait(60.0)
    assert ended.return_code == (3 if number == signal.SIGKILL else 0), ended.errors
    if number == signal.SIGKILL:
        assert "rank 1" in ended.error
    else:
        assert json.loads((tmp_path / "out" / "result.json").read_text())["steps"] >= 20


def test_each_command_takes_the_gpu(tmp_path: Path, digits: Path) -> None:
    net = write_net(tmp_path, digits)
    words = ("--solver", write_solver(net, STEPS, snapshot=STEPS), "--workers", "gpu", "--recipe", "none")
    assert "computing on cuda:0" in trained(tmp_path, "gpu", *words)
    weights = next((tmp_path / "gpu" / "snapshots" / f"step_{STEPS:08}").glob("*.caffemodel"))
    tested = ("test", "--model", net, "--weights", weights, "--iterations", 3)
    timed = ("time", "--model", net, "--iterations", 2)
    for command, said in ((tested, "accuracy"), (timed, "conv1"), (("doctor",), "cuda:0")):
        device = () if command == ("doctor",) else ("--device", "cuda")
        ended = run(*command, *device, folder=tmp_path, prefix=ALONE)
        assert ended.return_code == 0, ended.errors
        assert said in ended.output
    refused = run("train", "--solver", words[1], "--device", "cuda:99", folder=tmp_path, prefix=ALONE)
    assert refused.return_code == 2
    assert "the last is cuda:" in refused.error
