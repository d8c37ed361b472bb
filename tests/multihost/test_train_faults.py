"""`samovar train` on two hosts when one is lost, cut off, stopped or slow: each ends in time and names it."""

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.multihost.conftest import Pair
from tests.multihost.train_run import HostsRun, started
from tests.multiproc.command import Ended, result_of
from tests.multiproc.leftovers import living
from tests.multiproc.nets import write_net, write_solver

TIMEOUT_S = 8.0  # of a wait for another host
LONGEST_S = 60.0  # until all have ended, on a busy machine
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@contextmanager
def endless(
    hosts: Pair, folder: Path, digits: Path, *prefix: object
) -> Iterator[tuple[HostsRun, list[psutil.Process]]]:
    """A run of one worker on host 0 and two on host 1, whose commands follow `prefix`; and its rank processes."""
    solver = write_solver(write_net(folder, digits), 10_000_000)
    prefixes = [hosts[0].prefix, (*hosts[1].prefix, *prefix)]
    flags = ("--solver", solver, "--sync-period", 4, "--strategy", "local-sgd")
    with started(folder, (1, 2), *flags, prefixes=prefixes, address=hosts[0].address, timeout_s=TIMEOUT_S) as run_:
        run_.commands[0].wait_for_step(run_.out, 20)
        yield run_, [*run_.commands[0].ranks().values(), *run_.commands[1].ranks().values()]


def ends(run_: HostsRun, ranks: list[psutil.Process], *numbers: int) -> list[Ended]:
    """How these launchers ended, in time; no process of any host is left."""
    ended = [run_.commands[number].wait(LONGEST_S) for number in numbers]
    _, alive = psutil.wait_procs(ranks, timeout=LONGEST_S)
    assert living(alive) == []
    return ended


@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_host_is_named(hosts: Pair, tmp_path: Path, digits: Path, victim: int) -> None:
    """As if its power went: launcher and ranks end at once, and the kernel says nothing more to the other."""
    with endless(hosts, tmp_path, digits) as (run_, ranks):
        hosts[victim].set_interface("down")
        for process in [run_.commands[victim].process, *run_.commands[victim].ranks().values()]:
            process.kill()
        (ended,) = ends(run_, ranks, 1 - victim)
    assert ended.return_code == 3
    assert_names_host(ended, victim)


def assert_names_host(ended: Ended, victim: int) -> None:
    """The lost host, or a rank of it for which another one waited."""
    ranks = ([0], [1, 2])[victim]
    pattern = rf"host {victim}, \S+#{victim} \(ranks? .*\) is lost|rank {ranks} on \S+#{victim}\b"
    assert re.search(pattern.replace(str(ranks), f"[{''.join(map(str, ranks))}]"), ended.error), ended.error


def test_a_cut_link_is_seen_on_both_sides(hosts: Pair, tmp_path: Path, digits: Path) -> None:
    with endless(hosts, tmp_path, digits) as (run_, ranks):
        hosts[1].set_interface("down")
        first, second = ends(run_, ranks, 0, 1)
    assert (first.return_code, second.return_code) == (3, 3)
    assert_names_host(first, 1)
    assert_names_host(second, 0)


def test_a_half_open_link_is_seen_on_both_sides(hosts: Pair, tmp_path: Path, digits: Path) -> None:
    """What host 1 sends is lost on the way, and it still hears host 0."""
    with endless(hosts, tmp_path, digits) as (run_, ranks):
        wrong = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
        subprocess.run(["ip", "-n", hosts[1].name, "neighbour", "replace", hosts[0].address, *wrong], check=True)
        first, second = ends(run_, ranks, 0, 1)
    assert (first.return_code, second.return_code) == (3, 3)
    assert_names_host(first, 1)
    assert_names_host(second, 0)


def shape(namespace: str, *words: str) -> None:
    subprocess.run(["tc", "-n", namespace, "qdisc", "replace", "dev", "eth0", "root", *words], check=True)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_launcher_ends_its_host(hosts: Pair, tmp_path: Path, digits: Path, victim: int) -> None:
    """It says nothing for the timeout, and its ranks see that those of the other host have ended."""
    with endless(hosts, tmp_path, digits) as (run_, ranks):
        run_.commands[victim].send(signal.SIGSTOP)
        (ended,) = ends(
            run_, [rank for rank in ranks if rank not in run_.commands[victim].ranks().values()], 1 - victim
        )
        run_.commands[victim].send(signal.SIGCONT)
        ends(run_, ranks, victim)
    assert ended.return_code == 3
    assert_names_host(ended, victim)


def test_a_stopped_rank_is_named(hosts: Pair, tmp_path: Path, digits: Path) -> None:
    with endless(hosts, tmp_path, digits) as (run_, ranks):
        run_.commands[1].ranks()[2].suspend()
        for ended in ends(run_, ranks, 0, 1):
            assert ended.return_code == 3
            # On a busy machine, the wait of rank 1, for rank 2, may still be on.
            silent = r"rank 2 does not answer|ranks 1, 2 do not answer|rank 2 on \S+#1"
            assert re.search(silent, ended.error), ended.error


def test_a_link_at_one_percent_and_a_clock_off_by_an_hour_do_no_harm(hosts: Pair, tmp_path: Path, digits: Path) -> None:
    """1 Mbit/s instead of 100; the clocks of host 1 are an hour ahead."""
    ahead = ("unshare", "--time", "--monotonic", 3600, "--boottime", 3600)
    with endless(hosts, tmp_path, digits, *ahead) as (run_, _ranks):
        for host in hosts:
            shape(host.name, "tbf", "rate", "1mbit", "burst", "96kb", "latency", "400ms")
        run_.commands[0].wait_for_step(run_.out, 60)
        run_.commands[0].send(signal.SIGINT)
        ended = run_.wait()
    assert [each.return_code for each in ended] == [0, 0], ended
    assert result_of(run_.out)["replicas_equal"]
