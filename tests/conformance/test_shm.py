"""Every plan on the shared-memory transport, every rank a process: exact results, counted cost."""

import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from samovar.collectives.cost import Cost, cost
from samovar.transports.shm import create_segment
from tests.conformance import cases
from tests.conformance.cases import Case

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 55.0

Report = dict[str, Any]


def run_ranks(world_size: int) -> dict[tuple[Any, ...], list[Report]]:
    """Each case's reports in rank order."""
    segment = create_segment(world_size)
    program = [sys.executable, "-m", "tests.conformance.rank_program"]
    ranks = [
        subprocess.Popen(
            [*program, str(rank), str(world_size), str(segment)],
            cwd=ROOT,
            pass_fds=[segment],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    os.close(segment)
    reports = defaultdict(list)
    try:
        for process in ranks:
            output, errors = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, errors
            for line in output.splitlines():
                report = json.loads(line)
                reports[tuple(report["case"])].append(report)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    return reports


@cache
def wanted(collective: str, world_size: int, run: int, size: int, dtype: str) -> list[str]:
    """The hash of every rank's result."""
    result = cases.expected(collective, world_size, run, size, dtype)
    parts = [cases.result_part(collective, rank, world_size, size) for rank in range(world_size)]
    hashes = {part: hashlib.sha256(result[slice(*part)].tobytes()).hexdigest() for part in set(parts)}
    return [hashes[part] for part in parts]


@cache
def counted(collective: str, world_size: int, size: int, element_bytes: int) -> Cost:
    function = cases.COLLECTIVES[collective].function
    return cost([function(rank, world_size) for rank in range(world_size)], size, element_bytes)


@pytest.mark.parametrize(
    "world_size",
    [pytest.param(size, marks=[pytest.mark.slow] if size in (6, 7, 9, 16) else []) for size in cases.WORLD_SIZES],
)
def test_every_plan_is_exact_and_costs_what_it_says(world_size: int) -> None:
    reports = run_ranks(world_size)
    assert len(reports) == len(cases.cases()) * cases.NUM_RUNS
    for (*fields, run), ranks in reports.items():
        case = Case(*fields)
        where = f"{case}, {world_size} ranks, run {run}"
        assert len(ranks) == world_size, where
        assert_results(case, world_size, run, ranks, where)
        documented = counted(case.collective, world_size, case.size, int(case.dtype[-2:]) // 8)
        assert max(report["steps"] for report in ranks) == documented.steps, where
        assert tuple(report["bytes_sent"] for report in ranks) == documented.bytes_sent, where


def assert_results(case: Case, world_size: int, run: int, ranks: list[Report], where: str) -> None:
    if case.collective == "barrier":
        assert min(report["entered"] for report in ranks) >= world_size * run, f"{where}: left too early"
        return
    hashes = wanted(case.collective, world_size, run, case.size, case.dtype)
    assert [report["sha256"] for report in ranks] == hashes, where
