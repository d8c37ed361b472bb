"""Every plan on the shared-memory transport, every rank a process: exact results, counted cost."""

import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from samovar.collectives.cost import cost
from samovar.transports.shm import create_segment

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
import cases  # noqa: E402

TIMEOUT_S = 55.0


def run_ranks(world_size: int) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Each case's reports in rank order."""
    segment = create_segment(world_size)
    program = [sys.executable, str(FOLDER / "rank_program.py")]
    ranks = [
        subprocess.Popen(
            [*program, str(rank), str(world_size), str(segment)],
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


@pytest.mark.parametrize("world_size", cases.WORLD_SIZES)
def test_every_plan_is_exact_and_costs_what_it_says(world_size: int) -> None:
    reports = run_ranks(world_size)
    num_sized = (len(cases.PLANS) - 1) * len(cases.SIZES) + 1
    assert len(reports) == num_sized * len(cases.DTYPES) * cases.NUM_RUNS
    for (plan, size, dtype, run), ranks in reports.items():
        where = f"{plan}, {world_size} ranks, {size} x {dtype}, run {run}"
        assert len(ranks) == world_size, where
        assert_results(plan, world_size, size, dtype, run, ranks, where)
        counted = cost([cases.PLANS[plan](r, world_size) for r in range(world_size)], size, int(dtype[-2:]) // 8)
        assert max(report["steps"] for report in ranks) == counted.steps, where
        assert tuple(report["bytes_sent"] for report in ranks) == counted.bytes_sent, where


def assert_results(
    plan: str, world_size: int, size: int, dtype: str, run: int, ranks: list[dict[str, Any]], where: str
) -> None:
    if plan == "barrier":
        assert min(report["entered"] for report in ranks) >= world_size * run, f"{where}: left too early"
        return
    result = cases.expected(plan, world_size, run, size, dtype)
    wanted = hashlib.sha256(result.tobytes()).hexdigest()
    assert [report["sha256"] for report in ranks] == [wanted] * world_size, where
