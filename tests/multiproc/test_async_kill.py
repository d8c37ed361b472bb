"""Workers that wait for nobody and die or stand still: the others continue, and who was killed comes back.

Several kills and stops happen in one run, one after the other; progress is read from the run's own board.
"""

import random
import re
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil
import pytest

from samovar.launcher.restart_policy import MOST_FRUITLESS_LIVES
from tests.multiproc.command import Command, metrics_of, result_of, succeed
from tests.multiproc.leftovers import living, sessions_of, unfinished
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.watched import WatchedBox

WORKERS, PERIOD = 4, 2
KILLS, AT_ONCE = 10, 3  # in one run
STRATEGIES = ("async-easgd", "shm-easgd", "async-sgd", "hogwild-easgd", "async-measgd")
LEARNED, ACCURACY = (1, 2, 3), 0.93
STOP_S, STOPS = 10.0, 10  # in one run
TOLD_OF_GROUPS = re.compile(
    r"rank (\d+) was killed by signal 9 .* the other groups continue, and its own, .*, starts again"
)
TOLD = re.compile(r"rank (\d+) was killed by signal 9 \(SIGKILL\).* after step (\d+); the others continue, and (.*)")

trials = pytest.mark.parametrize(("seed", "strategy"), list(enumerate(STRATEGIES)))


@pytest.fixture
def endless(tmp_path: Path, digits: Path) -> Path:
    """A solver that would train for hours."""
    return write_solver(write_net(tmp_path, digits), 10_000_000, test_initialization="false", display=50)


def start(solver: Path, out: Path, strategy: str, *more: object, workers: int = WORKERS) -> Command:
    arguments = ("--solver", solver, "--workers", workers, "--threads-per-worker", 1, "--strategy", strategy)
    return Command("train", *arguments, "--sync-period", PERIOD, "--out", out, *more, folder=out.parent, is_forked=True)


def wait_for_steps(command: Command, box: WatchedBox, ranks: Iterable[int], count: int) -> None:
    """Until each of `ranks` has made `count` more steps."""
    aims = {rank: box.steps(rank) + count for rank in ranks}
    command.until(lambda: all(box.steps(rank) >= aim for rank, aim in aims.items()), f"steps of ranks {list(aims)}")


def kill(command: Command, rank: int) -> None:
    """Kill a rank and wait until another process is there for it."""
    killed = command.wait_for_rank(rank)
    killed.kill()
    command.until(lambda: command.ranks().get(rank, killed).pid != killed.pid, f"rank {rank} is started again")


def kill_some(command: Command, box: WatchedBox, rng: random.Random, count: int) -> list[int]:
    """Kill `count` different ranks at moments of their own; the rest must go on, and they must come back."""
    victims = rng.sample(range(WORKERS), count)
    for victim in victims:
        wait_for_steps(command, box, [victim], rng.randrange(1, 30))
        kill(command, victim)
    wait_for_steps(command, box, set(range(WORKERS)) - set(victims), 20)
    wait_for_steps(command, box, victims, 5)
    return victims


def suspend(command: Command, rank: int) -> psutil.Process:
    """Stop a rank, by a signal that it does not notice."""
    process = command.wait_for_rank(rank)
    process.suspend()
    command.until(lambda: process.status() == psutil.STATUS_STOPPED, f"rank {rank} stands still")
    return process


def stop_one(command: Command, box: WatchedBox, rng: random.Random) -> None:
    """A rank stands still at any moment, while each of the others makes hundreds of steps, and goes on afterwards."""
    victim = rng.randrange(WORKERS)
    wait_for_steps(command, box, [victim], rng.randrange(1, 30))
    process = suspend(command, victim)
    begun = box.progress(victim)
    wait_for_steps(command, box, set(range(WORKERS)) - {victim}, 200)
    assert box.progress(victim) == begun
    process.resume()
    wait_for_steps(command, box, [victim], 10)


