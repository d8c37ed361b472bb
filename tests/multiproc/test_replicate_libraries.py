"""`samovar.replicate(..., transport="mpi")` under mpiexec: the weights of shared memory, and ranks that end early."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MPIEXEC = shutil.which(Path(sys.executable).with_name("mpiexec")) or shutil.which("mpiexec")
PROGRAM = "tests.multiproc.replicate_mpi_program"
TIMEOUT_S = 120.0
SCRIPT = """import samovar, torch
net = torch.nn.Linear(1, 1)
samovar.replicate(net, torch.optim.SGD(net.parameters()), transport="mpi")
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MPIEXEC is None or find_spec("mpi4py") is None, reason="needs MPI: pip install 'samovar[mpi]'"),
]


def run(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MPIEXEC), "-n", "2", sys.executable, "-m", PROGRAM, *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def weights(transport: str, what: str, folder: Path, **variables: str) -> list[dict[str, str]]:
    folder.mkdir()
    ended = run(transport, what, folder, **variables)
    assert ended.returncode == 0, ended.stderr
    assert ("2 ranks on one host; by MPI (MPICH" in ended.stderr) == (transport == "mpi"), ended.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("variables", [{}, {"MPIR_CVAR_NOLOCAL": "1"}], ids=["host", "apart"])
def test_strategies_in_step_give_the_weights_of_shared_memory(variables: dict[str, str], tmp_path: Path) -> None:
    ours, theirs = (weights(transport, "in-step", tmp_path / transport, **variables) for transport in ("mpi", "shm"))
    assert ours == theirs


@pytest.mark.parametrize("what", ["own-speed", "groups"])
def test_strategies_at_a_center_train(what: str, tmp_path: Path) -> None:
    assert len(weights("mpi", what, tmp_path / what)) == 2


@pytest.mark.parametrize(
    ("what", "sentence"), [("fail", "AssertionError: a mistake of rank 1"), ("early", "rank 0: rank 1 (process ")]
)
def test_a_rank_that_ends_early_ends_the_others(what: str, sentence: str, tmp_path: Path) -> None:
    ended = run("mpi", what, tmp_path)
    assert ended.returncode != 0
    assert sentence in ended.stderr, ended.stderr


def test_ranks_of_another_launcher_are_refused(tmp_path: Path) -> None:
    """What `samovar run` or torchrun starts is no rank of MPI."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    samovar = Path(sys.executable).with_name("samovar")
    ended = subprocess.run(
        [samovar, "run", "-n", "2", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "this process is rank 0 of 1, and the job has 2; start it by that MPI's mpiexec" in ended.stderr
