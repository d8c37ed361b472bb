"""`samovar train` started by torchrun, mpiexec, srun and over ssh: the weights of the plain command on one host."""

import json
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.multiproc import slurm
from tests.multiproc.command import SAMOVAR, Command, result_of, run, succeed, wait_until
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.ports import reserved_port

BIN = Path(sys.executable).parent
TORCHRUN = BIN / "torchrun"
MPIEXEC = shutil.which(BIN / "mpiexec") or shutil.which("mpiexec")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # as a container may; of Open MPI
# The words that begin a command on another host: here it is the same one.
SSH = """#!/bin/sh
[ "$1" = "-q" ] && [ "$2" = "localhost" ] || { echo "no route to $2" >&2; exit 255; }
exec sh -c "$3"
"""


@pytest.fixture
def solver(tmp_path: Path, digits: Path) -> Path:
    return write_solver(write_net(tmp_path, digits), 12)


def flags(solver: Path, out: Path) -> tuple[object, ...]:
    return ("train", "--solver", solver, "--threads-per-worker", 1, "--collective", "ring", "--out", out)


@pytest.fixture
def expected(solver: Path, tmp_path: Path) -> str:
    """The weights of two workers by the plain command."""
    succeed(*flags(solver, tmp_path / "plain"), "--workers", 2, folder=tmp_path)
    return str(result_of(tmp_path / "plain")["weights_sha256"])


def start(words: Sequence[object], folder: Path, **variables: str) -> Command:
    settings = ({"OMP_NUM_THREADS": "1"} | AS_ROOT | variables).items()
    return Command(*(f"{name}={value}" for name, value in settings), *words, folder=folder, program=Path("env"))


def assert_trained(command: Command, out: Path, expected: str) -> None:
    with command:
        ended = command.wait()
    assert ended.return_code == 0, ended.errors
    assert ended.output.count("step 12/12") == 1, ended.output
    assert result_of(out)["weights_sha256"] == expected


@pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec: pip install 'samovar[mpi]'")
def test_mpiexec(solver: Path, tmp_path: Path, expected: str) -> None:
    words = (MPIEXEC, "-n", 2, SAMOVAR, *flags(solver, tmp_path / "out"))
    assert_trained(start(words, tmp_path), tmp_path / "out", expected)


@pytest.mark.slow
def test_torchrun_on_one_host(solver: Path, tmp_path: Path, expected: str) -> None:
    words = (TORCHRUN, "--standalone", "--nproc-per-node", 2, "-m", "samovar", *flags(solver, tmp_path / "out"))
    assert_trained(start(words, tmp_path), tmp_path / "out", expected)
    with start((*words, "--out", tmp_path / "again", "--json"), tmp_path) as command:
        assert json.loads(command.wait().output)["weights_sha256"] == expected  # of one process alone


@pytest.mark.slow
def test_torchrun_on_two_hosts(solver: Path, tmp_path: Path, expected: str) -> None:
    """The agent's store has the port that all know; the second agent's processes are of another host."""
    with reserved_port() as port:
        common = ("--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", port, "--nproc-per-node", 1)
        words = ("-m", "samovar", *flags(solver, tmp_path / "out"))
        first, second = (start((TORCHRUN, *common, "--node-rank", rank, *words), tmp_path) for rank in (0, 1))
        with second:
            assert_trained(first, tmp_path / "out", expected)
            assert second.wait().return_code == 0


@pytest.mark.slow
def test_variables_by_hand(solver: Path, tmp_path: Path, expected: str) -> None:
    """Without a local rank, each process is as a host of its own."""
    with reserved_port() as port:
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        words = (SAMOVAR, *flags(solver, tmp_path / "out"))
        first, second = (start(words, tmp_path, RANK=str(rank), **common) for rank in (0, 1))
        with second:
            assert_trained(first, tmp_path / "out", expected)
            assert second.wait().return_code == 0