def stop(command: Command, out: Path, processes: Sequence[psutil.Process]) -> str:
    """Stop a run, which must end well and leave nothing; its warnings."""
    command.send(signal.SIGTERM)
    ended = command.wait()
    assert ended.return_code == 75, ended.errors
    assert living(processes) == []
    assert sessions_of([command.process.pid, *(process.pid for process in processes)]) == []
    assert unfinished(out) == []
    return ended.errors


def assert_counted(out: Path, box: WatchedBox, kills: Sequence[int]) -> None:
    """No count that was told is lost; the center has the updates told, give or take one for each kill."""
    workers = result_of(out)["by_worker"]
    assert [worker["restarts"] for worker in workers] == [kills.count(rank) for rank in range(WORKERS)]
    assert not any(worker["is_gone"] for worker in workers)
    assert [worker["updates"] for worker in workers] == [worker["steps"] // PERIOD for worker in workers]
    told, versions = sum(worker["updates"] for worker in workers), box.versions()
    lost = len(kills) if result_of(out)["strategy"] == "shm-easgd" else 0  # it tells of a push that is under way
    assert told - lost <= versions.min() <= versions.max() <= told + len(kills)


def assert_learned(solver: Path, out: Path) -> None:
    """The center that was saved last is as good as an undisturbed run's."""
    (weights,) = out.glob("snapshots/step_*/*.caffemodel")
    model = solver.with_name(solver.name.partition(".")[0] + ".prototxt")
    shown = succeed("test", "--model", model, "--weights", weights, "--iterations", 6, folder=out.parent).output
    found = re.search(r"accuracy ([\d.]+)", shown)
    assert found, shown
    assert float(found[1]) > ACCURACY


@pytest.mark.timeout(300)
def test_two_killed_workers_come_back_and_the_others_go_on(endless: Path, tmp_path: Path) -> None:
    rng, out = random.Random(0), tmp_path / "out"
    with start(endless, out, "async-easgd") as command, WatchedBox(command) as box:
        processes = [*command.ranks().values()]
        kills = kill_some(command, box, rng, 2)
        warnings = stop(command, out, [*processes, *command.ranks().values()])
        assert_counted(out, box, kills)
    assert [int(rank) for rank, *_ in TOLD.findall(warnings)] == kills


@pytest.mark.slow
@pytest.mark.timeout(300)
@trials
def test_many_killed_workers_come_back_and_the_others_go_on(
    endless: Path, tmp_path: Path, strategy: str, seed: int
) -> None:
    """Many kills, three at about the same time, the master's too; and one that stands still keeps nobody."""
    rng, out, kills = random.Random(seed), tmp_path / "out", []
    with start(endless, out, strategy) as command, WatchedBox(command) as box:
        processes = []
        while len(kills) < KILLS:
            processes += command.ranks().values()
            kills += kill_some(command, box, rng, min(AT_ONCE, KILLS - len(kills)))
        stop_one(command, box, rng)
        if seed in LEARNED:
            wait_for_steps(command, box, range(WORKERS), 300)
        warnings = stop(command, out, [*processes, *command.ranks().values()])
        assert_counted(out, box, kills)
    told = TOLD.findall(warnings)
    assert [int(rank) for rank, *_ in told] == kills
    assert {what for *_, what in told} == {"it starts again from the center"}
    if seed in LEARNED:
        assert_learned(endless, out)


@pytest.mark.slow
def test_a_worker_that_gets_nowhere_is_gone_and_another_one_shows_and_saves(endless: Path, tmp_path: Path) -> None:
    """The master, killed whenever it is started anew."""
    out = tmp_path / "out"
    with start(endless, out, "shm-easgd", workers=2) as command, WatchedBox(command) as box:
        wait_for_steps(command, box, [0, 1], 5)
        for _ in range(MOST_FRUITLESS_LIVES):
            kill(command, 0)
        last = command.wait_for_rank(0)
        last.kill()
        command.until(lambda: not command.ranks().get(0), "rank 0 is gone")
        told = len(metrics_of(out, "train"))
        command.until(lambda: len(metrics_of(out, "train")) > told + 20, "rank 1 shows")
        warnings = stop(command, out, [last, *command.ranks().values()])
    comes_back = ["it starts again from the center"] * MOST_FRUITLESS_LIVES
    assert [found[2] for found in TOLD.findall(warnings)] == [*comes_back, "it does not come back"]
    workers = result_of(out)["by_worker"]
    assert [worker["is_gone"] for worker in workers] == [True, False]
    assert [worker["restarts"] for worker in workers] == [MOST_FRUITLESS_LIVES, 0]


@pytest.mark.slow
@pytest.mark.timeout(300)
@trials
def test_workers_stopped_for_ten_seconds_keep_nobody(endless: Path, tmp_path: Path, strategy: str, seed: int) -> None:
    """Up to three at a time."""
    rng, out = random.Random(seed), tmp_path / "out"
    with start(endless, out, strategy) as command, WatchedBox(command) as box:
        for begun_stops in range(0, STOPS, AT_ONCE):
            victims = rng.sample(range(WORKERS), min(AT_ONCE, STOPS - begun_stops))
            wait_for_steps(command, box, victims, rng.randrange(1, 30))
            processes = [suspend(command, victim) for victim in victims]
            begun = [box.progress(victim) for victim in victims]
            time.sleep(STOP_S)  # no wait for anything: how long they are stopped
            assert [box.progress(victim) for victim in victims] == begun
            wait_for_steps(command, box, set(range(WORKERS)) - set(victims), 20)
            for process in processes:
                process.resume()
            wait_for_steps(command, box, victims, 10)
        stop(command, out, list(command.ranks().values()))
        assert_counted(out, box, [])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_group_comes_back_whole_and_the_other_goes_on(endless: Path, tmp_path: Path) -> None:
    """Kill its first rank, with the master, and its second, and then a rank of the other: no count is lost."""
    out, victims = tmp_path / "out", [0, 1, 2, 0]
    with start(endless, out, "hybrid-easgd", "--group-size", 2) as command, WatchedBox(command) as box:
        wait_for_steps(command, box, range(WORKERS), 5)
        processes = []
        for victim in victims:
            group = range(victim // 2 * 2, victim // 2 * 2 + 2)
            before = command.ranks()
            processes += before.values()
            before[victim].kill()
            command.until(
                lambda group=group, before=before: all(  # type: ignore[misc]
                    command.ranks().get(rank, before[rank]).pid != before[rank].pid for rank in group
                ),
                f"ranks {list(group)} are started again",
            )
            wait_for_steps(command, box, set(range(WORKERS)) - set(group), 10)
            wait_for_steps(command, box, group, 10)
        warnings = stop(command, out, [*processes, *command.ranks().values()])
        versions = box.versions()
    assert [int(rank) for rank, *_ in TOLD_OF_GROUPS.findall(warnings)] == victims
    workers = result_of(out)["by_worker"]
    assert [worker["restarts"] for worker in workers] == [3, 3, 1, 1]
    assert not any(worker["is_gone"] for worker in workers)
    told = sum(worker["updates"] for worker in workers)
    assert told - len(victims) <= versions.min() <= versions.max() <= told + len(victims)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_group_that_gets_nowhere_leaves_whole_and_the_other_goes_on(endless: Path, tmp_path: Path) -> None:
    """The first one, with the master, so that another rank shows and saves."""
    out = tmp_path / "out"
    with start(endless, out, "hybrid-easgd", "--group-size", 2) as command, WatchedBox(command) as box:
        wait_for_steps(command, box, range(WORKERS), 5)
        processes = list(command.ranks().values())
        for _ in range(MOST_FRUITLESS_LIVES):
            kill(command, 1)
        command.wait_for_rank(1).kill()
        command.until(lambda: sorted(command.ranks()) == [2, 3], "ranks 0 and 1 are gone")
        wait_for_steps(command, box, [2, 3], 30)
        warnings = stop(command, out, [*processes, *command.ranks().values()])
    assert "the other groups continue, and its own, ranks 0 and 1, does not come back" in warnings
    assert [worker["is_gone"] for worker in result_of(out)["by_worker"]] == [True, True, False, False]
