"""Hosts of tests and benchmarks: nothing of them is left, even if their owner is killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.multihost.conftest import Pair
from tests.multihost.namespaces import remove_abandoned
from tests.multiproc.command import wait_until

RUN, FILES = Path("/run/netns"), Path("/etc/netns")


def test_what_a_killed_owner_left_goes_with_the_next_start(hosts: Pair) -> None:
    """Its namespace, a process there, and its files; those of living owners stay."""
    with subprocess.Popen(["true"]) as owner:
        owner.wait()
    name = f"samovar-{owner.pid}-0-a"
    (FILES / name).mkdir(parents=True)
    subprocess.run(["ip", "netns", "add", name], check=True)
    with subprocess.Popen(["ip", "netns", "exec", name, "sleep", "600"]) as left:
        inside = ["ip", "netns", "pids", name]
        wait_until(lambda: subprocess.run(inside, capture_output=True, check=True).stdout, "the process is there")
        remove_abandoned()
        assert left.wait(60) == -signal.SIGKILL
    assert not (RUN / name).exists()
    assert not (FILES / name).exists()
    assert all((RUN / host.name).exists() for host in hosts)


@pytest.mark.slow
@pytest.mark.usefixtures("_namespaces")
def test_a_benchmark_that_is_ended_leaves_no_hosts(repository_root: Path) -> None:
    command = [sys.executable, str(repository_root / "benchmarks" / "run.py"), "two-hosts", "--short"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as benchmark:
        own = f"samovar-{benchmark.pid}-*-b"
        wait_until(lambda: list(RUN.glob(own)) or benchmark.poll() is not None, "it makes hosts")
        benchmark.terminate()
        assert benchmark.wait(120) == 128 + signal.SIGTERM
    assert list(RUN.glob(f"samovar-{benchmark.pid}-*")) == []
