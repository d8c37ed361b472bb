"""`samovar train --transport mpi` and `gaspi`: the weights of shared memory, centers, and runs that end early."""

import signal
from pathlib import Path

import psutil
import pytest

import samovar
from samovar.core import modules
from samovar.core.errors import InputError
from tests.libraries import MPIEXEC, WAYS, Library, library
from tests.multiproc.command import SAMOVAR, Command, Ended, result_of, run, succeed
from tests.multiproc.engines import descendants, launched
from tests.multiproc.leftovers import living
from tests.multiproc.nets import write_net, write_solver

RING = ("--collective", "ring")
# In step: the same sums in the same order as in shared memory.
IN_STEP: tuple[tuple[object, ...], ...] = (
    RING,
    ("--collective", "tree", "--overlap", "backward"),
    ("--collective", "two-level", "--compress", "int8"),
    ("--collective", "halving-doubling", "--overlap", "full"),
    ("--exact", 4),
    ("--collective", "ring", "--hold-data"),
    *(("--strategy", name, "--collective", "ring") for name in ("sync-easgd", "local-sgd", "diloco", "slowmo")),
    ("--strategy", "round-robin-easgd"),
)
# With each of its own speed: workers, flags.
AT_A_CENTER = ((2, ("--strategy", "async-easgd")), (4, ("--strategy", "hybrid-easgd", "--group-size", 2)))
LONGEST_S = 200.0


@pytest.fixture(params=[pytest.param(way, marks=pytest.mark.slow) if way == "mpi-apart" else way for way in WAYS])
def over(request: pytest.FixtureRequest) -> Library:
    return library(request.param, request.config)


@pytest.fixture
def solver(tmp_path: Path, digits: Path) -> Path:
    return write_solver(write_net(tmp_path, digits), 12, snapshot=6)


def start(over: Library, workers: int, folder: Path, *flags: object) -> Command:
    """`samovar train` on so many workers, by mpiexec where that must start them."""
    own = ("--transport", over.transport, "--threads-per-worker", 1, "--oversubscribe", *flags)
    is_mpi = over.transport == "mpi"
    launcher = (MPIEXEC, "-n", workers) if is_mpi else ()
    count = () if is_mpi else ("--workers", workers)
    return launched((*launcher, SAMOVAR, "train", *own, *count), folder, **over.variables)


def train(over: Library, workers: int, folder: Path, *flags: object) -> Ended:
    with start(over, workers, folder, *flags) as command:
        ended = command.wait()
    assert ended.return_code == 0, ended.errors
    return ended


def plain(workers: int, folder: Path, *flags: object) -> str:
    """The weights by shared memory."""
    common = ("--workers", workers, "--threads-per-worker", 1, "--oversubscribe", "--out", folder / "plain")
    succeed("train", *common, *flags, folder=folder)
    return str(result_of(folder / "plain")["weights_sha256"])


@pytest.mark.parametrize(
    "flags", [pytest.param(flags, marks=() if flags is RING else pytest.mark.slow) for flags in IN_STEP], ids=str
)
def test_ranks_in_step_have_the_weights_of_shared_memory(
    flags: tuple[object, ...], over: Library, solver: Path, tmp_path: Path
) -> None:
    ended = train(over, 2, tmp_path, "--solver", solver, *flags, "--out", "out")
    assert f" over {over.transport}" in ended.output
    found = result_of(tmp_path / "out")
    assert found["transport"] == over.transport
    assert found["weights_sha256"] == plain(2, tmp_path, "--solver", solver, *flags)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "flags"), AT_A_CENTER)
def test_ranks_of_their_own_speed_train(
    workers: int, flags: tuple[object, ...], over: Library, solver: Path, tmp_path: Path
) -> None:
    """On one host the center is in memory that all map, as without the library."""
    train(over, workers, tmp_path, "--solver", solver, *flags, "--out", "out")
    found = result_of(tmp_path / "out")
    assert sum(worker["steps"] for worker in found["by_worker"]) >= workers * 12
    assert found["transport"] == ("shm" if workers == 2 else f"{over.transport}, shm")


@pytest.mark.slow
def test_a_run_resumes_from_the_snapshot_of_another_transport(over: Library, solver: Path, tmp_path: Path) -> None:
    expected = plain(2, tmp_path, "--solver", solver, *RING)
    snapshot = tmp_path / "plain" / "snapshots" / "step_00000006"
    train(over, 2, tmp_path, "--solver", solver, *RING, "--snapshot", snapshot, "--out", "out")
    assert result_of(tmp_path / "out")["weights_sha256"] == expected


