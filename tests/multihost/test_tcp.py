"""Two hosts by windows over TCP: exact sums, no byte more than the plan and the seals have, and ends that are told."""

import re
import signal
from pathlib import Path

import pytest

from samovar.transports.keys import make_key
from tests.multihost.conftest import Pair, error_of, start_endless, start_job
from tests.multihost.rank_program import TRAFFIC_ELEMENTS
from tests.multihost.test_collectives import ELEMENT_BYTES, END_S, exchanged, start_exact

# A rank puts and notifies at most twice, and tells the other of two windows; a seal has 16 bytes.
HEADER_BYTES, MESSAGES, SEAL_BYTES, PIECE_BYTES = 80, 6, 16, 524_288
LONGEST_S = 40.0
pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    make_key(tmp_path / "key.pem")
    return {"SAMOVAR_TRANSPORT": "tcp", "SAMOVAR_KEY_FILE": str(tmp_path / "key.pem")}


@pytest.mark.parametrize(
    "ranks_per_host",
    [(1, 1), (2, 2), (2, 1), (3, 1), (1, 2)],
)
def test_collectives_are_exact_and_send_what_the_plan_says(
    hosts: Pair, variables: dict[str, str], ranks_per_host: tuple[int, int]
) -> None:
    """Where hosts have equally many ranks, but for the last, their first ranks exchange N bytes each way."""
    ranks = start_exact(hosts, ranks_per_host, **variables)
    first, world_size = ranks_per_host[0], sum(ranks_per_host)
    for number, count in enumerate(TRAFFIC_ELEMENTS):
        sent, carried = exchanged(hosts, ranks, number)
        num_bytes = count * ELEMENT_BYTES
        counted = [sum(sent[:first]), sum(sent[first:])]
        if ranks_per_host in ((2, 1), (2, 2), (3, 1)):  # two levels, with a ring of two between hosts
            assert sum(sent) == sent[0] + sent[first] == 2 * num_bytes
        pieces = SEAL_BYTES * (2 + num_bytes // PIECE_BYTES)
        for own, payload in zip(counted, carried, strict=True):
            print(f"{num_bytes} bytes: {own} sent, {payload - own} more on the wire")
            assert 0 <= payload - own <= world_size * (MESSAGES * HEADER_BYTES + pieces)
    ended = [rank.communicate(timeout=END_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size, ended
    assert sum("between hosts tcp, encrypted, from 10." in errors for _, errors in ended) == 1


@pytest.mark.parametrize("ranks_per_host", [(1, 1), (2, 2)])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
def test_a_rank_of_the_other_host_is_named(
    hosts: Pair, variables: dict[str, str], ranks_per_host: tuple[int, int], number: signal.Signals
) -> None:
    """The first rank of host b goes; host a's second rank waits for its first, which waits for the one that went."""
    ranks = start_endless(hosts, ranks_per_host, JOIN_TIMEOUT_S="20", **variables)
    victim = ranks_per_host[0]
    ranks[victim].send_signal(number)
    for rank, process in enumerate(ranks):
        if rank != victim:
            error, awaited = error_of(process, LONGEST_S), 0 if 0 < rank < victim else victim
            assert error.startswith(f"rank {rank} on "), error
            assert re.search(rf"\brank {awaited} on ", error), error


def test_the_interface_goes_down(hosts: Pair, variables: dict[str, str]) -> None:
    ranks = start_endless(hosts, (1, 1), JOIN_TIMEOUT_S="20", **variables)
    hosts[1].set_interface("down")
    for rank, process in enumerate(ranks):
        error = error_of(process, LONGEST_S)
        assert error.startswith(f"rank {rank} on "), error
        assert f"rank {1 - rank} on " in error, error


def test_between_hosts_a_key_file_is_needed(hosts: Pair) -> None:
    """Rank 0 serves the store: where it ends first, the other hears of that alone."""
    ranks = start_job(hosts, "exact", (1, 1), SAMOVAR_TRANSPORT="tcp")
    (_, first), (_, second) = (rank.communicate(timeout=LONGEST_S) for rank in ranks)
    assert ranks[0].returncode == 2, first
    assert "Name its file by SAMOVAR_KEY_FILE" in first, first
    assert ranks[1].returncode in (2, 3), second
    assert re.search("Name its file by SAMOVAR_KEY_FILE|rank 0 ended; see its log", second), second
