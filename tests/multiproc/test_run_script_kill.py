"""`samovar run` and signals, kills, ranks that hang: no process is left, whoever is killed."""

import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.multiproc.command import Command, Ended, wait_until
from tests.multiproc.leftovers import living
from tests.multiproc.script_run import await_told, start_script, write_script

# A rank with a child that would live for ever: what a data loader's worker is.
WITH_CHILD = """
child = subprocess.Popen(["sleep", "1000"])
tell("child", child.pid)
tell("rank", os.getpid())
"""
IGNORES = """
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
"""
FOREVER = "while True: signal.pause()\n"


def family(command: Command, folder: Path, num_ranks: int = 2) -> list[psutil.Process]:
    """All ranks and their children."""
    return [
        *await_told(command, folder, "child", num_ranks),
        *await_told(command, folder, "rank", num_ranks),
    ]


def wait_for_ends(processes: list[psutil.Process]) -> None:
    """A killed process that is not a child of this one may take a moment to end, even after its launcher."""
    wait_until(lambda: not living(processes), "ranks, what they started, and the guard end")


def told(ended: Ended) -> list[str]:
    """The lines of stderr, without the notice that ranks share a core."""
    return [line for line in ended.errors.splitlines() if not line.startswith("samovar: warning: ")]


def test_a_killed_launcher_leaves_no_process(tmp_path: Path) -> None:
    with start_script(tmp_path, IGNORES + WITH_CHILD + FOREVER, 2) as command:
        processes = family(command, tmp_path)
        processes += psutil.Process(command.process.pid).children()
        command.send(signal.SIGKILL)
        assert command.wait().return_code == -signal.SIGKILL
        wait_for_ends(processes)


def test_a_launcher_killed_with_a_rank_already_done(tmp_path: Path) -> None:
    text = WITH_CHILD + "if rank == 0:\n    await_all('go', [9])\n    sys.exit()\n" + FOREVER
    with start_script(tmp_path, text, 2) as command:
        processes = family(command, tmp_path)
        (tmp_path / "go-9").touch()
        command.until(lambda: len(living(processes)) == 2, "rank 0 and its child end")
        command.send(signal.SIGKILL)
        command.wait()
        wait_for_ends(processes)


def test_a_killed_guard_ends_nothing(tmp_path: Path) -> None:
    text = WITH_CHILD + "await_all('go', [9])\nprint('done')\n"
    with start_script(tmp_path, text, 2) as command:
        processes = family(command, tmp_path)
        (guard,) = [
            child for child in psutil.Process(command.process.pid).children() if "guard.py" in " ".join(child.cmdline())
        ]
        guard.kill()
        (tmp_path / "go-9").touch()
        ended = command.wait()
    assert (ended.return_code, ended.output[4:]) == (0, "done\n")
    wait_for_ends(processes)


@pytest.mark.parametrize("how", ["fails", "is killed", "is stopped"])
def test_a_rank_that_fails_ends_the_others_though_they_hang(tmp_path: Path, how: str) -> None:
    fail = {
        "fails": "sys.exit(6)",
        "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
        # Rank 0 hangs for good; rank 1 gives up on it.
        "is stopped": "os.kill(int(Path('rank-0').read_text()), signal.SIGSTOP); raise TimeoutError('no answer')",
    }[how]
    text = f"{IGNORES}{WITH_CHILD}await_all('go', [9])\nif rank == 1:\n    {fail}\n{FOREVER}"
    with start_script(tmp_path, text, 2) as command:
        processes = family(command, tmp_path)
        (tmp_path / "go-9").touch()
        ended = command.wait()
    assert ended.return_code == {"fails": 6, "is killed": 137, "is stopped": 1}[how]
    sentence = ended.errors.splitlines()[-1]
    assert "rank 1 (" in sentence
    assert sentence.endswith("; rank 0 was ended with it")
    wait_for_ends(processes)


def test_ctrl_c_reaches_each_rank_once_and_they_may_end_in_their_own_way(tmp_path: Path) -> None:
    text = (
        "def note(number, frame):\n"
        "    with open(f'noted-{rank}', 'a') as file: file.write('x')\n"
        "    await_all('noted'); sys.exit(0)\n"
        "signal.signal(signal.SIGINT, note)\n"
    )
    with start_script(tmp_path, text + WITH_CHILD + FOREVER, 2) as command:
        processes = family(command, tmp_path)
        command.send(signal.SIGINT)
        ended = command.wait()
    assert (ended.return_code, told(ended)) == (0, [])
    assert [(tmp_path / f"noted-{rank}").read_text() for rank in range(2)] == ["x", "x"]
    wait_for_ends(processes)


