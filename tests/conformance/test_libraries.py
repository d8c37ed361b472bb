"""Windows of MPI and of GASPI: every plan exact at its counted cost, every strategy, all verbs, all mistakes."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack, suppress
from ctypes.util import find_library
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.core.errors import InputError, RankFailed
from samovar.strategies.config import StrategyConfig
from samovar.transports.gaspi import completed
from tests.conformance import cases
from tests.conformance.processes import ROOT, TIMEOUT_S, Report, assert_as_documented
from tests.conformance.test_tcp_strategies import PLANS, START
from tests.libraries import WAYS, Ended, Library, library
from tests.unit.strategies import harness, test_center, test_definitions

NUM_STEPS = 7
# With 8 workers a moving rate of 0.2 diverges for workers that go further.
DEFINED = {
    name: replace(config, moving_rate=0.15) if config.worker_rate else config
    for name, config in test_definitions.CONFIGS.items()
}
STRATEGIES = DEFINED | {
    f"{plan}, {overlap}": StrategyConfig("sync", plan, 64, overlap=overlap)
    for plan in PLANS
    for overlap in ("none", "backward")
}


@pytest.fixture(params=[pytest.param(way, marks=pytest.mark.slow) if way == "mpi-apart" else way for way in WAYS])
def over(request: pytest.FixtureRequest) -> Library:
    return library(request.param, request.config)


@pytest.fixture
def gaspi(request: pytest.FixtureRequest) -> Library:
    return library("gaspi", request.config)


def job(config: StrategyConfig) -> harness.Job:
    return harness.Job(config, test_definitions.gradient, NUM_STEPS, START)


def ended_ranks(over: Library, part: str, world_size: int, folder: Path) -> Ended:
    return over.run(["-m", "tests.conformance.external_rank_program", over.transport, part, folder], world_size)


def run_ranks(over: Library, part: str, world_size: int, folder: Path) -> list[list[Any]]:
    """What each rank found, in their order."""
    ended = ended_ranks(over, part, world_size, folder)
    assert not any(ended.exit_codes), ended.stderr
    assert not [line for line in ended.stderr.splitlines() if " ranks on one host; by GASPI" not in line]
    files = [folder / f"{rank}.json" for rank in range(world_size)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.mark.parametrize("world_size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in range(3, 9))])
def test_every_plan_is_exact_and_costs_what_it_says(world_size: int, over: Library, tmp_path: Path) -> None:
    reports: dict[tuple[Any, ...], list[Report]] = defaultdict(list)
    for rank in run_ranks(over, "plans", world_size, tmp_path):
        for report in rank:
            reports[tuple(report["case"])].append(report)
    assert len(reports) == sum(case.executor == "python" for case in cases.cases()) * cases.NUM_RUNS
    assert_as_documented(reports, world_size)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_strategies_in_step_give_the_bits_of_shared_memory(world_size: int, over: Library, tmp_path: Path) -> None:
    found = run_ranks(over, "strategies", world_size, tmp_path)
    for number, (name, config) in enumerate(STRATEGIES.items()):
        wanted = [
            [None if array is None else hashlib.sha256(array).hexdigest() for array in harness.bits(left)]
            for left in harness.on_shm(job(config), world_size)
        ]
        assert [rank[number] for rank in found] == wanted, name


@pytest.mark.slow
def test_strategies_at_a_center_are_their_definitions(over: Library, tmp_path: Path) -> None:
    found = run_ranks(over, "centers", test_center.WORLD_SIZE, tmp_path)
    assert found == [list(test_center.CONFIGS)] * test_center.WORLD_SIZE


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_verbs(world_size: int, over: Library, tmp_path: Path) -> None:
    assert len(run_ranks(over, "verbs", world_size, tmp_path)) == world_size


@pytest.mark.slow
def test_ports_of_another_job_of_gaspi_are_left_to_it(gaspi: Library, tmp_path: Path) -> None:
    """By itself GPI-2 takes 19000 and those behind it on every host for its data."""
    with ExitStack() as taken:
        for port in (19_000, 19_001):
            with suppress(OSError):  # another job has it already
                taken.enter_context(socket.create_server(("", port)))
        assert len(run_ranks(gaspi, "verbs", 2, tmp_path)) == 2


@pytest.mark.slow
def test_mistakes_and_lost_ranks_end_in_errors_that_name_them(over: Library, tmp_path: Path) -> None:
    assert run_ranks(over, "mistakes", 2, tmp_path) == [["done"]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("over", ["mpi-apart", "gaspi"], indirect=True)
def test_a_rank_that_is_stopped_ends_the_job(over: Library, tmp_path: Path) -> None:
    """The library itself would wait for its answer without end."""
    ended = ended_ranks(over, "stopped", 2, tmp_path)
    assert ended.exit_codes[0] == RankFailed.exit_code, ended.stderr
    assert "rank 0: rank 1 did not answer in time; is it stopped" in ended.stderr


@pytest.mark.slow
def test_a_killed_rank_is_seen_by_those_that_wait_for_it_and_by_those_that_use_it(
    gaspi: Library, tmp_path: Path
) -> None:
    """As on another host: nothing but the connection tells of it."""
    ended = ended_ranks(gaspi, "killed", 3, tmp_path)
    assert ended.exit_codes == [0, 0, -9], ended.stderr
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == ["seen", "seen"]


def test_a_notification_of_gaspi_is_completed_from_the_one_before() -> None:
    """It has 31 of the 64 bits of ours."""
    for before in (0, 1, 2**30 - 1, 2**31 - 1, 2**31, 2**40 + 5):
        for change in (-(2**30) + 1, -1, 0, 1, 2**24, 2**30 - 1):
            if (value := before + change) >= 0:
                assert completed(before, value % 2**31) == value


@pytest.mark.skipif(find_library("GPI2") is not None, reason="this system has GPI-2 for all programs")
def test_a_missing_library_of_gaspi_is_refused_with_what_to_install(tmp_path: Path) -> None:
    refused = "transport 'gaspi' needs GPI-2, and the loader finds no libGPI2.so: install it"
    script = tmp_path / "script.py"
    script.write_text("import samovar.api.connect as connect; connect.join_group(9.0, transport='gaspi')")
    commands = {1: [], InputError.exit_code: ["-m", "samovar", "run", "--transport", "gaspi"]}
    for exit_code, words in commands.items():
        ended = subprocess.run(
            [sys.executable, *words, str(script)],
            cwd=ROOT,
            env=os.environ | {"LD_LIBRARY_PATH": ""},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert ended.returncode == exit_code
        assert refused in ended.stderr.splitlines()[-1]
    assert len(ended.stderr.splitlines()) == 1
