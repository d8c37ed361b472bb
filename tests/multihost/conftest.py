"""Jobs over several hosts of this machine; see `namespaces`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.multihost.namespaces import NamespaceHost, left_over, reason_against, two_hosts
from tests.multiproc.digits import digits

__all__ = ["digits"]
PROGRAM = Path(__file__).with_name("rank_program.py")
PORT = 29_400
OPERATION_TIMEOUT_S = 3.0  # of ranks that go on without end
Pair = tuple[NamespaceHost, NamespaceHost]


@pytest.fixture(scope="session")
def _namespaces() -> None:
    reason = reason_against()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def hosts(_namespaces: None) -> Iterator[Pair]:
    """Two hosts; nothing of them is left afterwards."""
    with two_hosts() as pair:
        yield pair
    assert left_over() == []


def start_job(
    hosts: Pair, what: str, ranks_per_host: tuple[int, int], **variables: str
) -> "list[subprocess.Popen[str]]":
    """The ranks of a job, in order."""
    world_size = sum(ranks_per_host)
    common = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(PORT)}
    places = [host for host, count in zip(hosts, ranks_per_host, strict=True) for _ in range(count)]
    return [
        host.start(
            [sys.executable, PROGRAM, what],
            env=os.environ | common | {"RANK": str(rank), "OMP_NUM_THREADS": "1"} | variables,
            stdin=subprocess.PIPE,
        )
        for rank, host in enumerate(places)
    ]


def start_endless(hosts: Pair, ranks_per_host: tuple[int, int], **variables: str) -> "list[subprocess.Popen[str]]":
    """A job whose ranks have all done some steps."""
    timeout = {"OPERATION_TIMEOUT_S": str(OPERATION_TIMEOUT_S)}
    ranks = start_job(hosts, "endless", ranks_per_host, **timeout, **variables)
    for rank in ranks:
        assert rank.stdout is not None
        while (line := rank.stdout.readline()) and json.loads(line)["step"] < 5:
            pass
        assert line, rank.communicate()
    return ranks


def error_of(rank: "subprocess.Popen[str]", end_s: float) -> str:
    """The last words of the rank, which must end in order."""
    _, errors = rank.communicate(timeout=end_s)
    assert rank.returncode == 3, errors
    error = errors.splitlines()[-1]
    print(error)
    return error
