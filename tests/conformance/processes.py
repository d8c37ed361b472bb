"""Ranks as processes that run every conformance case, and what their reports must say."""

import hashlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from samovar.collectives.cost import Cost, cost
from tests.conformance import cases
from tests.conformance.cases import Case

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 280.0

Report = dict[str, Any]
Reports = dict[tuple[Any, ...], list[Report]]


def run_processes(module: str, arguments: Sequence[Sequence[object]], descriptors: Sequence[int]) -> Reports:
    """Each case's reports in rank order, of a rank for each row of `arguments`, which inherits its descriptor."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, *map(str, own)],
            cwd=ROOT,
            pass_fds=[descriptor],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own, descriptor in zip(arguments, descriptors, strict=True)
    ]
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


def assert_as_documented(reports: Reports, world_size: int) -> None:
    """Exact results, in the steps and bytes that `cost` counts, of every case."""
    for (*fields, run), ranks in reports.items():
        case = Case(*fields)
        where = f"{case}, {world_size} ranks, run {run}"
        assert len(ranks) == world_size, where
        _assert_results(case, world_size, run, ranks, where)
        documented = counted(case.collective, world_size, case.size, int(case.dtype[-2:]) // 8)
        assert max(report["steps"] for report in ranks) == documented.steps, where
        assert tuple(report["bytes_sent"] for report in ranks) == documented.bytes_sent, where


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


def _assert_results(case: Case, world_size: int, run: int, ranks: list[Report], where: str) -> None:
    if case.collective == "barrier":
        assert min(report["entered"] for report in ranks) >= world_size * run, f"{where}: left too early"
        return
    hashes = wanted(case.collective, world_size, run, case.size, case.dtype)
    assert [report["sha256"] for report in ranks] == hashes, where
