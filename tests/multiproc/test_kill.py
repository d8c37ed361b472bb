"""Kills: the run ends with the right sentence before anybody has waited in vain, and leaves complete files alone.

Names in shared memory are looked for after every test (tests/leak_check.py). An abstract socket goes with its process.
"""

import random
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from samovar.checkpoint.reading import read_snapshot
from samovar.checkpoint.store import SnapshotStore
from tests.multiproc.command import Command, Ended, last_step, wait_until
from tests.multiproc.leftovers import living, sessions_of, unfinished
from tests.multiproc.nets import write_net, write_solver

HANG_S = 10.0  # ranks that start or step so much apart are taken for ones that hang
MOMENTS = ("start", "step", "save", "step")
NUM_TRIALS, NUM_SLOW_TRIALS = 3, 50
KILLED = re.compile(r"rank (\d+) was killed by signal (\d+) \((SIG\w+)\).* after step (\d+)[,;.]")


@pytest.fixture
def endless(tmp_path: Path, digits: Path) -> Path:
    """A solver that would train for hours, and saves every fourth step."""
    return write_solver(write_net(tmp_path, digits), 10_000_000, snapshot=4)


def start(solver: Path, out: Path, workers: int, *flags: object, anew: bool = False) -> Command:
    arguments = ("--solver", solver, "--workers", workers, "--threads-per-worker", 1, "--out", out, *flags)
    return Command("train", *arguments, folder=out.parent, is_forked=not anew)


def wait_for_moment(command: Command, out: Path, rank: int, moment: str, rng: random.Random) -> psutil.Process:
    """Come to the moment at which to kill `rank`, whose process is returned."""
    process = command.wait_for_rank(rank)
    if moment == "start":
        time.sleep(rng.uniform(0, 1.5))  # not a wait for anything: any time will do
    elif moment == "step":
        command.wait_for_step(out, rng.randrange(1, 40))
        time.sleep(rng.uniform(0, 0.01))
    else:
        nth = rng.randrange(1, 5)
        command.until(lambda: len(list(out.glob("snapshots/step_*"))) >= nth, f"snapshot {nth}")
        command.until(lambda: list(out.glob("snapshots/.tmp-step_*")), "a save")
        time.sleep(rng.uniform(0, 0.01))
    return process


def assert_ended_by(
    command: Command, out: Path, rank: int, number: signal.Signals, ranks: list[psutil.Process]
) -> Ended:
    """The launcher must end before any rank gives up, name the rank, its signal and its step, and leave nothing."""
    ended = command.wait()
    assert ended.return_code == 3
    found = KILLED.search(ended.error)
    assert found, ended.error
    assert (int(found[1]), int(found[2]), found[3]) == (rank, number, number.name)
    # The line of a step is written when the next one is computed: rank 0 is a step ahead of the file.
    assert abs(int(found[4]) - (last_step(out) + 1)) <= 1
    assert_nothing_left(command, out, ranks)
    return ended


