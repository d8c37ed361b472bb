"""A user's loop whose ranks wait for each other, on two hosts: who is killed, stopped or cut off is named in time."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from samovar.transports.keys import make_key
from tests.multihost.conftest import PORT, Pair, error_of
from tests.multiproc.command import wait_until

PROGRAM = Path(__file__).with_name("replicate_loop_program.py")
STRATEGIES = ("sync", "local-sgd", "diloco", "sync-easgd")
VICTIM = 2  # alone on the second host
PATIENCE_S, LONG_PATIENCE_S = 20.0, 250.0  # of an exchange; the first one's is also that of ranks that start
END_S = 200.0
STOPPED_S = 60.0
FIRST_STEPS, STEPS = 4, 40
pytestmark = [pytest.mark.timeout(500), pytest.mark.slow]
Job = list["subprocess.Popen[str]"]


def start(hosts: Pair, *words: object, **variables: str) -> Job:
    """Two ranks on the first host, one on the second."""
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(PORT), "OMP_NUM_THREADS": "1"}
    return [
        host.start([sys.executable, PROGRAM, *words], env=os.environ | common | variables | {"RANK": str(rank)})
        for rank, host in enumerate((hosts[0], hosts[0], hosts[1]))
    ]


def start_endless(hosts: Pair, strategy: str, patience_s: float = PATIENCE_S, **variables: str) -> Job:
    """The same, when all have made some steps."""
    job = start(hosts, strategy, patience_s, **variables)
    for rank in job:
        assert rank.stdout is not None
        while (line := rank.stdout.readline()) and json.loads(line)["step"] < FIRST_STEPS:
            pass
        assert line, rank.communicate()
    return job


def assert_named(error: str, rank: int, victim: int) -> None:
    """The rank that says it, its operation, the seconds, and the rank that it waits for."""
    assert error.startswith(f"rank {rank} on "), error
    assert re.search(r"(all-reduce|all-gather|broadcast) '|: records: ", error), error
    assert re.search(r"(within|after) \d+\.\d s", error), error
    assert re.search(rf"\branks? {victim}\b", error), error


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
def test_a_rank_that_is_killed_or_stopped_is_named(hosts: Pair, strategy: str, number: signal.Signals) -> None:
    job = start_endless(hosts, strategy)
    job[VICTIM].send_signal(number)
    for rank in (0, 1):
        assert_named(error_of(job[rank], END_S), rank, VICTIM)


@pytest.mark.parametrize("transport", ["gloo", "tcp"])
def test_a_killed_rank_of_the_same_host_is_named_long_before_the_deadline(
    hosts: Pair, tmp_path: Path, transport: str
) -> None:
    make_key(tmp_path / "key.pem")
    variables = {"SAMOVAR_TRANSPORT": transport, "SAMOVAR_KEY_FILE": str(tmp_path / "key.pem")}
    job = start_endless(hosts, "sync", LONG_PATIENCE_S, **variables)
    job[1].kill()
    error = error_of(job[0], END_S)
    assert re.search(rf"rank 1 on .* \(process {job[1].pid}\) (is gone|was killed by signal 9)", error), error
    assert re.search(r"ranks? [01]\b", error_of(job[VICTIM], END_S))  # or of who gave up after it


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_side_names_the_other_where_the_interface_goes_down(hosts: Pair, strategy: str) -> None:
    job = start_endless(hosts, strategy)
    hosts[1].set_interface("down")
    assert_named(error_of(job[0], END_S), 0, VICTIM)
    assert_named(error_of(job[1], END_S), 1, VICTIM)
    assert_named(error_of(job[VICTIM], END_S), VICTIM, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_rank_that_stands_still_for_a_minute_is_waited_for(hosts: Pair, strategy: str) -> None:
    """With a longer timeout than that; all end with the same weights."""
    job = start(hosts, strategy, LONG_PATIENCE_S, STEPS, VICTIM)
    victim = psutil.Process(job[VICTIM].pid)
    wait_until(lambda: victim.status() == psutil.STATUS_STOPPED, "the victim stands still")
    time.sleep(STOPPED_S)  # the fault itself
    assert all(rank.poll() is None for rank in job)
    victim.resume()
    outputs = [rank.communicate(timeout=END_S) for rank in job]
    assert [rank.returncode for rank in job] == [0, 0, 0], outputs
    found = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    assert found[0] == found[1] == found[2]
