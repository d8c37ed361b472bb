"""Workers of several hosts that do not wait for each other: lost ones come back, and a lost host keeps nobody."""

import random
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from samovar.launcher.restart_policy import MOST_FRUITLESS_LIVES
from tests.multihost.train_run import HostsRun, started
from tests.multiproc.command import Ended, result_of, succeed
from tests.multiproc.leftovers import living, sessions_of, unfinished
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.test_async_kill import kill, wait_for_steps
from tests.multiproc.watched import WatchedBox

HOSTS = (1, 2)  # workers of each
HOST_OF = (0, 1, 1)
PERIOD, KILLS, NUM_STEPS = 2, 6, 40
TOLD = re.compile(
    r"rank (\d+) on \S+#(\d) was killed by signal 9 \(SIGKILL\).* after step (\d+); the others continue, and (.*)"
)
STRATEGIES = list(enumerate(("async-easgd", "shm-easgd", "async-sgd", "hogwild-easgd")))
BACK, GONE = "it starts again from the center", "it does not come back"


@pytest.fixture
def endless(tmp_path: Path, digits: Path) -> Path:
    """A solver that would train for hours."""
    return write_solver(write_net(tmp_path, digits), 10_000_000, test_initialization="false", display=50)


@contextmanager
def training(
    folder: Path, solver: Path, *more: object, workers: Sequence[int] = HOSTS, strategy: str = "async-easgd"
) -> Iterator[tuple[HostsRun, WatchedBox, list[psutil.Process]]]:
    """A run in which each worker has made a step; processes that are added to the list must be gone in the end."""
    flags = ("--solver", solver, "--strategy", strategy, "--sync-period", PERIOD, *more)
    processes: list[psutil.Process] = []
    with started(folder, workers, *flags) as run_:
        with WatchedBox(run_.commands[0]) as box:
            wait_for_steps(run_.commands[0], box, range(sum(workers)), 1)
            processes.extend(ranks_of(run_))
            yield run_, box, processes
        assert living(processes) == []
        assert sessions_of([*(command.process.pid for command in run_.commands), *(one.pid for one in processes)]) == []


def ranks_of(run_: HostsRun) -> list[psutil.Process]:
    return [rank for command in run_.commands for rank in command.ranks().values()]


def stop(run_: HostsRun, *numbers: int) -> Ended:
    """Stop a run, which must end well on these hosts and leave nothing half; how host 0 ended."""
    run_.commands[0].send(signal.SIGTERM)
    ended = [run_.commands[number].wait() for number in (0, *numbers)]
    assert [each.return_code for each in ended] == [75] * len(ended), ended
    assert unfinished(run_.out) == []
    return ended[0]


def kill_until_gone(run_: HostsRun, rank: int) -> None:
    """Kill a rank whenever it is started, before it makes a step."""
    command = run_.commands[HOST_OF[rank]]
    for _ in range(MOST_FRUITLESS_LIVES):
        kill(command, rank)
    command.wait_for_rank(rank).kill()
    command.until(lambda: rank not in command.ranks(), f"rank {rank} is gone")


