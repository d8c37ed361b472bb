"""Ranks of one host find each other, whoever starts them; one that is missing or wrong is named in time."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import loaded
from tests.multiproc.ports import reserved_port

PROGRAM = Path(__file__).with_name("join_program.py")
END_S = 200.0
BIN = Path(sys.executable).parent
Process = subprocess.Popen[str]


@pytest.fixture
def port() -> Iterator[int]:
    """One that is this test's own."""
    with reserved_port() as reserved:
        yield reserved


@contextmanager
def started(
    commands: Sequence[tuple[Sequence[object], Mapping[str, str], Sequence[int]]], folder: Path | None = None
) -> Iterator[list[Process]]:
    """Each a command, its variables and its inherited descriptors; in `folder` if given.

    The interpreter of one without descriptors is not started anew (`tests/loaded_program.py`).
    """
    processes: list[Process] = [
        loaded.Forked(
            [str(word) for word in words],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            pass_fds=descriptors,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words, variables, descriptors in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@contextmanager
def started_together(rank_variables: Sequence[Mapping[str, str]], limit_s: float) -> Iterator[list[Process]]:
    """Ranks that add up, which have `limit_s` from the moment at which all are there to join."""
    program = (sys.executable, PROGRAM, "sums", limit_s)
    with started([(program, variables, ()) for variables in rank_variables]) as ranks:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
        for process in ranks:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        yield ranks


def variables_of(rank: int, world_size: int, port: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def said(process: Process) -> dict[str, Any]:
    output, errors = process.communicate(timeout=END_S)
    assert process.returncode == 0, errors
    answer: dict[str, Any] = json.loads(output)
    return answer


def ended(words: Sequence[object], variables: Mapping[str, str]) -> tuple[int, str, str]:
    with started([(words, variables, ())]) as (process,):
        output, errors = process.communicate(timeout=END_S)
        return process.returncode, output, errors


def failed(process: Process, code: int) -> str:
    """The one sentence it says."""
    _, errors = process.communicate(timeout=END_S)
    assert process.returncode == code, errors
    lines = [line for line in errors.splitlines() if line.startswith(("rank ", "the store"))]
    assert len(lines) == 1, errors
    return lines[0]


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_by_variables(port: int, world_size: int) -> None:
    program = (sys.executable, PROGRAM, "sums")
    with started([(program, variables_of(rank, world_size, port), ()) for rank in range(world_size)]) as ranks:
        for rank, process in enumerate(ranks):
            answer = said(process)
            assert answer["rank"] == rank
            assert answer["hosts"] == [list(range(world_size))]
            assert answer["memory"] == []
            assert answer["threads"] == ["MainThread"]


@pytest.mark.parametrize(
    ("transport", "has_key_file"),
    [("tcp", False), *(pytest.param(*row, marks=pytest.mark.slow) for row in (("tcp", True), ("gloo", False)))],
)
def test_ranks_of_one_host_can_meet_as_if_they_were_far_apart(
    port: int, tmp_path: Path, transport: str, has_key_file: bool
) -> None:
    """Rank 0 makes the key file; without one a key that no file has."""
    variables = {"SAMOVAR_TRANSPORT": transport}
    if has_key_file:
        variables["SAMOVAR_KEY_FILE"] = str(tmp_path / "key.pem")
    program = (sys.executable, PROGRAM, "sums")
    with started([(program, variables_of(rank, 2, port) | variables, ()) for rank in range(2)]) as ranks:
        for rank, process in enumerate(ranks):
            output, errors = process.communicate(timeout=END_S)
            assert process.returncode == 0, errors
            answer = json.loads(output)
            assert (answer["rank"], answer["hosts"], answer["memory"]) == (rank, [[0], [1]], [])
            assert answer["threads"] == ["MainThread"]
            assert ("2 ranks on one host; by " + transport in errors) == (rank == 0)
            assert "127.0.0.1 (lo)" in errors or rank > 0
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600] * has_key_file


@pytest.mark.parametrize("transport", ["tcp", "gloo"])
def test_a_forked_process_that_ends_takes_nothing_with_it(port: int, transport: str) -> None:
    """It has its parent's sockets, and none of its threads."""
    program = (sys.executable, PROGRAM, "forks")
    variables = {"SAMOVAR_TRANSPORT": transport}
    with started([(program, variables_of(rank, 2, port) | variables, ()) for rank in range(2)]) as ranks:
        assert [said(rank)["rank"] for rank in ranks] == [0, 1]


@pytest.mark.slow
def test_transports_that_differ_are_named(port: int) -> None:
    chosen: tuple[dict[str, str], ...] = ({"SAMOVAR_TRANSPORT": "tcp"}, {})
    with started_together([variables_of(rank, 2, port) | each for rank, each in enumerate(chosen)], 20) as ranks:
        assert "transport is 'tcp' here and 'auto' on rank 1" in failed(ranks[0], 2)


def test_one_rank_needs_no_socket() -> None:
    code, output, errors = ended((sys.executable, PROGRAM, "sums"), {})
    assert code == 0, errors
    assert json.loads(output) == {"rank": 0, "hosts": [[0]], "sockets": 0, "memory": [], "threads": ["MainThread"]}


def test_the_inherited_socket_becomes_the_store() -> None:
    """As `samovar run` does it: nobody can take the port in between. Rank 0 ends first, the other goes on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        program = (sys.executable, PROGRAM, "early")
        of_first = variables_of(0, 2, port) | {"SAMOVAR_LISTEN_FD": str(listener.fileno())}
        commands = [
            (program, of_first, (listener.fileno(),)),
            (program, variables_of(1, 2, port), ()),
        ]
        with started(commands) as ranks:
            assert said(ranks[0]) == {"rank": 0}
            output, errors = ranks[1].communicate("\n", timeout=END_S)
            assert ranks[1].returncode == 0, errors
            assert json.loads(output) == {"rank": 1}


def test_the_store_listens_on_loopback_only(port: int) -> None:
    with started_together([variables_of(0, 2, port)], 30) as ranks:
        while not (listening := addresses_of(port)):
            assert ranks[0].poll() is None
        assert listening == {"0100007F"}


def addresses_of(port: int) -> set[str]:
    """Where somebody listens at this port, as the kernel writes it."""
    tables = [Path("/proc/net/tcp").read_text(), Path("/proc/net/tcp6").read_text()]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    places = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {address for address, number in places if int(number, 16) == port}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sums", "beside"])
def test_torchrun(what: str) -> None:
    words = (BIN / "torchrun", "--nproc-per-node", 2, "--standalone", PROGRAM, what)
    code, output, errors = ended(words, {})
    assert code == 0, errors
    assert output.count('"rank"') == 2


@pytest.mark.slow
def test_beside_a_process_group_of_the_users(port: int) -> None:
    program = (sys.executable, PROGRAM, "beside")
    with started([(program, variables_of(rank, 2, port), ()) for rank in range(2)]) as ranks:
        assert [said(rank)["rank"] for rank in ranks] == [0, 1]


def test_a_process_group_needs_no_rank_in_the_environment(port: int) -> None:
    """As Lightning starts its ranks: it opens the group itself, and sets no more variables."""
    variables = {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    with started([((sys.executable, PROGRAM, "grouped", rank, 2, port), variables, ()) for rank in range(2)]) as ranks:
        assert [said(rank)["rank"] for rank in ranks] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [False, True])
def test_mpiexec(wrapped: bool) -> None:
    """No address and no port are given; the ranks find each other by what started them."""
    mpiexec = shutil.which("mpiexec", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if mpiexec is None:
        pytest.skip("no mpiexec: pip install mpich")
    program = f"{sys.executable} {PROGRAM} sums"
    words = ["sh", "-c", f"{program}; true"] if wrapped else program.split()
    code, output, errors = ended((mpiexec, "-n", 2, *words), {})
    assert code == 0, errors
    assert output.count('"rank"') == 2
    assert output.count("[0, 1]") == 2


@pytest.mark.slow
def test_missing_ranks_are_named(port: int) -> None:
    with started_together([variables_of(rank, 4, port) for rank in (0, 2)], 8) as ranks:
        for rank, process in zip((0, 2), ranks, strict=True):
            error = failed(process, 3)
            assert error.startswith(f"rank {rank} of 4 on {socket.gethostname()}: "), error
            # The store goes with rank 0, whose deadline may be over a moment before that of rank 2.
            gone = rank == 2 and "is gone" in error and "rank 0 ended" in error
            assert gone or "ranks 1, 3 did not come within " in error, error


def test_a_missing_rank_0_is_named(port: int) -> None:
    with started_together([variables_of(1, 2, port)], 1) as (process,):
        error = failed(process, 3)
    assert re.search(rf"rank 0 did not open its store at 127\.0\.0\.1:{port} within \d\.\d s", error), error


@pytest.mark.slow
def test_ranks_that_disagree_about_their_number(port: int) -> None:
    with started_together([variables_of(0, 2, port), variables_of(1, 3, port)], 8) as ranks:
        assert "world_size is 2 here and 3 on rank 1" in failed(ranks[0], 2)
        ranks[1].communicate(timeout=END_S)  # it says the same, unless the store went with rank 0 before
        assert ranks[1].returncode in (2, 3)


def test_hosts_with_different_numbers_of_ranks_say_so_and_wait_for_nobody(port: int) -> None:
    """As `samovar run -n gpu` on a host with one GPU, and on another with two: rank 1 never comes."""
    _differ([variables_of(0, 2, port), variables_of(2, 4, port)], "world_size is 4 on rank 2 (.*) and 2 on rank 0 (.*)")


def test_hosts_with_different_numbers_of_ranks_say_so_if_both_have_a_rank(port: int) -> None:
    """As `samovar run -n 2` on the first host and `-n 1` on the second: both have a rank 1."""
    variables = [variables_of(0, 4, port), variables_of(1, 4, port), variables_of(1, 2, port)]
    _differ(variables, "world_size is [24] on rank 1 (.*) and [24] on rank [01] (.*)")


def _differ(variables: Sequence[dict[str, str]], sizes: str) -> None:
    """All ranks end at once with this sentence, though their deadline is far."""
    sentence = f"{sizes}; give every host the same number of ranks"
    with started_together(variables, 10_000) as ranks:
        for process in ranks:
            error = failed(process, 2)
            assert re.search(sentence, error), error


@pytest.mark.slow
def test_two_processes_with_one_rank(port: int) -> None:
    """The second is refused at once; the others miss the one that it should have been."""
    with started_together([variables_of(rank, 3, port) for rank in (0, 1, 1)], 15) as ranks:
        first, *same = (process.communicate(timeout=END_S)[1] for process in ranks)
    assert "rank 2 did not come within " in first
    assert sorted("another process has the same rank" in error for error in same) == [False, True], same
