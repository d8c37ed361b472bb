"""A user's loop at a center of the job's own, over two hosts: every step counts once, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samovar.box.job_server import ABSENT_S
from samovar.core.clock import Deadline, polled
from samovar.transports.keys import make_key
from tests.libraries import MPIEXEC, library
from tests.multihost.conftest import PORT, Pair
from tests.multihost.namespaces import mpiexec_over
from tests.multihost.replicate_program import STEPS

PROGRAM = Path(__file__).with_name("replicate_program.py")
END_S = 300.0
ASYNC = ("async-sgd", "async-easgd", "shm-easgd", "hybrid-easgd")
BEFORE = np.arange(8.0)
pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]
Job = list["subprocess.Popen[str]"]


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    make_key(tmp_path / "key.pem")
    return {"SAMOVAR_KEY_FILE": str(tmp_path / "key.pem")}


def start(hosts: Pair, ranks_per_host: tuple[int, int], words: tuple[str, ...], **variables: str) -> Job:
    common = {"WORLD_SIZE": str(sum(ranks_per_host)), "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(PORT)}
    places = [host for host, count in zip(hosts, ranks_per_host, strict=True) for _ in range(count)]
    return [
        host.start(
            [sys.executable, PROGRAM, *words],
            env=os.environ | common | {"RANK": str(rank), "OMP_NUM_THREADS": "1"} | variables,
        )
        for rank, host in enumerate(places)
    ]


def results(job: Job) -> list[dict[str, Any]]:
    """The findings of each rank, by strategy, when all end well."""
    outputs = [rank.communicate(timeout=END_S) for rank in job]
    for rank, (_, errors) in zip(job, outputs, strict=True):
        assert rank.returncode == 0, errors
    found = [[json.loads(line) for line in output.splitlines()] for output, _ in outputs]
    return [{line["strategy"]: line for line in lines} for lines in found]


def servers(key_file: str) -> list[int]:
    """Processes that serve a center with this key, wherever they came from."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended meanwhile
            continue
        if "samovar.box.job_server" in words and key_file in words:
            found.append(int(folder.name))
    return found


def require_no_server(key_file: str) -> None:
    """A member that was killed keeps its place for a while."""
    assert polled(lambda: not servers(key_file), Deadline.after(2 * ABSENT_S), 0.1)


def require_conserved(ranks: list[dict[str, Any]], *, adds_steps: bool) -> None:
    center, steps = np.array(ranks[0]["center"]), made(range(len(ranks)))
    assert all(rank["center"] == ranks[0]["center"] for rank in ranks)
    if adds_steps:
        assert (center == BEFORE + steps).all()
    else:
        total = center + sum(np.array(rank["own"]) for rank in ranks)
        assert (total == (len(ranks) + 1) * BEFORE + steps).all()


def made(ranks: range) -> float:
    """The sum that all steps of these ranks added to each weight."""
    return float(sum(number * (1 + 4 * rank) for rank in ranks for number in range(1, STEPS + 1)))


def test_every_step_counts_once_and_all_end_with_the_center(hosts: Pair, variables: dict[str, str]) -> None:
    """Whole numbers, halved by the moving rate, are exact: sum_i x_i + c grows by the steps and nothing else."""
    settings = variables | {"SAMOVAR_TRANSPORT": "tcp", "GROUP_SIZE": "1"}
    ranks = results(start(hosts, (2, 1), (",".join(ASYNC),), **settings))
    for strategy in ASYNC:
        require_conserved([rank[strategy] for rank in ranks], adds_steps=strategy == "async-sgd")
    require_no_server(variables["SAMOVAR_KEY_FILE"])


