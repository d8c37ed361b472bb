"""Workers that wait for nobody and die: the others go on, and who was killed comes back."""

import random
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.multiproc.command import Command, metrics_of, result_of
from tests.multiproc.leftovers import living, sessions_of, unfinished
from tests.multiproc.nets import write_net, write_solver

NUM_TRIALS, NUM_SLOW_TRIALS = 2, 50
STRATEGIES = ("shm-easgd", "async-sgd", "async-easgd", "hogwild-easgd")
TOLD = re.compile(r"rank (\d+) was killed by signal 9 \(SIGKILL\).* after step (\d+); the others go on, and (.*)")


@pytest.fixture
def endless(tmp_path: Path, digits: Path) -> Path:
    """A solver that would train for hours."""
    return write_solver(write_net(tmp_path, digits), 10_000_000, test_initialization="false", display=1)


def start(solver: Path, out: Path, workers: int, strategy: str) -> Command:
    arguments = ("--solver", solver, "--workers", workers, "--threads-per-worker", 1, "--strategy", strategy)
    return Command("train", *arguments, "--sync-period", 2, "--out", out, folder=out.parent)


def wait_until_back(command: Command, rank: int, killed: psutil.Process) -> None:
    """Until another process has the place of `killed`."""
    command.until(lambda: command.ranks().get(rank, killed).pid != killed.pid, f"rank {rank} is started again")


def steps_of(out: Path, rank: int) -> int:
    """How far the rank was, by the last line that tells."""
    lines = metrics_of(out, "workers")
    return int(lines[-1]["steps"][rank]) if lines else 0


def stop(command: Command, out: Path, processes: list[psutil.Process]) -> str:
    """Stop a run, which must end well and leave nothing; its warnings."""
    command.send(signal.SIGTERM)
    ended = command.wait()
    assert ended.return_code == 75, ended.errors
    assert living(processes) == []
    assert sessions_of([command.process.pid, *(process.pid for process in processes)]) == []
    assert unfinished(out) == []
    return ended.errors


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[] if seed < NUM_TRIALS else [pytest.mark.slow]) for seed in range(NUM_SLOW_TRIALS)],
)
def test_a_worker_killed_at_a_random_moment_comes_back(endless: Path, tmp_path: Path, seed: int) -> None:
    """The master too: seed 0 kills rank 0."""
    rng, out = random.Random(seed), tmp_path / "out"
    workers = 2 if seed < NUM_TRIALS else 3
    rank = seed % workers
    with start(endless, out, workers, STRATEGIES[seed % len(STRATEGIES)]) as command:
        command.wait_for_step(out, rng.randrange(1, 40))
        time.sleep(rng.uniform(0, 0.01))
        killed = command.wait_for_rank(rank)
        processes = list(command.ranks().values())
        killed.kill()
        wait_until_back(command, rank, killed)
        before = steps_of(out, rank)
        command.until(lambda: steps_of(out, rank) > before + 5, f"rank {rank} goes on")
        processes += command.ranks().values()
        warnings = stop(command, out, processes)
    told = TOLD.search(warnings)
    assert told, warnings
    assert (int(told[1]), told[3]) == (rank, "it starts again from the center")
    result = result_of(out)
    assert result["by_worker"][rank]["steps"] >= int(told[2])
    assert not any(worker["is_gone"] for worker in result["by_worker"])
    assert result["train_loss"] < 3


@pytest.mark.slow
def test_a_worker_that_dies_twice_is_gone_and_another_one_shows_and_saves(endless: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start(endless, out, 2, "shm-easgd") as command:
        processes = []
        for _ in range(2):
            killed = command.wait_for_rank(0)
            processes += command.ranks().values()
            before = steps_of(out, 0)
            command.until(lambda: steps_of(out, 0) > before + 5, "rank 0 trains")  # noqa: B023
            killed.kill()
            command.until(lambda: not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE, "it dies")  # noqa: B023
        told = len(metrics_of(out, "train"))
        command.until(lambda: len(metrics_of(out, "train")) > told + 20, "rank 1 shows")
        warnings = stop(command, out, processes)
    assert [found[2] for found in TOLD.findall(warnings)] == [
        "it starts again from the center",
        "it does not come back",
    ]
    assert [worker["is_gone"] for worker in result_of(out)["by_worker"]] == [True, False]


@pytest.mark.slow
def test_a_stopped_worker_keeps_nobody(endless: Path, tmp_path: Path) -> None:
    """SIGSTOP for 10 s: the others go on meanwhile, and it does afterwards."""
    out = tmp_path / "out"
    with start(endless, out, 3, "shm-easgd") as command:
        command.until(lambda: steps_of(out, 1) > 5, "rank 1 trains")
        process = command.wait_for_rank(1)
        process.suspend()
        stopped_at, others = steps_of(out, 1), steps_of(out, 2)
        time.sleep(10)  # no wait for anything: how long it is stopped
        assert steps_of(out, 1) <= stopped_at + 5
        assert steps_of(out, 2) > others + 20
        process.resume()
        command.until(lambda: steps_of(out, 1) > stopped_at + 10, "rank 1 goes on")
        stop(command, out, [process])