def test_ctrl_c_ends_a_script_that_knows_nothing_of_it(tmp_path: Path) -> None:
    with start_script(tmp_path, WITH_CHILD + FOREVER, 2) as command:
        processes = family(command, tmp_path)
        command.send(signal.SIGINT)
        ended = command.wait()
    assert ended.return_code == 128 + signal.SIGINT
    assert "KeyboardInterrupt" in ended.errors
    assert ended.errors.splitlines()[-1] == "samovar: error: all ranks were stopped by SIGINT"
    wait_for_ends(processes)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_ranks_that_go_on(tmp_path: Path, second: signal.Signals) -> None:
    text = "signal.signal(signal.SIGINT, lambda *_: tell('noted'))\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    with start_script(tmp_path, text + WITH_CHILD + FOREVER, 2) as command:
        processes = family(command, tmp_path)
        command.send(signal.SIGINT)
        command.until(lambda: all((tmp_path / f"noted-{rank}").exists() for rank in range(2)), "both are told")
        command.send(second)
        ended = command.wait()
    assert ended.return_code == 128 + second
    assert "second signal" in ended.error
    wait_for_ends(processes)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_other_signals_are_passed_on_too(tmp_path: Path, number: signal.Signals) -> None:
    """The rank that has saved last has the time that it needs."""
    text = (
        "def save(number, frame):\n"
        "    if rank == 1: await_end(0)\n"
        "    tell('saved'); sys.exit(75)\n"
        f"signal.signal({number.value}, save)\n"
    )
    with start_script(tmp_path, text + WITH_CHILD + FOREVER, 2) as command:
        processes = family(command, tmp_path)
        command.send(number)
        ended = command.wait()
    assert ended.return_code == 75
    assert all((tmp_path / f"saved-{rank}").exists() for rank in range(2))
    wait_for_ends(processes)


def test_ranks_that_do_not_end_in_their_grace_are_ended(tmp_path: Path) -> None:
    text = WITH_CHILD + "if rank == 0:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    tell('deaf')\n" + FOREVER
    with start_script(tmp_path, text, 2, "--grace", 2) as command:  # in which rank 1 ends
        processes = family(command, tmp_path)
        command.until((tmp_path / "deaf-0").exists, "rank 0 is deaf")
        command.send(signal.SIGTERM)
        ended = command.wait()
    assert ended.return_code == 128 + signal.SIGTERM
    assert ended.error.endswith("SIGTERM having been passed on; rank 0 was ended with it")
    wait_for_ends(processes)


def test_ranks_of_which_none_ends_in_its_grace_are_ended(tmp_path: Path) -> None:
    text = WITH_CHILD + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell('deaf')\n" + FOREVER
    with start_script(tmp_path, text, 2, "--grace", 0.2) as command:
        processes = family(command, tmp_path)
        command.until(lambda: all((tmp_path / f"deaf-{rank}").exists() for rank in range(2)), "both are deaf")
        command.send(signal.SIGTERM)
        ended = command.wait()
    assert ended.return_code == 128 + signal.SIGTERM
    assert ended.error == "ranks 0 and 1 did not end within --grace after SIGTERM; killed"
    wait_for_ends(processes)


@pytest.mark.slow
def test_who_starts_it_with_nohup_wants_it_to_go_on(tmp_path: Path) -> None:
    text = WITH_CHILD + "await_all('go', [9])\nprint('done')\n"
    with Command("run", "-n", 2, write_script(tmp_path, text), folder=tmp_path, prefix=("nohup",)) as command:
        processes = family(command, tmp_path)
        command.send(signal.SIGHUP)
        for process in processes[2:]:
            process.send_signal(signal.SIGHUP)
        (tmp_path / "go-9").touch()
        ended = command.wait()
    assert (ended.return_code, ended.output[4:]) == (0, "done\n")


def test_failed_ranks_are_seen_where_who_starts_it_ignores_ends_of_children(tmp_path: Path) -> None:
    text = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    script, ignoring = write_script(tmp_path, "sys.exit(7)"), (sys.executable, "-c", text)
    with Command("run", "-n", 2, script, folder=tmp_path, prefix=ignoring) as command:
        ended = command.wait()
    assert (ended.return_code, "ended with exit code 7" in ended.errors) == (7, True)
