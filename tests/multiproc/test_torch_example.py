"""examples/torch/mnist.py under every launcher: as accurate as one rank, also when it is resumed or queued."""

import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from samovar.strategies.catalog import STRATEGIES as NAMES
from tests import loaded
from tests.multiproc import slurm
from tests.multiproc.command import wait_until
from tests.multiproc.ports import reserved_port

BIN = Path(sys.executable).parent
TOTAL_BATCH = 32
NUM_EPOCHS = 2
MAX_LOSS_OF_ACCURACY = 0.03
SHOWN = re.compile(r"(?:\[0\] )?epoch (\d+): accuracy (\d\.\d+) on 360 test images")
AT_THE_END = re.compile(r"(?:\[0\] )?in the end: accuracy (\d\.\d+)")
STRATEGIES = ("sync", "local-sgd", "diloco", "sync-easgd")
ASYNC = tuple(name for name in NAMES if name not in STRATEGIES)
WITHOUT_MOMENTUM = ("async-sgd", "async-msgd", "hogwild-sgd")


@pytest.fixture(scope="session")
def example(repository_root: Path) -> Path:
    return repository_root / "examples" / "torch" / "mnist.py"


def arguments(num_ranks: int, *more: object, epochs: int = NUM_EPOCHS) -> list[str]:
    """The same samples per step, and so the same rate, for any number of ranks."""
    flags = {"--epochs": epochs, "--batch-size": TOTAL_BATCH // num_ranks, "--learning-rate": 0.02}
    return [str(word) for word in (*(word for pair in flags.items() for word in pair), *more)]


def run_example(command: Sequence[object], folder: Path, environment: dict[str, str] | None = None) -> str:
    """The output of a command that must succeed."""
    with loaded.Forked(
        [str(word) for word in command],
        cwd=folder,
        env=(environment or dict(os.environ)) | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    return output


def accuracies(output: str) -> dict[int, float]:
    """Epoch to accuracy; every epoch is shown once, whatever the number of ranks."""
    lines = [line for line in output.splitlines() if not AT_THE_END.fullmatch(line)]
    found = [SHOWN.fullmatch(line) for line in lines]
    assert all(found), output
    shown = {int(one[1]): float(one[2]) for one in found if one}
    assert len(shown) == len(lines), output
    return shown


@pytest.fixture(scope="session")
def alone(example: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """The accuracy of one rank."""
    folder = tmp_path_factory.mktemp("alone")
    return accuracies(run_example([sys.executable, example, *arguments(1)], folder))[NUM_EPOCHS]


def test_a_signal_to_one_rank_ends_all_after_the_same_epoch(example: Path, tmp_path: Path) -> None:
    program = tmp_path / "signalled.py"
    program.write_text(
        "import os, runpy, signal\nimport samovar\nreal = samovar.Replica.step\n"
        "def step(self, *given):\n    real(self, *given)\n"
        "    if self.is_first and self.step_count == 1:\n        os.kill(os.getpid(), signal.SIGUSR1)\n"
        f"samovar.Replica.step = step\nrunpy.run_path({str(example)!r}, run_name='__main__')\n"
    )
    command = [*launcher("samovar", 2), program, *arguments(2, "--checkpoint", tmp_path / "saved")]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 75, ended.stderr


def launcher(name: str, num_ranks: int) -> list[object]:
    words: dict[str, list[object]] = {
        "samovar": [BIN / "samovar", "run", "-n", num_ranks],
        "torchrun": [BIN / "torchrun", "--standalone", "--nproc-per-node", num_ranks],
        "mpiexec": [BIN / "mpiexec", "-n", num_ranks, sys.executable],
    }
    if not Path(str(words[name][0])).exists():
        pytest.skip(f"{name} is not installed: pip install 'samovar[mpi]'")
    return words[name]


def test_alone(alone: float) -> None:
    assert alone > 0.9


@pytest.mark.parametrize(
    ("name", "num_ranks"),
    [
        ("samovar", 2),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("torchrun", "mpiexec")),
        *(pytest.param(name, 4, marks=pytest.mark.slow) for name in ("samovar", "torchrun", "mpiexec")),
    ],
)
def test_under_every_launcher_it_learns_as_on_one_rank(
    example: Path, tmp_path: Path, alone: float, name: str, num_ranks: int
) -> None:
    command = [*launcher(name, num_ranks), example, *arguments(num_ranks)]
    assert accuracies(run_example(command, tmp_path))[NUM_EPOCHS] > alone - MAX_LOSS_OF_ACCURACY


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_launcher_on_each_host(example: Path, tmp_path: Path, alone: float) -> None:
    """Two launchers that meet at an address; both hosts are this one."""
    with reserved_port() as port, ThreadPoolExecutor(2) as both:
        meeting = ("--nodes", 2, "--master-addr", "127.0.0.1", "--master-port", port, "--node-rank")
        commands = [[*launcher("samovar", 1), *meeting, number, example, *arguments(2)] for number in (0, 1)]
        outputs = list(both.map(lambda command: run_example(command, tmp_path), commands))
    assert accuracies(outputs[0])[NUM_EPOCHS] > alone - MAX_LOSS_OF_ACCURACY
    assert outputs[1] == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_every_strategy_learns(example: Path, tmp_path: Path, strategy: str, num_ranks: int) -> None:
    """Weights that are exchanged every few steps take somewhat longer at first.

    There a rank steps with its own small batch, which alone diverges at the rate of the whole one: elastic averaging
    has its share of that rate, DiLoCo, whose outer momentum comes on top, somewhat less.
    """
    own_rate = {"sync-easgd": 0.02 / num_ranks, "diloco": 0.016 / num_ranks}.get(strategy, 0.02)
    more = ["--strategy", strategy, "--learning-rate", own_rate]
    command = [*launcher("samovar", num_ranks), example, *arguments(num_ranks, *more, epochs=8)]
    assert accuracies(run_example(command, tmp_path))[8] > 0.94


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ASYNC)
def test_every_strategy_at_a_center_learns(example: Path, tmp_path: Path, strategy: str) -> None:
    """The final weights of all ranks count; steps of two workers are added up at momentum 0.

    `async-msgd` has momentum 0.8 at the center: a step moves it five times as far. `slowmo` has 0.5: twice as far.
    """
    without = ["--momentum", 0, "--learning-rate", 0.01 if strategy == "async-msgd" else 0.05]
    slower = ["--learning-rate", 0.01] if strategy == "slowmo" else []
    more = ["--strategy", strategy, *(without if strategy in WITHOUT_MOMENTUM else slower)]
    output = run_example([*launcher("samovar", 2), example, *arguments(2, *more, epochs=8)], tmp_path)
    assert list(accuracies(output)) == list(range(1, 9))
    (last,) = AT_THE_END.findall(output)
    assert float(last) > 0.94


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["sync", "sync-easgd"])
def test_a_resumed_run_goes_on_as_if_never_ended(example: Path, tmp_path: Path, strategy: str) -> None:
    """And with a rank's last file missing, from the last epoch that all have."""

    def run_to(epochs: int, folder: str) -> dict[int, float]:
        more = ("--strategy", strategy, "--checkpoint", tmp_path / folder)
        command = [*launcher("samovar", 2), example, *arguments(2, *more, epochs=epochs)]
        return accuracies(run_example(command, tmp_path))

    whole = run_to(3, "whole")
    assert sorted(path.name for path in (tmp_path / "whole").glob("epoch_*/*")) == sorted(
        ["rank_0_of_2.pt", "rank_1_of_2.pt"] * 2
    )
    parts = run_to(1, "parts") | run_to(2, "parts")
    (tmp_path / "parts" / "epoch_2" / "rank_1_of_2.pt").unlink()
    assert run_to(2, "parts") == {2: parts[2]}
    assert run_to(3, "parts") == {3: whole[3]}
    assert parts == {1: whole[1], 2: whole[2]}


