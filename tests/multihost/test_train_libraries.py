"""`samovar train --transport mpi` and `gaspi` on two hosts: shm's weights, a center in windows, and ranks that end."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.libraries import MPIEXEC, Library, library
from tests.multihost.conftest import PORT, Pair
from tests.multihost.namespaces import mpiexec_over
from tests.multihost.train_run import TIMEOUT_S, started
from tests.multiproc.command import SAMOVAR, Command, result_of, succeed
from tests.multiproc.leftovers import living
from tests.multiproc.nets import write_net, write_solver

IN_STEP: tuple[tuple[object, ...], ...] = (
    ("--collective", "ring"),
    ("--collective", "kary-tree", "--overlap", "backward"),
    ("--exact", 4),
    ("--strategy", "sync-easgd", "--collective", "tree"),
    ("--strategy", "round-robin-easgd"),
)
LONGEST_S = 90.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(params=["mpi", "gaspi"])
def over(request: pytest.FixtureRequest) -> Library:
    return library(request.param, request.config)


@pytest.fixture
def solver(tmp_path: Path, digits: Path) -> Path:
    return write_solver(write_net(tmp_path, digits), 12)


@contextmanager
def running(
    over: Library, hosts: Pair, counts: tuple[int, int], folder: Path, *flags: object, num_ranks: int | None = None
) -> Iterator[Command]:
    """The command with the console of a run that writes to `folder`/out."""
    given = ("--transport", over.transport, "--oversubscribe", *flags)
    if over.transport == "gaspi":
        variables = tuple(f"{name}={value}" for name, value in over.variables.items())
        prefixes = [(*host.prefix, "env", *variables) for host in hosts]
        with started(folder, counts, *given, prefixes=prefixes, address=hosts[0].address) as run_:
            yield run_.commands[0]
            run_.commands[1].wait(LONGEST_S)
        return
    settings = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT, "OMP_NUM_THREADS": 1}
    variables = tuple(str(word) for item in settings.items() for word in ("-genv", *item))
    launcher = mpiexec_over(hosts, counts, Path(str(MPIEXEC)), folder)
    launcher[launcher.index("-n") + 1] = str(num_ranks or sum(counts))
    own = ("--threads-per-worker", 1, "--timeout", TIMEOUT_S, "--out", folder / "out")
    words = (*launcher[1:], *variables, SAMOVAR, "train", *given, *own)
    with Command(*words, folder=folder, program=Path(launcher[0])) as command:
        yield command


def trained(
    over: Library, hosts: Pair, counts: tuple[int, int], folder: Path, *flags: object, num_ranks: int | None = None
) -> dict[str, Any]:
    with running(over, hosts, counts, folder, *flags, num_ranks=num_ranks) as command:
        ended = command.wait()
    assert ended.return_code == 0, ended.errors
    return result_of(folder / "out")


def plain(workers: int, folder: Path, *flags: object) -> str:
    """The weights by shared memory, on this host."""
    common = ("--workers", workers, "--threads-per-worker", 1, "--oversubscribe", "--out", folder / "plain")
    succeed("train", *common, *flags, folder=folder)
    return str(result_of(folder / "plain")["weights_sha256"])


@pytest.mark.parametrize("flags", IN_STEP, ids=str)
def test_ranks_in_step_have_the_weights_of_one_host(
    flags: tuple[object, ...], over: Library, hosts: Pair, solver: Path, tmp_path: Path
) -> None:
    found = trained(over, hosts, (2, 1), tmp_path, "--solver", solver, *flags)
    assert found["transport"] == over.transport
    assert found["weights_sha256"] == plain(3, tmp_path, "--solver", solver, *flags)


def test_mpiexec_may_place_its_ranks_in_turn(
    hosts: Pair, solver: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """MPI's ranks 0 and 2 on one host and 1 and 3 on the other are samovar's 0 to 3, host by host."""
    words = ("--solver", solver, "--collective", "ring")
    found = trained(library("mpi", request.config), hosts, (1, 1), tmp_path, *words, num_ranks=4)
    assert found["weights_sha256"] == plain(4, tmp_path, *words)


@pytest.mark.parametrize(
    ("counts", "flags"),
    [((2, 1), ("--strategy", "async-easgd")), ((2, 2), ("--strategy", "hybrid-easgd", "--group-size", 2))],
)
def test_a_center_is_in_windows_of_the_library(
    counts: tuple[int, int], flags: tuple[object, ...], over: Library, hosts: Pair, solver: Path, tmp_path: Path
) -> None:
    found = trained(over, hosts, counts, tmp_path, "--solver", solver, *flags)
    assert found["transport"] == over.transport
    assert sum(worker["steps"] for worker in found["by_worker"]) >= sum(counts) * 12


@contextmanager
def endless(over: Library, hosts: Pair, folder: Path, digits: Path) -> Iterator[tuple[Command, list[psutil.Process]]]:
    """A run of one worker on host 0 and two on host 1, and its rank processes in their order."""
    solver = write_solver(write_net(folder, digits), 10_000_000)
    with running(over, hosts, (1, 2), folder, "--solver", solver) as command:
        command.wait_for_step(folder / "out", 3)
        found = [one for one in psutil.process_iter() if "samovar.training.rank" in words(one)]
        ranks = sorted((one for one in found if os.getpid() in {each.pid for each in one.parents()}), key=number)
        assert list(map(number, ranks)) == [0, 1, 2]
        yield command, ranks


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def number(process: psutil.Process) -> int:
    return next(int(word.removeprefix("--rank=")) for word in words(process) if word.startswith("--rank="))


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_all_hosts_and_is_named(
    over: Library, hosts: Pair, tmp_path: Path, digits: Path, victim: int
) -> None:
    with endless(over, hosts, tmp_path, digits) as (command, ranks):
        ranks[victim].kill()
        ended = command.wait(LONGEST_S)
        _, alive = psutil.wait_procs(ranks, timeout=LONGEST_S)
    assert living(alive) == []
    assert ended.return_code == 3, ended.errors
    assert re.search(rf"error: rank {victim} was killed by signal 9 \(SIGKILL\)", ended.errors), ended.errors


def test_a_killed_launcher_of_another_host_leaves_no_rank(
    over: Library, hosts: Pair, tmp_path: Path, digits: Path
) -> None:
    with endless(over, hosts, tmp_path, digits) as (command, ranks):
        ranks[1].parent().kill()
        ended = command.wait(LONGEST_S)
        _, alive = psutil.wait_procs(ranks, timeout=LONGEST_S)
    assert living(alive) == []
    assert ended.return_code != 0


def test_ctrl_c_stops_all_hosts_with_a_snapshot(over: Library, hosts: Pair, tmp_path: Path, digits: Path) -> None:
    with endless(over, hosts, tmp_path, digits) as (command, ranks):
        command.send(signal.SIGINT)
        assert command.wait(LONGEST_S).return_code == 0
        _, alive = psutil.wait_procs(ranks, timeout=LONGEST_S)
    assert living(alive) == []
    found = result_of(tmp_path / "out")
    assert found["stopped_by"] == "SIGINT"
    assert (tmp_path / "out" / "snapshots" / f"step_{found['steps']:08}").is_dir()
