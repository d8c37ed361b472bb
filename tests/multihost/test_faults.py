"""If a rank or the cable fails, all others end in time and name the rank that did not answer."""

import re
import signal

import pytest

from tests.multihost.conftest import Pair, error_of, start_endless

END_S = 50.0
SECONDS = re.compile(r"(within|after) \d+\.\d s")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 3])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
def test_a_rank_of_the_other_host_is_named(hosts: Pair, victim: int, number: signal.Signals) -> None:
    """Host a runs ranks 0 and 1, host b ranks 2 and 3; rank 2 leads b."""
    ranks = start_endless(hosts, (2, 2))
    ranks[victim].send_signal(number)
    for rank, process in enumerate(ranks):
        if rank == victim:
            continue
        error = error_of(process, END_S)
        assert error.startswith(f"rank {rank} on "), error
        if number is signal.SIGKILL and rank // 2 == victim // 2:  # it watches that process
            assert re.search(rf"rank {victim} on .* \(process \d+\) was killed by signal 9", error), error
            continue
        assert "all-reduce 'bucket 0'" in error, error
        assert SECONDS.search(error), error
        assert re.search(rf"\brank {victim} on |\(ranks 2, 3\)", error), error


def test_the_interface_goes_down(hosts: Pair) -> None:
    ranks = start_endless(hosts, (1, 1))
    hosts[1].set_interface("down")
    for rank, process in enumerate(ranks):
        error = error_of(process, END_S)
        assert error.startswith(f"rank {rank} on "), error
        assert "all-reduce 'bucket 0' between hosts: " in error, error
        assert re.search(rf"\(rank {1 - rank}\) did not answer within \d\.\d s", error), error