@pytest.mark.slow
def test_a_run_continues_with_another_number_of_ranks(example: Path, tmp_path: Path) -> None:
    """Also if a later epoch is not complete."""

    def run_to(epochs: int, num_ranks: int) -> str:
        more = ("--checkpoint", tmp_path / "saved")
        return run_example([*launcher("samovar", num_ranks), example, *arguments(2, *more, epochs=epochs)], tmp_path)

    run_to(1, 2)
    (tmp_path / "saved" / "epoch_2").mkdir()
    (tmp_path / "saved" / "epoch_2" / "rank_1_of_2.pt").touch()
    output = run_to(2, 1)
    assert "epoch 1 was saved by 2 ranks; 1 continue" in output
    assert "epoch 1:" not in output
    assert accuracies(output[output.index("[0] epoch 2") :])[2] > 0.5


def test_the_two_files_differ_in_the_lines_that_the_documents_show(example: Path, repository_root: Path) -> None:
    """Beside what the file says of itself: two lines more, three others; then what evaluating, saving, the end need."""
    plain, changed = (code(path) for path in (example.with_name("mnist_plain.py"), example))
    diff = [line for line in difflib.ndiff(plain, changed) if line[:2] in ("- ", "+ ")]
    added = [line[2:].strip() for line in diff if line.startswith("+ ")]
    removed = [line[2:].strip() for line in diff if line.startswith("- ")]
    assert "loss.backward()" in removed
    assert "optimizer.step()" in removed
    assert len(removed) == 6
    assert [line for line in added if line] == [
        "import samovar",
        'parser.add_argument("--strategy", default="sync", help="how ranks share what they learn")',
        "replica = samovar.replicate(model, optimizer, strategy=arguments.strategy)",
        "batches = replica.shard(DataLoader(train, arguments.batch_size, shuffle=True))",
        "checkpoint = Checkpoint(arguments.checkpoint, replica, rank=replica.rank, world_size=replica.world_size)",
        "replica.backward(loss)",
        "replica.step()",
        "with torch.no_grad(), replica.evaluating():",
        "if replica.is_first:",
        'print(f"epoch {epoch + 1}: accuracy {accuracy(model, test):.4f} on {len(test)} test images")',
        "replica.finish()",
        "if replica.is_first:",
        'print(f"in the end: accuracy {accuracy(model, test):.4f}")',
    ]


