"""A solver trained in larger steps, by several workers."""

from pathlib import Path

import pytest

from tests.multiproc.command import metrics_of, result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver


def test_larger_steps_in_the_same_epochs(tmp_path: Path, digits: Path) -> None:
    solver = write_solver(write_net(tmp_path, digits), 12, iter_size=2, snapshot=8)
    arguments = ("--workers", 2, "--threads-per-worker", 1, "--large-batch", 96, "--warm-up-steps", 2)
    ended = succeed("train", "--solver", solver, *arguments, "--out", "out", folder=tmp_path)
    assert "96 samples a step instead of 24, the same epochs: base_lr 0.01 -> 0.02297, max_iter 12 -> 3" in ended.output
    result, lines = result_of(tmp_path / "out"), metrics_of(tmp_path / "out", "train")
    assert (result["effective_batch"], result["steps"], result["samples"]) == (96, 3, 12 * 24)
    rates = [0.01 * 4**0.6 * (1 + 0.0004 * step) ** -0.75 * min(1, (step + 1) / 2) for step in range(3)]
    assert [line["learning_rate"] for line in lines] == pytest.approx(rates, rel=1e-5)
    assert sorted(path.name for path in (tmp_path / "out/snapshots").glob("step_*")) == [
        "step_00000002",
        "step_00000003",
    ]
    ended = succeed(
        "train",
        "--solver",
        solver,
        *arguments[:4],
        "--iterations",
        4,
        "--snapshot",
        "latest",
        "--out",
        "out",
        folder=tmp_path,
    )
    assert "saved with other --large-batch; steps count on" in ended.errors


@pytest.mark.slow
def test_refused(tmp_path: Path, digits: Path) -> None:
    solver = write_solver(write_net(tmp_path, digits), 12)
    ended = run("train", "--solver", solver, "--large-batch", 8, folder=tmp_path)
    assert ended.return_code == 2
    assert ended.error.startswith("--large-batch 8: is smaller than the solver's own step of 12 samples")
    ended = run("train", "--solver", solver, "--rate-scaling", "sqrt", folder=tmp_path)
    assert ended.error == "--rate-scaling sqrt: belongs to --large-batch; give that too, or leave it out"
