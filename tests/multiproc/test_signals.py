"""The effect of each signal on a run, sent to the launcher or to a rank."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from samovar.transports.shm import BoardWord, RunBoard
from tests.multiproc.command import Command, Ended, last_step, result_of, run
from tests.multiproc.held_import import HeldImport
from tests.multiproc.leftovers import living
from tests.multiproc.nets import write_net, write_solver

PREEMPTED = 75


@pytest.fixture
def endless(tmp_path: Path, digits: Path) -> Path:
    """A solver that would train for hours."""
    return write_solver(write_net(tmp_path, digits), 10_000_000)


def start(solver: Path, out: Path, workers: int = 2, prefix: tuple[object, ...] = (), *more: object) -> Command:
    arguments = ("--solver", solver, "--workers", workers, "--threads-per-worker", 1, "--out", out, *more)
    return Command("train", *arguments, folder=out.parent, prefix=prefix, is_forked=True)


@pytest.fixture
def import_of_rank_0(tmp_path: Path) -> HeldImport:
    """Holds rank 0 when it begins to import what it works with; it forks rank 1 after that."""
    return HeldImport(tmp_path, "samovar.training.rank_work", "--rank=0")


def send_and_wait(command: Command, number: signal.Signals) -> None:
    """Send a signal to the launcher of two ranks; until it shows them that it has taken it."""
    (segment,) = re.findall(r"--segment=(\d+)", " ".join(command.wait_for_rank(0).cmdline()))
    descriptor = os.open(f"/proc/{command.process.pid}/fd/{segment}", os.O_RDWR)
    try:
        board = RunBoard(descriptor, 2)
        command.send(number)
        command.until(
            lambda: board.read(board.launcher_row, BoardWord.STOP_SIGNAL) == number, f"the launcher takes {number.name}"
        )
    finally:
        os.close(descriptor)


def assert_saved_and_stopped(out: Path, ended: Ended, number: signal.Signals, exit_code: int) -> None:
    assert ended.return_code == exit_code, ended.errors
    result = result_of(out)
    assert result["stopped_by"] == number.name
    assert result["steps"] == last_step(out)
    assert [path.name for path in out.glob("snapshots/step_*")] == [f"step_{result['steps']:08}"]


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_signal_to_a_worker_at_a_center_stops_all(endless: Path, tmp_path: Path, rank: int) -> None:
    out = tmp_path / "out"
    with start(endless, out, 2, (), "--strategy", "async-sgd") as command:
        command.wait_for_step(out, 3)
        command.wait_for_rank(rank).send_signal(signal.SIGTERM)
        ended = command.wait()
    assert_saved_and_stopped(out, ended, signal.SIGTERM, PREEMPTED)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
def test_preemption(endless: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    with start(endless, out) as command:
        command.wait_for_step(out, 3)
        command.send(number)
        ended = command.wait()
    assert_saved_and_stopped(out, ended, number, PREEMPTED)


@pytest.mark.parametrize(
    ("number", "rank", "exit_code"),
    [
        (signal.SIGTERM, 1, PREEMPTED),
        pytest.param(signal.SIGTERM, 0, PREEMPTED, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, 1, PREEMPTED, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 1, 0, marks=pytest.mark.slow),
    ],
)
def test_a_signal_sent_to_a_rank(
    endless: Path, tmp_path: Path, number: signal.Signals, rank: int, exit_code: int
) -> None:
    """As schedulers do: all ranks stop after the same step."""
    out = tmp_path / "out"
    with start(endless, out) as command:
        command.wait_for_step(out, 3)
        command.wait_for_rank(rank).send_signal(number)
        ended = command.wait()
    assert_saved_and_stopped(out, ended, number, exit_code)


@pytest.mark.slow
def test_signals_from_everywhere_are_one_stop(endless: Path, tmp_path: Path) -> None:
    """A scheduler tells every process of the job: launcher and ranks."""
    out = tmp_path / "out"
    with start(endless, out) as command:
        command.wait_for_step(out, 3)
        for process in command.ranks().values():
            process.send_signal(signal.SIGTERM)
        command.send(signal.SIGTERM)
        ended = command.wait()
    assert_saved_and_stopped(out, ended, signal.SIGTERM, PREEMPTED)


def test_a_signal_before_the_first_step(endless: Path, tmp_path: Path, import_of_rank_0: HeldImport) -> None:
    """It is kept until the ranks, one of which stands still while it is started, can act on it."""
    out = tmp_path / "out"
    with start(endless, out, prefix=import_of_rank_0.prefix) as command:
        command.until(lambda: import_of_rank_0.is_reached, "rank 0 stands still")
        send_and_wait(command, signal.SIGTERM)
        assert last_step(out) == 0
        import_of_rank_0.let_go()
        ended = command.wait()
    assert_saved_and_stopped(out, ended, signal.SIGTERM, PREEMPTED)
    assert result_of(out)["steps"] <= 2


def test_a_signal_to_a_rank_that_is_being_started(endless: Path, tmp_path: Path, import_of_rank_0: HeldImport) -> None:
    """It is held back while the rank imports what it works with."""
    out = tmp_path / "out"
    with start(endless, out, prefix=import_of_rank_0.prefix) as command:
        command.until(lambda: import_of_rank_0.is_reached, "rank 0 stands still")
        rank = command.wait_for_rank(0)
        rank.send_signal(signal.SIGTERM)
        assert holds_back(rank.pid, signal.SIGTERM)
        import_of_rank_0.let_go()
        ended = command.wait()
    assert_saved_and_stopped(out, ended, signal.SIGTERM, PREEMPTED)
    assert result_of(out)["steps"] <= 2


def holds_back(process_id: int, number: signal.Signals) -> bool:
    """Whether the signal was sent to the process, and is blocked there."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    sent, blocked = (
        int(line.split()[1], 16) for name in ("ShdPnd:", "SigBlk:") for line in lines if line.startswith(name)
    )
    return bool((sent & blocked) >> (number - 1) & 1)


