"""Solvers with two histories, and clipping over all buckets, with several workers and through snapshots."""

from pathlib import Path

import pytest

from tests.multiproc.command import result_of, succeed
from tests.multiproc.nets import write_net, write_solver

NUM_STEPS = 20
ADAM = {"type": '"Adam"', "momentum2": 0.99, "clip_gradients": 1.5, "momentum": 0.8, "snapshot": 10}


@pytest.fixture
def solver(tmp_path: Path, digits: Path) -> Path:
    path = write_solver(write_net(tmp_path, digits), NUM_STEPS)
    text = path.read_text()
    for name, value in ADAM.items():
        kept = [line for line in text.splitlines() if not line.startswith(f"{name}:")]
        text = "\n".join([*kept, f"{name}: {value}"])
    path.write_text(text.replace("base_lr: 0.01", "base_lr: 0.001"))
    return path


SHARING = [
    ("--bucket", "layer"),
    pytest.param(("--bucket", "model"), marks=pytest.mark.slow),
    pytest.param(("--strategy", "local-sgd", "--sync-period", 4), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("flags", SHARING, ids=lambda flags: flags[-1])
def test_a_resumed_run_of_two_workers_has_the_same_bits(solver: Path, tmp_path: Path, flags: tuple[object]) -> None:
    """The second half from the snapshot after the first; clipping needs all buckets, two histories are kept."""
    command = ("train", "--solver", solver, "--workers", 2, "--threads-per-worker", 1, *flags)
    succeed(*command, "--out", "whole", folder=tmp_path)
    half = tmp_path / "whole/snapshots/step_00000010"
    assert {path.suffix for path in half.glob("*_iter_10*")} == {".caffemodel", ".solverstate"}
    succeed(*command, "--out", "resumed", "--snapshot", half, folder=tmp_path)
    whole, resumed = (result_of(tmp_path / name) for name in ("whole", "resumed"))
    assert whole["weights_sha256"] == resumed["weights_sha256"]
    assert whole["test_accuracy"] > 0.3  # chance: 0.1


@pytest.mark.parametrize("prefix", ['".quiet"', pytest.param(r'"models\\quiet"', marks=pytest.mark.slow)])
def test_a_prefix_that_is_no_plain_name_still_saves(tmp_path: Path, digits: Path, prefix: str) -> None:
    solver = write_solver(write_net(tmp_path, digits), 1)
    kept = [line for line in solver.read_text().splitlines() if "snapshot_prefix" not in line]
    solver.write_text("\n".join([*kept, f"snapshot_prefix: {prefix}", ""]))
    succeed("train", "--solver", solver, "--out", "out", folder=tmp_path)
    assert (tmp_path / "out/snapshots/step_00000001/quiet_iter_1.solverstate").exists()


@pytest.mark.slow
def test_debug_info_shows_the_displayed_iterations_also_beyond_max_iter(tmp_path: Path, digits: Path) -> None:
    solver = write_solver(write_net(tmp_path, digits), 4, debug_info="true", display=3)
    ended = succeed("train", "--solver", solver, "--iterations", 10, folder=tmp_path)
    assert ended.output.count("All net params (data, diff)") == 4  # 0, 3, 6, 9
