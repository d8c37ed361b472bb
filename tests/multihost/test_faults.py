"""Whatever happens to a rank or to the cable, all others end in time and say who did not answer."""

import json
import re
import signal
import subprocess

import pytest

from tests.multihost.conftest import Pair, start_job

OPERATION_TIMEOUT_S = 3.0
END_S = 20.0
# Four interpreters that import torch on a busy machine.
pytestmark = pytest.mark.timeout(180)
SECONDS = re.compile(r"(within|after) \d+\.\d s")


def started(hosts: Pair, ranks_per_host: tuple[int, int]) -> "list[subprocess.Popen[str]]":
    """A job whose ranks have all done some steps."""
    ranks = start_job(hosts, "endless", ranks_per_host, OPERATION_TIMEOUT_S=str(OPERATION_TIMEOUT_S))
    for rank in ranks:
        assert rank.stdout is not None
        while (line := rank.stdout.readline()) and json.loads(line)["step"] < 5:
            pass
        assert line, rank.communicate()
    return ranks


def error_of(rank: "subprocess.Popen[str]") -> str:
    """What the rank says at its end, which must be an orderly one."""
    _, errors = rank.communicate(timeout=END_S)
    assert rank.returncode == 3, errors
    return errors.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 3])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
def test_a_rank_of_the_other_host_is_named(hosts: Pair, victim: int, number: signal.Signals) -> None:
    """Host a runs ranks 0 and 1, host b ranks 2 and 3; rank 2 leads b."""
    ranks = started(hosts, (2, 2))
    ranks[victim].send_signal(number)
    for rank, process in enumerate(ranks):
        if rank == victim:
            continue
        error = error_of(process)
        print(error)
        assert error.startswith(f"rank {rank} on "), error
        assert "all-reduce 'bucket 0'" in error, error
        assert SECONDS.search(error), error
        assert re.search(rf"\brank {victim} on |\(ranks 2, 3\)", error), error


def test_the_interface_goes_down(hosts: Pair) -> None:
    ranks = started(hosts, (1, 1))
    hosts[1].set_interface("down")
    for rank, process in enumerate(ranks):
        error = error_of(process)
        assert error.startswith(f"rank {rank} on "), error
        assert "all-reduce 'bucket 0' between hosts: " in error, error
        assert f"(rank {1 - rank}) did not answer within 3.0 s" in error, error
