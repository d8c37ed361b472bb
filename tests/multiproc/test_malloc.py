"""The user's settings of malloc come before those of a rank."""

import resource
from pathlib import Path

import pytest

from tests.multiproc.command import Command
from tests.multiproc.nets import write_net, write_solver

NUM_STEPS = 60


def faults_of_a_run(solver: Path, out: Path) -> int:
    """Of a child of this process: the kernel counts those."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    words = ("train", "--solver", solver, "--threads-per-worker", 1, "--out", out)
    with Command(*words, folder=out.parent) as command:
        assert command.wait().return_code == 0
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before


@pytest.mark.slow
def test_a_rank_keeps_freed_memory_unless_the_user_said_otherwise(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blobs of 1.4 MB and less, which come fresh from the kernel in each step where malloc gives them back."""
    solver = write_solver(write_net(tmp_path, digits, batch=100), NUM_STEPS, test_initialization="false")
    kept = faults_of_a_run(solver, tmp_path / "kept")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    assert faults_of_a_run(solver, tmp_path / "given-back") - kept > 300 * NUM_STEPS
