"""`samovar.replicate(..., transport="mpi")` and `"gaspi"`: the weights of shared memory, and ranks that end early."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.libraries import TIMEOUT_S, WAYS, Ended, Library, library

PROGRAM = "tests.multiproc.replicate_library_program"
SCRIPT = """import samovar, torch
net = torch.nn.Linear(1, 1)
samovar.replicate(net, torch.optim.SGD(net.parameters()), transport="mpi")
"""
pytestmark = pytest.mark.slow


@pytest.fixture(params=WAYS)
def over(request: pytest.FixtureRequest) -> Library:
    return library(request.param, request.config)


def run(over: Library, transport: str, what: str, folder: Path) -> Ended:
    return over.run(["-m", PROGRAM, transport, what, folder], 2)


def weights(over: Library, transport: str, what: str, folder: Path) -> list[dict[str, str]]:
    folder.mkdir()
    ended = run(over, transport, what, folder)
    assert not any(ended.exit_codes), ended.stderr
    means = {"mpi": "MPI (MPICH", "gaspi": "GASPI (GPI-2, "}[over.transport]
    assert (f"2 ranks on one host; by {means}" in ended.stderr) == (transport != "shm"), ended.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_strategies_in_step_give_the_weights_of_shared_memory(over: Library, tmp_path: Path) -> None:
    ours, theirs = (weights(over, name, "in-step", tmp_path / name) for name in (over.transport, "shm"))
    assert ours == theirs


@pytest.mark.parametrize("what", ["own-speed", "groups"])
def test_strategies_at_a_center_train(what: str, over: Library, tmp_path: Path) -> None:
    assert len(weights(over, over.transport, what, tmp_path / what)) == 2


@pytest.mark.parametrize(
    ("what", "sentence"), [("fail", "AssertionError: a mistake of rank 1"), ("early", "rank 0: rank 1 (process ")]
)
def test_a_rank_that_ends_early_ends_the_others(what: str, sentence: str, over: Library, tmp_path: Path) -> None:
    ended = run(over, over.transport, what, tmp_path)
    assert ended.exit_codes[0] != 0
    assert -9 not in ended.exit_codes
    assert sentence in ended.stderr, ended.stderr


def test_ranks_of_another_launcher_are_refused_by_mpi(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """What `samovar run` or torchrun starts is no rank of MPI."""
    library("mpi", request.config)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    samovar = Path(sys.executable).with_name("samovar")
    ended = subprocess.run(
        [samovar, "run", "-n", "2", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "this process is rank 0 of 1, and the job has 2; start it by that MPI's mpiexec" in ended.stderr
