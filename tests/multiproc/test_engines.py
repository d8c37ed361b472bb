"""examples/engines under real engines: the same bits, also when a worker is killed and the engine starts it again."""

import random
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.multiproc import slurm
from tests.multiproc.command import SAMOVAR, last_step, result_of, succeed
from tests.multiproc.engines import (
    BIN,
    EPOCHS,
    PYTHON,
    assert_same_bits,
    descendants,
    ended_well,
    kill_after_saves,
    launched,
    ray_cluster,
    ray_environment,
)
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.ports import reserved_port

TORCHRUN = BIN / "torchrun"
MPIEXEC = shutil.which(BIN / "mpiexec") or shutil.which("mpiexec")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def loop(repository_root: Path) -> Path:
    return repository_root / "examples" / "engines" / "loop.py"


@pytest.fixture(scope="session")
def undisturbed(loop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the loop saves at its end, on two workers of `samovar run`."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with launched((SAMOVAR, "run", "-n", 2, loop, *flags(folder)), folder) as command:
        assert command.wait().return_code == 0
    return folder / "saved"


def flags(folder: Path) -> tuple[object, ...]:
    return ("--saved", folder / "saved", "--epochs", EPOCHS)


@pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec: pip install 'samovar[mpi]'")
def test_mpiexec_started_again_goes_on(loop: Path, tmp_path: Path, undisturbed: Path) -> None:
    """mpiexec itself starts nothing again: the same command does."""
    words = (MPIEXEC, "-n", 2, PYTHON, loop, *flags(tmp_path))
    with launched(words, tmp_path) as first:
        kill_after_saves(first, tmp_path / "saved", random.randint(1, 9), lambda: descendants(first, f"python {loop}"))
        assert first.wait().return_code != 0
    with launched(words, tmp_path) as second:
        assert "continues after step" in ended_well(second)
    assert_same_bits(tmp_path / "saved", undisturbed)


@pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())
def test_srun_has_the_same_bits(loop: Path, tmp_path: Path, undisturbed: Path) -> None:
    (tmp_path / "slurm").mkdir()
    words = ("srun", "--ntasks", 2, PYTHON, loop, *flags(tmp_path))
    with slurm.cluster(tmp_path / "slurm") as environment, launched(words, tmp_path, **environment) as command:
        ended_well(command)
    assert_same_bits(tmp_path / "saved", undisturbed)


@pytest.mark.parametrize("trial", range(3))
def test_torchrun_starts_a_lost_worker_again(loop: Path, tmp_path: Path, undisturbed: Path, trial: int) -> None:
    words = (TORCHRUN, "--standalone", "--nproc-per-node", 2, "--max-restarts", 3, loop, *flags(tmp_path))
    with launched(words, tmp_path) as command:
        kill_after_saves(command, tmp_path / "saved", random.randint(1, 9), lambda: descendants(command, "loop.py"))
        assert "continues after step" in ended_well(command)
    assert_same_bits(tmp_path / "saved", undisturbed)


@pytest.mark.parametrize("killed", [False, True])
def test_ray_starts_a_lost_worker_again(loop: Path, tmp_path: Path, undisturbed: Path, killed: bool) -> None:
    """Two nodes with one core each on this host; workers meet in the process group that Ray makes."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'samovar[engines]'")
    words = (PYTHON, loop.with_name("ray_loop.py"), *flags(tmp_path))
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        cluster = stack.enter_context(ray_cluster(tmp_path, [("127.0.0.1", ())] * 2, port))
        command = stack.enter_context(launched(words, tmp_path, **ray_environment(cluster)))
        if killed:
            kill_after_saves(command, tmp_path / "saved", random.randint(1, 9), cluster.workers)
        assert ("continues after step" in ended_well(command)) == killed
    assert_same_bits(tmp_path / "saved", undisturbed)


# A worker, the first process, which launches the workers, and the second one, which waits for it.
VICTIMS = {"worker": "samovar.training.rank", "launcher": "-m samovar train", "waiting": "-m samovar train"}


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_samovar_train_goes_on_under_torchrun(tmp_path: Path, digits: Path, victim: str, has_snapshot: bool) -> None:
    """Killed after a snapshot, or before any; the weights are those of the plain command.

    If the waiting process is killed, torchrun's SIGTERM makes the launcher save one.
    """
    solver = write_solver(write_net(tmp_path, digits), 400, **({"snapshot": 20} if has_snapshot else {}))
    train = ("train", "--solver", solver, "--threads-per-worker", 1)
    succeed(*train, "--workers", 2, "--out", tmp_path / "plain", folder=tmp_path)
    out = tmp_path / "out"
    words = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 3, "-m", "samovar", *train)
    with launched((TORCHRUN, *words, "--out", out, "--snapshot", "auto"), tmp_path) as command:
        command.until(lambda: last_step(out) > 50, "some steps")
        descendants(command, VICTIMS[victim])[1 if victim == "waiting" else 0].kill()
        said = ended_well(command)
    assert ("resumed" in said) == (has_snapshot or victim == "waiting")
    assert result_of(out)["weights_sha256"] == result_of(tmp_path / "plain")["weights_sha256"]
