"""`samovar run --keep-going`: at a center the others continue, and a failed rank comes back alone."""

from pathlib import Path

import pytest

from tests.multiproc.command import Ended, run
from tests.multiproc.script_run import run_impatiently

PROGRAM = Path(__file__).with_name("keep_going_program.py")
slow = pytest.mark.slow


def kept_going(folder: Path, num_ranks: int, *arguments: object, flags: tuple[object, ...] = ()) -> Ended:
    words = ("run", "-n", num_ranks, "--keep-going", "--oversubscribe", *flags, PROGRAM, *arguments)
    return run(*words, folder=folder, forks_scripts=True)


@pytest.mark.parametrize(
    ("strategy", "victim", "lives"),
    [
        ("shm-easgd", 1, 1),
        pytest.param("shm-easgd", 0, 1, marks=slow),
        pytest.param("async-easgd", 0, 3, marks=slow),
        pytest.param("async-sgd", 2, 2, marks=slow),
        pytest.param("hogwild-sgd", 1, 1, marks=slow),
    ],
)
def test_a_killed_rank_comes_back_to_the_center(tmp_path: Path, strategy: str, victim: int, lives: int) -> None:
    num_ranks = max(2, victim + 1)
    ended = kept_going(tmp_path, num_ranks, strategy, victim, lives)
    assert ended.return_code == 0, ended.errors
    for number in range(1, lives + 1):
        assert f"rank {victim} (on " in ended.errors
        assert f"it is started again (restart {number} of 3)" in ended.errors
        assert f"[{victim}] life {number} of rank {victim} begins from the center" in ended.output
    for rank in range(num_ranks):
        assert ended.output.count(f"[{rank}] life 0 of rank {rank} begins") == 1
        assert f"[{rank}] rank {rank} finished" in ended.output


def test_a_rank_that_is_stopped_is_ended_and_comes_back_and_no_other_rank_trains_twice(tmp_path: Path) -> None:
    words = ("-n", 2, "--keep-going", "--oversubscribe", PROGRAM, "shm-easgd", 1, 1, "stops")
    ended = run_impatiently(tmp_path, *words)
    assert ended.return_code == 0, ended.errors
    assert "was stopped by a signal for too long, and was ended after" in ended.errors
    assert "it is started again (restart 1 of 3)" in ended.errors
    begun = [line[:20] for line in sorted(ended.output.splitlines()) if "begins" in line]
    assert begun == ["[0] life 0 of rank 0", "[1] life 0 of rank 1", "[1] life 1 of rank 1"]


@slow
def test_the_others_finish_without_a_rank_that_is_lost(tmp_path: Path) -> None:
    """The exit code tells of it."""
    ended = kept_going(tmp_path, 2, "shm-easgd", 1, 1, "lost", flags=("--max-restarts", 0))
    assert ended.return_code == 137
    assert "[0] rank 0 finished" in ended.output
    assert "was killed by signal 9 (SIGKILL)" in ended.errors
    assert "rank 0 had ended well" in ended.errors


@slow
@pytest.mark.parametrize("strategy", ["sync", "hybrid-easgd"])
def test_ranks_that_wait_for_each_other_are_refused(tmp_path: Path, strategy: str) -> None:
    ended = kept_going(tmp_path, 2, strategy, 1, 1)
    assert ended.return_code == 1  # of a script with an error
    assert f"{strategy} is none of them" in ended.errors
    assert "--max-restarts alone" in ended.errors