@pytest.mark.parametrize("second", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_second_signal_ends_at_once(endless: Path, tmp_path: Path, second: signal.Signals) -> None:
    """Even if a rank hangs and so cannot stop as asked."""
    out = tmp_path / "out"
    with start(endless, out) as command:
        command.wait_for_step(out, 3)
        processes = command.ranks().values()
        command.wait_for_rank(1).suspend()
        send_and_wait(command, signal.SIGINT)
        command.send(second)
        ended = command.wait()  # sooner than the other rank gives up on the one that hangs
    assert ended.return_code == 128 + second
    assert "second signal" in ended.error
    assert second.name in ended.error
    assert living(processes) == []
    assert not (out / "result.json").exists()
    assert not list(out.glob("snapshots/*"))


def test_a_second_signal_names_the_snapshot_that_was_written(endless: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start(endless, out) as command:
        command.wait_for_step(out, 3)
        command.send(signal.SIGHUP)
        command.until(partial(has_snapshots, out, 1), "a snapshot")
        command.wait_for_step(out, last_step(out) + 3)
        command.wait_for_rank(1).suspend()
        send_and_wait(command, signal.SIGINT)
        command.send(signal.SIGINT)
        ended = command.wait()
    (saved,) = out.glob("snapshots/step_*")
    assert f"second signal (SIGINT); resume with --snapshot {saved}" in ended.error


def test_a_folder_in_which_a_run_trains_is_refused_to_another(endless: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start(endless, out, workers=1) as command:
        command.wait_for_step(out, 3)
        other = run("train", "--solver", endless, "--iterations", 1, "--out", out, folder=tmp_path)
        command.send(signal.SIGINT)
        ended = command.wait()
    assert other.return_code == 2
    assert "another run trains there now; give another folder, or wait for its end" in other.error
    assert ended.return_code == 0, ended.errors


def has_snapshots(out: Path, count: int) -> bool:
    return len(list(out.glob("snapshots/step_*"))) == count


def test_hangup_saves_and_goes_on_each_time(endless: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start(endless, out, workers=1) as command:
        command.wait_for_step(out, 3)
        for count in (1, 2):
            command.send(signal.SIGHUP)
            command.until(partial(has_snapshots, out, count), f"snapshot {count}")
            command.wait_for_step(out, last_step(out) + 3)
        command.send(signal.SIGINT)
        ended = command.wait()
    assert ended.return_code == 0, ended.errors
    saved = sorted(int(path.name.removeprefix("step_")) for path in out.glob("snapshots/step_*"))
    assert len(saved) == 3
    assert saved[-1] == result_of(out)["steps"] == last_step(out)
    assert result_of(out)["stopped_by"] == "SIGINT"


@pytest.mark.parametrize("strategy", ["async-sgd", pytest.param("sync", marks=pytest.mark.slow)])
def test_a_hangup_of_any_worker_saves(endless: Path, tmp_path: Path, strategy: str) -> None:
    out = tmp_path / "out"
    with start(endless, out, 2, (), "--strategy", strategy) as command:
        for count, rank in enumerate((1, 0), start=1):
            command.wait_for_step(out, last_step(out) + 3 if count > 1 else 3)
            command.wait_for_rank(rank).send_signal(signal.SIGHUP)
            command.until(partial(has_snapshots, out, count), f"the snapshot that rank {rank} was asked for")
        command.send(signal.SIGINT)
        ended = command.wait()
    assert ended.return_code == 0, ended.errors


def test_ctrl_c_while_the_commands_load_ends_without_a_traceback(tmp_path: Path) -> None:
    held = HeldImport(tmp_path, "numpy", "doctor")
    with Command("doctor", folder=tmp_path, prefix=held.prefix) as command:
        command.until(lambda: held.is_reached, "loading has begun")
        command.send(signal.SIGINT)
        ended = command.wait()
    assert ended.return_code == 128 + signal.SIGINT
    assert ended.errors == "samovar: ended by SIGINT before it began\n"
