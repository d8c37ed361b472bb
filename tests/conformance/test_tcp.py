"""Every plan on the TCP transport, every rank a process: exact results, counted cost."""

from pathlib import Path

import pytest

from samovar.transports.keys import make_key
from samovar.transports.tcp_listen import address_of, listen
from tests.conformance import cases
from tests.conformance.processes import Reports, assert_as_documented, run_processes

FEW, MANY = (1, 2, 3, 4), (5, 6, 7, 8, 9, 16)


def run_ranks(world_size: int, key_file: Path) -> Reports:
    listeners = [listen() for _ in range(world_size)]
    ports = [address_of(listener)[1] for listener in listeners]
    descriptors = [listener.fileno() for listener in listeners]
    try:
        arguments = [(rank, key_file, own, *ports) for rank, own in enumerate(descriptors)]
        return run_processes("tests.conformance.tcp_rank_program", arguments, descriptors)
    finally:
        for listener in listeners:
            listener.close()


@pytest.mark.parametrize("world_size", [*FEW, *(pytest.param(size, marks=pytest.mark.slow) for size in MANY)])
def test_every_plan_is_exact_and_costs_what_it_says(world_size: int, tmp_path: Path) -> None:
    make_key(tmp_path / "key.pem")
    reports = run_ranks(world_size, tmp_path / "key.pem")
    assert len(reports) == sum(case.executor == "python" for case in cases.cases()) * cases.NUM_RUNS
    assert_as_documented(reports, world_size)
