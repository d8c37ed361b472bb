"""Every plan on the TCP transport, every rank a process: exact results, counted cost."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from samovar.transports.keys import make_key
from samovar.transports.tcp_listen import address_of, listen
from tests.conformance import cases
from tests.conformance.cases import Case
from tests.conformance.test_shm import ROOT, TIMEOUT_S, Report, assert_results, counted

FEW, MANY = (1, 2, 3, 4), (5, 6, 7, 8, 9, 16)


def run_ranks(world_size: int, key_file: Path) -> dict[tuple[Any, ...], list[Report]]:
    """Each case's reports in rank order."""
    listeners = [listen() for _ in range(world_size)]
    ports = [str(address_of(listener)[1]) for listener in listeners]
    program = [sys.executable, "-m", "tests.conformance.tcp_rank_program"]
    ranks = [
        subprocess.Popen(
            [*program, str(rank), str(key_file), str(listener.fileno()), *ports],
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, listener in enumerate(listeners)
    ]
    for listener in listeners:
        listener.close()
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


@pytest.mark.parametrize("world_size", [*FEW, *(pytest.param(size, marks=pytest.mark.slow) for size in MANY)])
def test_every_plan_is_exact_and_costs_what_it_says(world_size: int, tmp_path: Path) -> None:
    make_key(tmp_path / "key.pem")
    reports = run_ranks(world_size, tmp_path / "key.pem")
    assert len(reports) == sum(case.executor == "python" for case in cases.cases()) * cases.NUM_RUNS
    for (*fields, run), ranks in reports.items():
        case = Case(*fields)
        where = f"{case}, {world_size} ranks, run {run}"
        assert len(ranks) == world_size, where
        assert_results(case, world_size, run, ranks, where)
        documented = counted(case.collective, world_size, case.size, int(case.dtype[-2:]) // 8)
        assert max(report["steps"] for report in ranks) == documented.steps, where
        assert tuple(report["bytes_sent"] for report in ranks) == documented.bytes_sent, where
