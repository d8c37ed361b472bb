"""Two hosts whose first ranks have NCCL, by a stand-in: exact where it is named, told of where nothing is."""

from pathlib import Path

import pytest

from tests.multihost.conftest import Pair
from tests.multihost.test_collectives import END_S, start_exact

PROGRAM = Path(__file__).with_name("nccl_program.py")
ROOT = PROGRAM.parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "means"),
    [
        ("auto", "hosts; between hosts gloo (transport nccl is possible too; it has never run on a GPU), from"),
        ("nccl", "hosts; between hosts nccl through each one's GPU, tested without GPUs, from"),
        ("gloo", "hosts; between hosts gloo, from"),
    ],
)
def test_first_ranks_with_nccl_use_it_where_it_is_named(
    hosts: Pair, monkeypatch: pytest.MonkeyPatch, transport: str, means: str
) -> None:
    monkeypatch.setattr("tests.multihost.conftest.PROGRAM", PROGRAM)
    addresses = ",".join(host.address for host in hosts)
    variables = {"SAMOVAR_TRANSPORT": transport, "PYTHONPATH": str(ROOT), "HOST_ADDRESSES": addresses}
    ranks = start_exact(hosts, (2, 2), **variables)
    ended = [rank.communicate(timeout=END_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, ended
    assert [means in errors for _, errors in ended] == [True, False, False, False], ended