def test_a_killed_worker_of_any_host_comes_back(endless: Path, tmp_path: Path) -> None:
    """The others continue meanwhile, the master on host 0 is one of the victims, and no count is lost."""
    kills = [2, 0]
    with training(tmp_path, endless) as (run_, box, processes):
        for victim in kills:
            others = set(range(sum(HOSTS))) - {victim}
            kill(run_.commands[HOST_OF[victim]], victim)
            wait_for_steps(run_.commands[0], box, others, 10)
            wait_for_steps(run_.commands[0], box, [victim], 5)
        processes.extend(ranks_of(run_))
        warnings = stop(run_, 1).errors
    told = TOLD.findall(warnings)
    assert [(int(rank), int(host), what) for rank, host, _, what in told] == [(2, 1, BACK), (0, 0, BACK)], warnings
    workers = result_of(run_.out)["by_worker"]
    assert [worker["restarts"] for worker in workers] == [1, 0, 1]
    assert not any(worker["is_gone"] for worker in workers)
    assert [worker["updates"] for worker in workers] == [worker["steps"] // PERIOD for worker in workers]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "strategy"), STRATEGIES)
def test_workers_killed_at_random_moments_come_back(endless: Path, tmp_path: Path, seed: int, strategy: str) -> None:
    """The center has the updates that were told, give or take one for each kill."""
    rng, kills = random.Random(seed), []
    with training(tmp_path, endless, strategy=strategy) as (run_, box, processes):
        while len(kills) < KILLS:
            victims = rng.sample(range(sum(HOSTS)), 2)
            for victim in victims:
                wait_for_steps(run_.commands[0], box, [victim], rng.randrange(1, 30))
                kill(run_.commands[HOST_OF[victim]], victim)
            wait_for_steps(run_.commands[0], box, range(sum(HOSTS)), 5)
            processes.extend(ranks_of(run_))
            kills += victims
        warnings = stop(run_, 1).errors
        versions = box.versions()
    assert [int(rank) for rank, *_ in TOLD.findall(warnings)] == kills, warnings
    workers = result_of(run_.out)["by_worker"]
    assert [worker["restarts"] for worker in workers] == [kills.count(rank) for rank in range(sum(HOSTS))]
    told = sum(worker["updates"] for worker in workers)
    assert told - len(kills) <= versions.min() <= versions.max() <= told + len(kills)


def test_a_lost_host_leaves_the_run_to_the_others(endless: Path, tmp_path: Path) -> None:
    """Its workers end with it, their steps count, and the others hear of them and continue."""
    with training(tmp_path, endless, workers=(1, 2, 1)) as (run_, box, _):
        wait_for_steps(run_.commands[0], box, [1, 2], 200)  # others see them with a delay
        run_.commands[1].process.kill()
        wait_for_steps(run_.commands[0], box, [0, 3], 30)
        warnings = stop(run_, 2).errors
    assert re.search(r"host 1, \S+#1 \(ranks 1, 2\) is lost: .*; the others continue without it", warnings), warnings
    workers = result_of(run_.out)["by_worker"]
    assert [worker["is_gone"] for worker in workers] == [False, True, True, False]
    assert all(worker["steps"] > 0 for worker in workers)


@pytest.mark.slow
def test_host_0_takes_the_run_with_it(endless: Path, tmp_path: Path) -> None:
    """It has the center; the others end at once, and name it."""
    with training(tmp_path, endless, workers=(1, 1, 1)) as (run_, _, _):
        run_.commands[0].process.kill()
        ended = [run_.commands[number].wait() for number in (1, 2)]
    assert [each.return_code for each in ended] == [3, 3], ended
    assert all(re.search(r"host 0, .*#0 \(rank 0\) is lost", each.error) for each in ended), ended


@pytest.mark.slow
def test_a_worker_that_gets_nowhere_is_gone_and_its_host_stays(endless: Path, tmp_path: Path) -> None:
    with training(tmp_path, endless, workers=(1, 1)) as (run_, box, processes):
        kill_until_gone(run_, 1)
        wait_for_steps(run_.commands[0], box, [0], 30)
        processes.extend(ranks_of(run_))
        run_.commands[1].send(signal.SIGTERM)  # a host without a worker still passes it on
        ended = run_.wait()
    assert [each.return_code for each in ended] == [75, 75], ended
    told = TOLD.findall(ended[0].errors)
    assert [(int(rank), what) for rank, _, _, what in told] == [(1, BACK)] * MOST_FRUITLESS_LIVES + [(1, GONE)]
    assert [worker["is_gone"] for worker in result_of(run_.out)["by_worker"]] == [False, True]


@pytest.mark.slow
def test_without_a_worker_on_host_0_the_run_ends(endless: Path, tmp_path: Path) -> None:
    """It tests and saves; all hosts name it."""
    with training(tmp_path, endless) as (run_, _, processes):
        kill_until_gone(run_, 0)
        processes.extend(ranks_of(run_))
        ended = run_.wait()
    assert [each.return_code for each in ended] == [3, 3], ended
    assert all("rank 0 was killed by signal 9" in each.errors for each in ended), ended


@pytest.mark.slow
def test_a_group_of_one_host_comes_back_whole(endless: Path, tmp_path: Path) -> None:
    more = ("--group-size", 2)
    with training(tmp_path, endless, *more, workers=(2, 2), strategy="hybrid-easgd") as (run_, box, processes):
        first = run_.commands[1].ranks()
        kill(run_.commands[1], 3)
        wait_for_steps(run_.commands[0], box, range(4), 5)
        processes.extend(ranks_of(run_))
        assert first[2].pid != run_.commands[1].ranks()[2].pid
        warnings = stop(run_, 1).errors
    assert "the other groups continue, and its own, ranks 2 and 3, starts again from the center" in warnings
    assert [worker["restarts"] for worker in result_of(run_.out)["by_worker"]] == [0, 0, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "more", "workers"),
    [("async-easgd", ("--hold-data",), (1, 1)), ("hybrid-easgd", ("--group-size", 2), (1, 2, 1))],
    ids=["data in its memory", "a group over two hosts"],
)
def test_workers_that_need_a_lost_one_end_with_it(
    endless: Path, tmp_path: Path, strategy: str, more: tuple[object, ...], workers: tuple[int, ...]
) -> None:
    with training(tmp_path, endless, *more, workers=workers, strategy=strategy) as (run_, _, _):
        run_.commands[1].wait_for_rank(1).kill()
        ended = run_.wait()
    assert [each.return_code for each in ended] == [3] * len(workers), ended
    assert all("rank 1 was killed by signal 9" in each.errors for each in ended), ended