@pytest.fixture
def endless(over: Library, tmp_path: Path, digits: Path) -> Command:
    solver = write_solver(write_net(tmp_path, digits), 10_000_000)
    return start(over, 2, tmp_path, "--solver", solver, "--out", "out")


def ranks_of(command: Command) -> list[psutil.Process]:
    ranks = descendants(command, "samovar.training.rank")
    assert len(ranks) == 2
    return ranks


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_run_and_is_named(endless: Command, tmp_path: Path, victim: int) -> None:
    with endless as command:
        command.wait_for_step(tmp_path / "out", 3)
        ranks = ranks_of(command)
        next(rank for rank in ranks if f"--rank={victim}" in rank.cmdline()).kill()
        ended = command.wait(LONGEST_S)
        _, alive = psutil.wait_procs(ranks, timeout=LONGEST_S)
    assert living(alive) == []
    assert ended.return_code == 3, ended.errors
    assert f"samovar: error: rank {victim} was killed by signal 9 (SIGKILL)" in ended.errors


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_rank(endless: Command, tmp_path: Path) -> None:
    with endless as command:
        command.wait_for_step(tmp_path / "out", 3)
        ranks = ranks_of(command)
        ranks[0].parent().kill()
        assert command.wait(LONGEST_S).return_code != 0
        _, alive = psutil.wait_procs(ranks, timeout=LONGEST_S)
    assert living(alive) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_with_a_snapshot(endless: Command, tmp_path: Path, number: signal.Signals) -> None:
    with endless as command:
        command.wait_for_step(tmp_path / "out", 3)
        command.send(number)
        ended = command.wait(LONGEST_S)
    assert ended.return_code == (75 if number is signal.SIGTERM else 0), ended.errors
    found = result_of(tmp_path / "out")
    assert found["stopped_by"] == number.name
    assert (tmp_path / "out" / "snapshots" / f"step_{found['steps']:08}").is_dir()


@pytest.mark.slow
def test_wrong_input_that_ranks_find_ends_all(over: Library, solver: Path, tmp_path: Path) -> None:
    with start(over, 2, tmp_path, "--solver", solver, "--exact", 20, "--out", "out") as command:
        ended = command.wait(LONGEST_S)
    assert ended.return_code == 2, ended.errors
    assert "samovar: error: --exact 20: a batch of 12 samples has no sample for each slice" in ended.errors
    assert not (tmp_path / "out").exists()


NOT_STARTED = "--transport mpi: needs workers that MPI started; start this command by mpiexec, without --workers"
OWN = "needs memory of our own; leave one of them out"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("mpi",), NOT_STARTED),
        (("mpi", "--workers", 2), NOT_STARTED),
        (("mpi", "--nodes", 2, "--node-rank", 0, "--master-addr", "::1", "--master-port", 4), "leave --nodes and --h"),
        (("gaspi",), "transport 'gaspi' needs GPI-2, and the loader finds no libGPI2.so: install it"),
        (("tcp",), "--transport: got 'tcp'; choose one of: auto, mpi, gaspi"),
        (("mpi", "--strategy", "async-easgd", "--box", "b"), f"--transport mpi: --box {OWN}"),
        (("gaspi", "--strategy", "async-easgd", "--record"), f"--transport gaspi: --record {OWN}"),
    ],
)
def test_what_cannot_be_is_refused(
    flags: tuple[object, ...], sentence: str, solver: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if flags[0] == "mpi":
        library("mpi", request.config)
    ended = run("train", "--solver", solver, "--transport", *flags, folder=tmp_path)
    assert ended.return_code == 2
    assert sentence in ended.error


def test_without_mpi4py_one_sentence_says_what_to_install(
    solver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "is_installed", lambda module: module != "mpi4py")
    with pytest.raises(InputError, match=r"the Python module mpi4py is not installed; run `pip install 'samovar\[mpi"):
        samovar.train(solver, transport="mpi", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--workers", 3), "--workers 3: with --transport mpi each process of mpiexec is a worker; leave it out"),
        (("--collective", "direct"), "collective: direct needs memory that all ranks map; with tcp, mpi or gaspi ch"),
    ],
)
def test_what_mpiexec_starts_is_refused_in_one_sentence(
    flags: tuple[object, ...], sentence: str, solver: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with start(library("mpi", request.config), 2, tmp_path, "--solver", solver, *flags) as command:
        ended = command.wait(LONGEST_S)
    assert ended.return_code == 2
    assert f"samovar: error: {sentence}" in ended.errors
