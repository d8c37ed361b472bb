"""Every plan on the shared-memory transport, every rank a process: exact results, counted cost."""

import os

import pytest

from samovar.transports.shm import create_segment
from tests.conformance import cases
from tests.conformance.processes import Reports, assert_as_documented, run_processes

SIZES_BY_DEFAULT = (1, 2, 3, 5, 8)


def run_ranks(world_size: int) -> Reports:
    segment = create_segment(world_size)
    try:
        arguments = [(rank, world_size, segment) for rank in range(world_size)]
        return run_processes("tests.conformance.rank_program", arguments, [segment] * world_size)
    finally:
        os.close(segment)


@pytest.mark.parametrize(
    "world_size",
    [
        pytest.param(size, marks=[] if size in SIZES_BY_DEFAULT else [pytest.mark.slow])
        for size in (*cases.WORLD_SIZES, 32, 64)
    ],
)
def test_every_plan_is_exact_and_costs_what_it_says(world_size: int) -> None:
    reports = run_ranks(world_size)
    assert len(reports) == len(cases.cases()) * cases.NUM_RUNS
    assert_as_documented(reports, world_size)
