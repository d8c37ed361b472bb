"""Two hosts: exact sums, the same bits everywhere, and not a byte more between hosts than the plan has."""

import json
import subprocess
from typing import Any

import pytest

from tests.multihost.conftest import Pair, start_job
from tests.multihost.rank_program import TRAFFIC_ELEMENTS

END_S = 100.0
# What gloo puts around each segment: a header, and before it a notice from the sender and one from the receiver.
GLOO_HEADER_BYTES = 48
GLOO_MESSAGES_PER_SEGMENT = 3
ELEMENT_BYTES = 4
NUM_TRIALS = 5


def ask(rank: "subprocess.Popen[str]", number: int) -> None:
    assert rank.stdin is not None
    rank.stdin.write(f"{number}\n")
    rank.stdin.flush()


def heard(rank: "subprocess.Popen[str]") -> dict[str, Any]:
    assert rank.stdout is not None
    line = rank.stdout.readline()
    assert line, rank.communicate()
    answer: dict[str, Any] = json.loads(line)
    return answer


def largest_overhead(num_bytes: int) -> int:
    """Of gloo's messages: at least two segments a rank in each of the two rounds, of at most 1 MiB."""
    num_segments = 2 * max(2, -(-num_bytes // (2 << 20)))
    return GLOO_MESSAGES_PER_SEGMENT * GLOO_HEADER_BYTES * num_segments


def start_exact(hosts: Pair, ranks_per_host: tuple[int, int], **variables: str) -> "list[subprocess.Popen[str]]":
    """A job whose ranks have found their hosts, and the same exact sums."""
    for host in hosts:
        host.set_kernel("net.ipv4.tcp_sack", 0)  # options that would make some headers longer
    ranks = start_job(hosts, "exact", ranks_per_host, **variables)
    said = [heard(rank) for rank in ranks]
    first, world_size = ranks_per_host[0], sum(ranks_per_host)
    assert all(one["hosts"] == [list(range(first)), list(range(first, world_size))] for one in said)
    assert len({one["sha256"] for one in said}) == 1
    return ranks


def exchanged(hosts: Pair, ranks: "list[subprocess.Popen[str]]", number: int) -> tuple[list[int], list[int]]:
    """Exchange one buffer: what each rank says it sent to other hosts, and what TCP carried from each host."""
    for _ in range(NUM_TRIALS):
        before = [host.traffic() for host in hosts]
        for rank in ranks:
            ask(rank, number)
        sent = [heard(rank)["sent"] for rank in ranks]
        after = [host.traffic() for host in hosts]
        if all(new.retransmissions == old.retransmissions for new, old in zip(after, before, strict=True)):
            return sent, [new.payload_since(old) for new, old in zip(after, before, strict=True)]
    pytest.skip("the machine is so busy that TCP sent something twice each time")


@pytest.mark.parametrize(
    "ranks_per_host",
    [(2, 2), pytest.param((1, 1), marks=pytest.mark.slow), pytest.param((3, 1), marks=pytest.mark.slow)],
)
def test_collectives_are_exact_and_send_what_the_plan_says(hosts: Pair, ranks_per_host: tuple[int, int]) -> None:
    """The leaders of two hosts exchange N bytes each way, whatever runs inside the hosts."""
    ranks = start_exact(hosts, ranks_per_host)
    first, world_size = ranks_per_host[0], sum(ranks_per_host)
    for number, count in enumerate(TRAFFIC_ELEMENTS):
        sent, carried = exchanged(hosts, ranks, number)
        num_bytes = count * ELEMENT_BYTES
        # The ring of two: half goes there to be added, the other half comes back complete.
        assert sum(sent) == sent[0] + sent[first] == 2 * num_bytes
        for counted, payload in zip((sent[0], sent[first]), carried, strict=True):
            print(f"{num_bytes} bytes: {counted} sent, {payload - counted} more on the wire")
            assert 0 <= payload - counted <= largest_overhead(num_bytes)
    ended = [rank.communicate(timeout=END_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size, ended
    assert sum("between hosts gloo, from" in errors for _, errors in ended) == 1