def code(path: Path) -> list[str]:
    """The lines after what a file says of itself."""
    return path.read_text().split('"""', 2)[2].splitlines()


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a SLURM cluster of one node."""
    if slurm.missing():
        pytest.skip(slurm.missing())
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_under_srun(example: Path, tmp_path: Path, alone: float, queue: dict[str, str], num_ranks: int) -> None:
    command = ["srun", "--ntasks", num_ranks, sys.executable, example, *arguments(num_ranks)]
    assert accuracies(run_example(command, tmp_path, queue))[NUM_EPOCHS] > alone - MAX_LOSS_OF_ACCURACY


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_saves_goes_back_into_the_queue_and_is_completed(
    example: Path, repository_root: Path, tmp_path: Path, queue: dict[str, str]
) -> None:
    """SIGUSR1 as at the end of its time; `alone` checks what it learns."""
    script = repository_root / "examples" / "engines" / "train.sbatch"
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    flags = ["--parsable", "--nodes=1", "--ntasks-per-node=2", f"--output={output}"]
    more = arguments(2, "--checkpoint", checkpoint, epochs=6)
    environment = queue | {"PYTHON": sys.executable}
    job = run_example(["sbatch", *flags, script, example, *more], tmp_path, environment).strip()
    try:
        wait_until(lambda: list(checkpoint.glob("epoch_1/rank_*.pt")), "the first epoch", 100)
        run_example(["scancel", "--batch", "--signal=USR1", job], tmp_path, queue)
        wait_until(lambda: "Restarts=1" in job_of(job, queue), "it is back in the queue", 100)
        num_before = len(epochs_of(output))
        assert 1 <= num_before < 6
        # SLURM would let it wait two minutes, and refuses a start in the second in which the job ended.
        run_example(["scontrol", "update", f"JobId={job}", "StartTime=now+3"], tmp_path, queue)
        wait_until(lambda: re.search("JobState=(COMPLETED|FAILED)", job_of(job, queue)), "it is completed", 200)
    finally:
        subprocess.run(["scancel", job], env=queue, check=False)
    assert epochs_of(output) == [1, 2, 3, 4, 5, 6], output.read_text()


def job_of(job: str, queue: dict[str, str]) -> str:
    command = ["scontrol", "show", "job", job]
    return subprocess.run(command, env=queue, capture_output=True, text=True, check=True).stdout


def epochs_of(output: Path) -> list[int]:
    """The epochs that a job's log shows; SLURM writes to it too."""
    found = [SHOWN.fullmatch(line) for line in output.read_text().splitlines()]
    return [int(one[1]) for one in found if one]


def test_the_batch_script_is_one(repository_root: Path) -> None:
    script = repository_root / "examples" / "engines" / "train.sbatch"
    assert shutil.which("bash") is not None
    subprocess.run(["bash", "-n", script], check=True)
    assert "#SBATCH --signal=B:USR1@120" in script.read_text().splitlines()


TASKS = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.symlink(str(os.getpid()), "step")
signal.sigwait([signal.SIGUSR1])
sys.exit(75)
"""


def test_the_batch_script_learns_how_tasks_end_that_save_at_once(repository_root: Path, tmp_path: Path) -> None:
    """They are gone before `scancel` is."""
    programs = {
        "srun": f"exec '{sys.executable}' -c '{TASKS}'",
        "scancel": 'step=$(readlink step); kill -USR1 "$step"; while kill -0 "$step" 2>&-; do :; done',
        "scontrol": 'echo "$@" > requeued',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    script = repository_root / "examples" / "engines" / "train.sbatch"
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    with subprocess.Popen(["bash", script, "train.py"], cwd=tmp_path, env=environment) as job:
        try:
            wait_until((tmp_path / "step").is_symlink, "the step has begun", 60)
            job.send_signal(signal.SIGUSR1)
            assert job.wait(60) == 75
        finally:
            job.kill()
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
