"""Jobs over several hosts of this machine; see `namespaces`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.multihost.namespaces import NamespaceHost, left_over, reason_against, two_hosts

PROGRAM = Path(__file__).with_name("rank_program.py")
PORT = 29_400
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
