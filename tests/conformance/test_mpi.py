"""Windows of MPI, ranks that mpiexec starts: every plan exact at its counted cost, every strategy, all verbs.

MPICH moves data in shared memory. With `apart` it takes every rank for a host of its own, and uses its network.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from samovar.core.errors import RankFailed
from samovar.strategies.config import StrategyConfig
from tests.conformance import cases
from tests.conformance.processes import ROOT, TIMEOUT_S, Report, assert_as_documented
from tests.conformance.test_tcp_strategies import PLANS, START
from tests.unit.strategies import harness, test_center, test_definitions

MPIEXEC = shutil.which(Path(sys.executable).with_name("mpiexec")) or shutil.which("mpiexec")
NUM_STEPS = 7
STRATEGIES = test_definitions.CONFIGS | {
    f"{plan}, {overlap}": StrategyConfig("sync", plan, 64, overlap=overlap)
    for plan in PLANS
    for overlap in ("none", "backward")
}
pytestmark = pytest.mark.skipif(
    MPIEXEC is None or find_spec("mpi4py") is None, reason="needs MPI: pip install 'samovar[mpi]'"
)
WHERE = pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["host", "apart"])


def job(config: StrategyConfig) -> harness.Job:
    return harness.Job(config, test_definitions.gradient, NUM_STEPS, START)


def ended_ranks(part: str, world_size: int, folder: Path, *, apart: bool) -> "subprocess.CompletedProcess[str]":
    words = [str(MPIEXEC), "-n", str(world_size), sys.executable, "-m", "tests.conformance.mpi_rank_program"]
    return subprocess.run(
        [*words, part, str(folder)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | ({"MPIR_CVAR_NOLOCAL": "1"} if apart else {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def run_ranks(part: str, world_size: int, folder: Path, *, apart: bool) -> list[list[Any]]:
    """What each rank found, in their order."""
    ended = ended_ranks(part, world_size, folder, apart=apart)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    files = [folder / f"{rank}.json" for rank in range(world_size)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@WHERE
@pytest.mark.parametrize("world_size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in range(3, 9))])
def test_every_plan_is_exact_and_costs_what_it_says(world_size: int, apart: bool, tmp_path: Path) -> None:
    reports: dict[tuple[Any, ...], list[Report]] = defaultdict(list)
    for rank in run_ranks("plans", world_size, tmp_path, apart=apart):
        for report in rank:
            reports[tuple(report["case"])].append(report)
    assert len(reports) == sum(case.executor == "python" for case in cases.cases()) * cases.NUM_RUNS
    assert_as_documented(reports, world_size)


@pytest.mark.slow
@WHERE
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_strategies_in_step_give_the_bits_of_shared_memory(world_size: int, apart: bool, tmp_path: Path) -> None:
    found = run_ranks("strategies", world_size, tmp_path, apart=apart)
    for number, (name, config) in enumerate(STRATEGIES.items()):
        wanted = [
            [None if array is None else hashlib.sha256(array).hexdigest() for array in harness.bits(left)]
            for left in harness.on_shm(job(config), world_size)
        ]
        assert [rank[number] for rank in found] == wanted, name


@pytest.mark.slow
@WHERE
def test_strategies_at_a_center_are_their_definitions(apart: bool, tmp_path: Path) -> None:
    found = run_ranks("centers", test_center.WORLD_SIZE, tmp_path, apart=apart)
    assert found == [list(test_center.CONFIGS)] * test_center.WORLD_SIZE


@pytest.mark.slow
@WHERE
@pytest.mark.parametrize("world_size", [2, 4])
def test_verbs(world_size: int, apart: bool, tmp_path: Path) -> None:
    assert len(run_ranks("verbs", world_size, tmp_path, apart=apart)) == world_size


@pytest.mark.slow
@WHERE
def test_mistakes_and_lost_ranks_end_in_errors_that_name_them(apart: bool, tmp_path: Path) -> None:
    assert run_ranks("mistakes", 2, tmp_path, apart=apart) == [["done"]] * 2


@pytest.mark.slow
def test_a_rank_that_is_stopped_ends_the_job(tmp_path: Path) -> None:
    """MPI itself would wait for its answer without end."""
    ended = ended_ranks("stopped", 2, tmp_path, apart=True)
    assert ended.returncode == RankFailed.exit_code, ended.stderr
    assert "rank 0: rank 1 did not answer in time; is it stopped" in ended.stderr
