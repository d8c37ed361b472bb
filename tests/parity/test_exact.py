"""`--exact K`: bitwise the same weights for any number of workers up to K."""

from pathlib import Path

import pytest

from tests.multiproc.command import result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver
from tests.parity.trained import Trainer, relative_difference

SLOW = pytest.mark.slow
BATCH = 50  # slices of 6 and 7 samples


def sha256(train: Trainer, workers: int, iter_size: int = 1) -> str:
    return train(workers, BATCH, "--exact", "8", iter_size=iter_size).result["weights_sha256"]


@pytest.mark.parametrize("workers", [3, *(pytest.param(workers, marks=SLOW) for workers in (2, 4, 5, 8))])
def test_any_number_of_workers_ends_with_the_same_bits(train: Trainer, workers: int) -> None:
    assert sha256(train, workers) == sha256(train, 1)


@SLOW
@pytest.mark.parametrize("workers", [2, 3])
def test_so_it_is_with_several_batches_a_step(train: Trainer, workers: int) -> None:
    assert sha256(train, workers, iter_size=3) == sha256(train, 1, iter_size=3)


@SLOW
@pytest.mark.slow
def test_it_learns_what_the_whole_batch_does(train: Trainer) -> None:
    exact, plain = train(1, BATCH, "--exact", "8"), train(1, BATCH)
    assert 0 < relative_difference(exact, plain) < 1e-6
    assert exact.result["effective_batch"] == BATCH


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_workers_and_the_same_bits(digits: Path, tmp_path: Path) -> None:
    """The published LeNet's kind, with maxima: bits are bits."""
    solver = write_solver(write_net(tmp_path, digits, BATCH), 40, snapshot=20)

    def trained(workers: int, out: str, *flags: object) -> str:
        shape = ("--workers", workers, "--exact", 4)  # and as many threads each, whatever the workers are
        succeed("train", "--solver", solver, *shape, "--out", out, *flags, folder=tmp_path)
        return str(result_of(tmp_path / out)["weights_sha256"])

    unbroken = trained(2, "unbroken")
    half = tmp_path / "unbroken" / "snapshots" / "step_00000020"
    assert trained(3, "resumed", "--snapshot", half) == unbroken


def test_what_mixes_samples_is_refused_by_name(digits: Path, tmp_path: Path) -> None:
    net = write_net(tmp_path, digits)
    net.write_text(net.read_text() + 'layer { name: "bn" type: "BatchNorm" bottom: "ip1" top: "bn" }')
    solver = write_solver(net)
    error = refusal(solver, tmp_path, "--exact", 4)
    assert "--exact 4" in error
    assert "bn (BatchNorm)" in error


def test_a_loss_that_is_no_mean_is_refused_by_name(digits: Path, tmp_path: Path) -> None:
    assert "loss (SoftmaxWithLoss)" in refusal(write_solver(with_sum(digits, tmp_path)), tmp_path, "--exact", 4)


def test_workers_that_share_a_batch_are_warned_of_a_loss_that_is_no_mean(digits: Path, tmp_path: Path) -> None:
    flags = ("--workers", 2, "--batch-mode", "global", "--threads-per-worker", 1, "--out", "out")
    ended = succeed("train", "--solver", write_solver(with_sum(digits, tmp_path), 1), *flags, folder=tmp_path)
    assert "loss (SoftmaxWithLoss): this loss is a sum, or leaves out labels" in ended.output + ended.errors


def with_sum(digits: Path, folder: Path) -> Path:
    net = write_net(folder, digits)
    net.write_text(net.read_text().replace('top: "loss"', 'top: "loss" loss_param { normalization: NONE }'))
    return net


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--exact", 2, "--workers", 3), "--exact 2"),
        (("--exact", 13), "no sample for each slice"),
        (("--exact", 4, "--strategy", "local-sgd"), "local-sgd"),
        (("--exact", 4, "--bucket", "layer"), "--bucket"),
        (("--exact", 4, "--collective", "ring"), "--collective"),
        (("--exact", 4, "--owner", "parts"), "leave --overlap, --bucket and --owner out"),
    ],
)
def test_what_does_not_fit_is_refused(digits: Path, tmp_path: Path, flags: tuple[object, ...], named: str) -> None:
    solver = write_solver(write_net(tmp_path, digits))
    assert named in refusal(solver, tmp_path, *flags)


def refusal(solver: Path, folder: Path, *flags: object) -> str:
    """The output of a run that ends immediately."""
    ended = run("train", "--solver", solver, *flags, "--out", folder / "out", folder=folder)
    assert ended.return_code == 2
    return ended.error