def assert_nothing_left(command: Command, out: Path, ranks: list[psutil.Process]) -> None:
    assert living(ranks) == []
    assert sessions_of([command.process.pid, *(process.pid for process in ranks)]) == []
    assert unfinished(out) == []


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[] if seed < NUM_TRIALS else [pytest.mark.slow]) for seed in range(NUM_SLOW_TRIALS)],
)
def test_a_rank_killed_at_a_random_moment(endless: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    workers = 3 if seed % 5 == 4 else 2
    device = "cpu-near" if seed % 3 == 2 else "cpu"
    rank, moment = rng.randrange(workers), MOMENTS[seed % len(MOMENTS)]
    out = tmp_path / "out"
    with start(endless, out, workers, "--device", device, anew=moment == "start") as command:
        process = wait_for_moment(command, out, rank, moment, rng)
        ranks = list(command.ranks().values())
        process.kill()
        assert_ended_by(command, out, rank, signal.SIGKILL, ranks)
    store = SnapshotStore(out / "snapshots")
    if moment == "save":
        assert read_snapshot(store.latest()[0]).step in (last_step(out) // 4 * 4, last_step(out) // 4 * 4 + 4)
    for saved in out.glob("snapshots/step_*"):
        assert read_snapshot(saved).step == int(saved.name.removeprefix("step_"))


def test_a_kill_while_the_metrics_are_begun(endless: Path, tmp_path: Path) -> None:
    """Rank 0 first writes metrics.jsonl under a passing name."""
    out = tmp_path / "out"
    with start(endless, out, 2) as command:
        process = command.wait_for_rank(0)
        ranks = list(command.ranks().values())
        while not list(out.glob("*metrics.jsonl*")):
            assert command.process.poll() is None
        process.kill()
        assert_ended_by(command, out, 0, signal.SIGKILL, ranks)


def test_a_rank_that_crashes(endless: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start(endless, out, 2) as command:
        command.wait_for_step(out, 5)
        ranks = list(command.ranks().values())
        command.wait_for_rank(1).send_signal(signal.SIGSEGV)
        assert_ended_by(command, out, 1, signal.SIGSEGV, ranks)


def test_a_resumed_run_counts_its_steps_from_the_snapshot(endless: Path, tmp_path: Path) -> None:
    """A rank killed before its first own step has done those of the snapshot."""
    out = tmp_path / "out"
    with start(endless, out, 1) as command:
        command.wait_for_step(out, 20)
        command.send(signal.SIGTERM)
        assert command.wait().return_code == 75
    saved = last_step(out)
    snapshot, _ = SnapshotStore(out / "snapshots").latest()
    with start(endless, out, 1, "--snapshot", "latest") as command:
        process = command.wait_for_rank(0)
        command.until(lambda: ", resumed" in (out / "samovar.log").read_text(), "training begins")
        process.kill()
        ended = assert_ended_by(command, out, 0, signal.SIGKILL, [process])
    assert last_step(out) >= saved
    assert re.search(f"; resume with --snapshot {re.escape(str(snapshot.parent))}/step_\\d+$", ended.error)


@pytest.mark.parametrize("moment", ["start", "step", "save"])
def test_ranks_end_with_their_launcher(endless: Path, tmp_path: Path, moment: str) -> None:
    out = tmp_path / "out"
    with start(endless, out, 2, anew=moment == "start") as command:
        wait_for_moment(command, out, 1, moment, random.Random(moment))
        ranks = list(command.ranks().values())
        assert len(ranks) == 2
        command.process.kill()
        assert command.wait().return_code == -signal.SIGKILL
        wait_until(lambda: not living(ranks), "the ranks end")
        wait_until(lambda: not sessions_of([command.process.pid, *(rank.pid for rank in ranks)]), "all has ended")


def test_a_watch_ends_with_a_run_whose_launcher_is_killed(endless: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start(endless, out, 1) as command:
        command.wait_for_step(out, 5)
        with Command("watch", out, folder=tmp_path) as watching:
            watching.until(lambda: " at step " in watching.output, "news")
            assert "ended by force" not in watching.output
            command.process.kill()
            ended = watching.wait()
    assert (ended.return_code, ended.errors) == (0, "")
    assert ended.output.splitlines()[-1].endswith("; the run was ended by force")


@pytest.mark.parametrize(
    ("workers", "rank"),
    [(2, 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 1), (3, 0), (3, 1), (3, 2)))],
)
def test_a_rank_that_hangs_is_named_by_the_others(digits: Path, tmp_path: Path, workers: int, rank: int) -> None:
    """SIGSTOP: with --timeout the others give up, and the stopped one is ended too."""
    out = tmp_path / "out"
    solver = write_solver(write_net(tmp_path, digits), 10_000_000)  # saves nothing: a slow disk is no rank that hangs
    with start(solver, out, workers, "--timeout", HANG_S) as command:
        command.wait_for_step(out, 5)
        ranks = list(command.ranks().values())
        command.wait_for_rank(rank).suspend()
        ended = command.wait()
        assert ended.return_code == 3
        assert re.search(rf"\brank {rank} does not answer", ended.error), ended.error
        assert_nothing_left(command, out, ranks)