@pytest.mark.slow
def test_the_defaults_of_caffe_train_follow_from_the_workers_of_all_hosts(solver: Path, tmp_path: Path) -> None:
    """Each process has two. What a strategy's default follows from is not the number of processes."""
    words = (SAMOVAR, "caffe", "train", "-solver", solver, "-threads_per_worker", 1, "-workers", 2)
    own = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    solver.write_text(solver.read_text().replace("max_iter: 12", "max_iter: 10000000 display: 1"))
    with reserved_port() as port:
        (home := tmp_path / "passing").mkdir()
        own |= {"MASTER_PORT": str(port), "TMPDIR": str(home)}
        commands = [start((*words, "-strategy", "sync-easgd"), tmp_path, RANK=str(rank), **own) for rank in (0, 1)]
        with commands[0] as first, commands[1] as second:
            first.until(lambda: "Iteration 2," in first.errors, "they train")
            found = [json.loads(path.read_text()) for path in home.glob("*/config.json")]
            first.send(signal.SIGINT)
            assert [each.wait().return_code for each in (first, second)] == [0, 0]
    assert [(each["workers"], each["strategy"]["moving_rate"]) for each in found] == [(4, 0.18)] * 2, found


@pytest.mark.slow
@pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())
def test_srun(solver: Path, tmp_path: Path, expected: str) -> None:
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm.cluster(folder) as environment:
        words = ("srun", "--ntasks", 2, SAMOVAR, *flags(solver, tmp_path / "out"))
        assert_trained(start(words, tmp_path, **environment), tmp_path / "out", expected)


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    """A program that runs commands on this host as ssh would on another."""
    program = tmp_path / "reach"
    program.write_text(SSH)
    program.chmod(0o755)
    return program


@pytest.mark.slow
def test_over_ssh(solver: Path, tmp_path: Path, expected: str, ssh: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# two of them\nlocalhost slots=1\n\nlocalhost:1  # the second\n")
    words = (*flags(solver, tmp_path / "out"), "--hosts", hosts, "--ssh", f"{ssh} -q")
    ended = succeed(*words, folder=tmp_path)
    assert "step 12/12" in ended.output
    assert result_of(tmp_path / "out")["weights_sha256"] == expected
    ended = succeed(*words, "--out", tmp_path / "again", "--json", folder=tmp_path)
    assert json.loads(ended.output)["weights_sha256"] == expected  # no other host writes there


def test_a_host_that_ssh_does_not_reach(solver: Path, tmp_path: Path, ssh: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\n127.0.0.2\n")
    found = run(*flags(solver, tmp_path / "out"), "--hosts", hosts, "--ssh", f"{ssh} -q", folder=tmp_path)
    assert found.return_code == 2
    assert "no route to 127.0.0.2" in found.errors
    assert "the command on 127.0.0.2 ended with exit code 255 before the run began" in found.errors
    assert f"and try: {ssh} -q 127.0.0.2 true\n" in found.errors
    hosts.write_text("localhost\n-oProxyCommand=evil\n")
    found = run(*flags(solver, tmp_path / "out"), "--hosts", hosts, folder=tmp_path)
    assert re.search(r"hosts:2: '-oProxyCommand=evil' is not NAME, NAME slots=N or NAME:N", found.error)


@pytest.mark.slow
@pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec: pip install 'samovar[mpi]'")
def test_a_signal_to_mpiexec_stops_the_run(tmp_path: Path, digits: Path) -> None:
    endless, out = write_solver(write_net(tmp_path, digits), 10_000_000), tmp_path / "out"
    with start((MPIEXEC, "-n", 2, SAMOVAR, *flags(endless, out)), tmp_path) as command:
        command.wait_for_step(out, 3)
        command.send(signal.SIGINT)
        command.wait()
    wait_until((out / "result.json").exists, "the result is written")
    assert result_of(out)["stopped_by"] in ("SIGINT", "SIGTERM")  # Open MPI sends its processes the second


def test_workers_are_the_launchers_matter(solver: Path, tmp_path: Path) -> None:
    words = (SAMOVAR, *flags(solver, tmp_path / "out"), "--workers", 2)
    with start(words, tmp_path, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1") as command:
        ended = command.wait()
    assert ended.return_code == 2
    sentence = "--workers 2: torchrun started 2 processes, and each is a worker; leave --workers out, or start"
    assert sentence in ended.errors
