"""A rank that stands still, stopped by a signal, where nobody waits for it: the run ends without it."""

import random
import time
from pathlib import Path

import pytest

from tests.multiproc.command import Command, Ended, result_of
from tests.multiproc.leftovers import sessions_of
from tests.multiproc.nets import write_net, write_solver

ALONE = ("async-easgd", "async-measgd", "hogwild-easgd", "shm-easgd", "async-sgd", "async-msgd", "hogwild-sgd")
IN_STEP = ("sync", "sync-easgd", "local-sgd", "diloco", "round-robin-easgd")
STEPS, TIMEOUT_S, MOST_S = 400, 3, 100.0
PAUSE_S = 2.0


def start(folder: Path, digits: Path, strategy: str, workers: int) -> Command:
    solver = write_solver(write_net(folder, digits), STEPS, display=50)
    arguments = ("--solver", solver, "--workers", workers, "--threads-per-worker", 1, "--strategy", strategy)
    return Command("train", *arguments, "--timeout", TIMEOUT_S, "--out", folder / "run", folder=folder, is_forked=True)


def stopped(folder: Path, digits: Path, strategy: str, victim: int, step: int, pause_s: float | None = None) -> Ended:
    """How a run of two workers, or two groups of two, ends one rank of which is stopped after `step` steps."""
    with start(folder, digits, strategy, 4 if strategy == "hybrid-easgd" else 2) as command:
        process = command.wait_for_rank(victim)
        if step:
            command.wait_for_step(folder / "run", step)
        process.suspend()
        if pause_s is not None:
            time.sleep(pause_s)  # what is tried: a pause of this length
            process.resume()
        ended = command.wait(MOST_S)
    assert not sessions_of([process.pid])
    return ended


def assert_goes_on_without(ended: Ended, out: Path, victim: int) -> None:
    assert ended.return_code == 0, ended.errors
    assert f"rank {victim} was stopped by a signal for too long, and was ended" in ended.errors
    workers = result_of(out)["by_worker"]
    assert workers[victim]["is_gone"]
    assert not all(worker["is_gone"] for worker in workers)
    assert list((out / "snapshots").glob("step_*"))


@pytest.mark.parametrize(
    ("strategy", "victim"),
    [
        ("shm-easgd", 1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("hogwild-sgd", 0), ("hybrid-easgd", 3))),
    ],
)
def test_others_end_the_run(tmp_path: Path, digits: Path, strategy: str, victim: int) -> None:
    ended = stopped(tmp_path, digits, strategy, victim, 20)

    assert_goes_on_without(ended, tmp_path / "run", victim)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("strategy", [*ALONE, "hybrid-easgd"])
def test_at_any_moment(tmp_path: Path, digits: Path, strategy: str, seed: int) -> None:
    rng = random.Random(f"{strategy}{seed}")
    victim, step = rng.randrange(4 if strategy == "hybrid-easgd" else 2), rng.choice([0, rng.randrange(STEPS - 1)])

    ended = stopped(tmp_path, digits, strategy, victim, step)

    if f"rank {victim} was stopped by a signal" in ended.errors and ended.return_code == 0:
        assert_goes_on_without(ended, tmp_path / "run", victim)
    elif ended.return_code != 0:  # its first weights, or its group's, never came
        assert ended.return_code == 3
        assert "samovar: error: " in ended.errors


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("strategy", IN_STEP)
def test_in_step_it_ends_the_run(tmp_path: Path, digits: Path, strategy: str, seed: int) -> None:
    rng = random.Random(f"{strategy}{seed}")
    victim = rng.randrange(2)

    ended = stopped(tmp_path, digits, strategy, victim, rng.randrange(1, STEPS // 2))

    assert ended.return_code == 3
    assert f"rank {victim} does not answer" in ended.error


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [*ALONE, "hybrid-easgd", *IN_STEP])
def test_a_pause_loses_nobody(tmp_path: Path, digits: Path, strategy: str) -> None:
    ended = stopped(tmp_path, digits, strategy, 1, random.Random(strategy).randrange(1, STEPS // 2), PAUSE_S)

    assert ended.return_code == 0, ended.errors
    assert not any(worker["is_gone"] for worker in result_of(tmp_path / "run")["by_worker"])


@pytest.mark.slow
def test_a_group_waits_for_its_leader_while_that_tests(tmp_path: Path, digits: Path) -> None:
    """Longer than an exchange may take, and less than ten times as long, also on a busy machine."""
    solver = write_solver(write_net(tmp_path, digits), 40, test_initialization="false")
    solver.write_text(solver.read_text().replace("test_iter: 6", "test_iter: 2000").replace("val: 100", "val: 20"))
    arguments = ("--solver", solver, "--workers", 4, "--threads-per-worker", 1, "--strategy", "hybrid-easgd")
    with Command("train", *arguments, "--timeout", TIMEOUT_S, "--out", tmp_path / "run", folder=tmp_path) as command:
        ended = command.wait(MOST_S)
    assert ended.return_code == 0, ended.errors
    assert not any(worker["is_gone"] for worker in result_of(tmp_path / "run")["by_worker"]), ended.errors