def over_mpi(hosts: Pair, counts: tuple[int, int], words: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """The findings of each rank of mpiexec, by strategy."""
    variables = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT, "SAMOVAR_TRANSPORT": "mpi", "GROUP_SIZE": 1}
    given = [str(word) for name, value in variables.items() for word in ("-genv", name, value)]
    command = [
        *mpiexec_over(hosts, counts, Path(str(MPIEXEC)), folder),
        *given,
        "-outfile-pattern",
        f"{folder}/{words[0]}.%r",
    ]
    ended = subprocess.run(
        [*command, sys.executable, str(PROGRAM), *words], capture_output=True, text=True, timeout=END_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = [(folder / f"{words[0]}.{rank}").read_text().splitlines() for rank in range(sum(counts))]
    return [{(said := json.loads(line))["strategy"]: said for line in own} for own in lines]


@pytest.mark.parametrize("way", ["mpi", "gaspi"])
def test_a_center_in_windows_of_a_library_needs_no_key_and_no_server(
    way: str, hosts: Pair, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It takes every step once, and the turns that have an order give the numbers of that order."""
    found = library(way, request.config)

    def trained(strategies: str) -> list[dict[str, Any]]:
        if way == "mpi":
            return over_mpi(hosts, (2, 1), (strategies,), tmp_path)
        settings = {"SAMOVAR_TRANSPORT": "gaspi", "LD_LIBRARY_PATH": str(found.folder), "GROUP_SIZE": "1"}
        return results(start(hosts, (2, 1), (strategies,), **settings))

    ranks = trained(",".join(ASYNC))
    for strategy in ASYNC:
        require_conserved([rank[strategy] for rank in ranks], adds_steps=strategy == "async-sgd")
    require_turns(trained("round-robin-easgd"))


def test_the_turn_goes_around_over_hosts(hosts: Pair, variables: dict[str, str]) -> None:
    require_turns(results(start(hosts, (1, 1), ("round-robin-easgd",), **variables, SAMOVAR_TRANSPORT="tcp")))


def require_turns(ranks: list[dict[str, Any]]) -> None:
    """By the rule, in the order of ranks, in float64."""
    workers, center = [BEFORE] * len(ranks), BEFORE
    for number in range(1, STEPS + 1):
        for rank in range(len(ranks)):
            stepped = workers[rank] + number * (1 + 4 * rank)
            difference = 0.5 * (stepped - center)
            workers[rank], center = stepped - difference, center + difference
    for found, worker in zip(ranks, workers, strict=True):
        assert found["round-robin-easgd"]["own"] == worker.tolist()
        assert found["round-robin-easgd"]["center"] == center.tolist()


def test_a_group_on_each_host_is_one_worker_at_the_center(hosts: Pair, variables: dict[str, str]) -> None:
    """By gloo between hosts a group lies in one; its ranks end each exchange with the same weights."""
    ranks = [
        found["hybrid-easgd"] for found in results(start(hosts, (2, 2), ("hybrid-easgd",), **variables, GROUP_SIZE="2"))
    ]
    assert ranks[0]["own"] == ranks[1]["own"]
    assert ranks[2]["own"] == ranks[3]["own"]
    assert all(rank["center"] == ranks[0]["center"] for rank in ranks)


@pytest.mark.parametrize("killed", [0, 2])
def test_others_go_on_without_a_killed_rank(hosts: Pair, variables: dict[str, str], killed: int) -> None:
    """Ranks 0 and 1 share the center's host; rank 2 comes over the network. Whole exchanges of the dead one stay."""
    job = start(hosts, (2, 1), ("async-sgd", str(killed)), **variables)
    outputs = [rank.communicate(timeout=END_S) for rank in job]
    assert job[killed].returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), outputs[killed]
    left = [rank for rank in range(3) if rank != killed]
    assert [job[rank].returncode for rank in left] == [0, 0], outputs
    first, second = (json.loads(outputs[rank][0].splitlines()[-1])["center"] for rank in left)
    dead = sum((1 + 4 * killed) * number for number in range(1, STEPS // 2 + 1))
    assert first == second == (BEFORE + sum(made(range(rank, rank + 1)) for rank in left) + dead).tolist()
    if killed:
        assert f"rank(s) {killed} ended before" in outputs[0][1]
    require_no_server(variables["SAMOVAR_KEY_FILE"])


@pytest.mark.parametrize("one", [0, 1])
def test_a_rank_that_loads_alone_is_told_at_once_and_the_others_go_on(
    hosts: Pair, variables: dict[str, str], one: int
) -> None:
    """Between hosts by gloo, too, which could wait for all ranks only."""
    job = start(hosts, (1, 1), ("async-easgd", f"loads {one}"), **variables)
    outputs = [rank.communicate(timeout=END_S) for rank in job]
    assert [rank.returncode != 0 for rank in job] == [number == one for number in range(2)], outputs
    assert "all ranks make this call together" in outputs[one][1]
    assert json.loads(outputs[1 - one][0].splitlines()[-1])["strategy"] == "async-easgd"


def test_nothing_is_left_when_all_ranks_are_killed(hosts: Pair, variables: dict[str, str]) -> None:
    job = start(hosts, (1, 1), ("shm-easgd", "all"), **variables)
    for rank in job:
        assert rank.stdout is not None
        while (line := rank.stdout.readline()) and "waits" not in json.loads(line):
            pass
        assert line, rank.communicate()
    assert len(servers(variables["SAMOVAR_KEY_FILE"])) == 1
    for rank in job:
        rank.kill()
        rank.communicate()
    require_no_server(variables["SAMOVAR_KEY_FILE"])


def test_what_cannot_work_is_refused_with_the_reason(hosts: Pair) -> None:
    for found in results(start(hosts, (1, 1), ("async-easgd,round-robin-easgd",))):
        assert "need the job's key. Name its file by key_file='FILE'" in found["async-easgd"]["refused"]
        assert "through windows, and gloo has none" in found["round-robin-easgd"]["refused"]