@pytest.mark.parametrize(
    ("strategy", "workers", "again"),
    [
        ("shm-easgd", (1, 1), (2,)),
        pytest.param("async-sgd", (2, 1), (1, 2), marks=pytest.mark.slow),
        pytest.param("async-msgd", (1, 2), (1, 1, 1), marks=pytest.mark.slow),
        pytest.param("async-easgd", (1, 1), (1, 1), marks=pytest.mark.slow),
        pytest.param("async-measgd", (2,), (1, 1), marks=pytest.mark.slow),
    ],
)
def test_a_recorded_run_has_the_same_bits_on_any_hosts(
    tmp_path: Path, digits: Path, strategy: str, workers: tuple[int, ...], again: tuple[int, ...]
) -> None:
    """Host 0 has the records of all workers, and sends them to the others."""
    solver = write_solver(write_net(tmp_path, digits), NUM_STEPS)
    hashes = set()
    for out, hosts, flags in (
        ("recorded", workers, ("--record",)),
        ("replayed", again, ("--replay", tmp_path / "recorded")),
    ):
        given = ("--solver", solver, "--strategy", strategy, *flags)
        if len(hosts) > 1:
            with started(tmp_path, hosts, *given, out=out) as run_:
                hashes.add(run_.succeed()["weights_sha256"])
        else:
            place = ("--workers", *hosts, "--threads-per-worker", 1, "--out", tmp_path / out)
            succeed("train", *given, *place, folder=tmp_path)
            hashes.add(result_of(tmp_path / out)["weights_sha256"])
    assert len(hashes) == 1


@pytest.mark.slow
def test_a_record_that_lacks_a_worker_is_refused(tmp_path: Path, digits: Path) -> None:
    solver = write_solver(write_net(tmp_path, digits), NUM_STEPS)
    flags = ("--solver", solver, "--strategy", "shm-easgd")
    with started(tmp_path, (1, 1), *flags, "--record", out="recorded") as run_:
        run_.succeed()
    (run_.out / "order_rank1.bin").unlink()
    with started(tmp_path, (1, 1), *flags, "--replay", run_.out) as again:
        ended = again.wait()
    assert [each.return_code for each in ended] == [2, 2], ended
    assert all("has no record of rank 1" in each.error for each in ended), ended
