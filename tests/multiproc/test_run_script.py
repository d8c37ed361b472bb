"""`samovar run`: who ranks are told to be, what of their output is shown, whose error and exit code count."""

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.multiproc.command import SAMOVAR, TIMEOUT_S, Command, run
from tests.multiproc.script_run import run_script, write_script

WHO = "print(json.dumps({name: os.environ.get(name) for name in sys.argv[1:]}))"
NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS"),
    *("SAMOVAR_LISTEN_FD", "SAMOVAR_TRANSPORT", "SAMOVAR_KEY_FILE"),
)


def told(output: str) -> list[dict[str, str | None]]:
    """The output of the ranks, in rank order."""
    lines = sorted(line.split(" ", 1) for line in output.splitlines())
    found = [json.loads(text) for _, text in lines]
    assert [prefix for prefix, _ in lines] == [f"[{one['RANK']}]" for one in found]
    return found


def test_ranks_are_told_who_they_are(tmp_path: Path) -> None:
    flags = ("--transport", "tcp", "--key-file", "key.pem")
    ended = run_script(tmp_path, f"import json\n{WHO}", 3, *flags, arguments=NAMES)
    ranks = told(ended.output)
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // 3)))
    for number, one in enumerate(ranks):
        assert one["RANK"] == one["LOCAL_RANK"] == str(number)
        assert one["WORLD_SIZE"] == one["LOCAL_WORLD_SIZE"] == "3"
        assert (one["MASTER_ADDR"], one["OMP_NUM_THREADS"]) == ("127.0.0.1", threads)
        assert (one["SAMOVAR_LISTEN_FD"] is not None) == (number == 0)
        assert (one["SAMOVAR_TRANSPORT"], one["SAMOVAR_KEY_FILE"]) == ("tcp", str(tmp_path / "key.pem"))
    assert ended.return_code == 0


def test_a_command_that_a_launcher_starts_several_times_warns_once(tmp_path: Path) -> None:
    step = {"SLURM_STEP_NUM_TASKS": 2, "SLURM_JOB_ID": 1, "SLURM_STEP_ID": 0, "SLURM_NODEID": 0, "SLURM_LOCALID": 0}
    said = []
    for task in (0, 1):
        prefix = ("env", *(f"{name}={value}" for name, value in (step | {"SLURM_PROCID": task}).items()))
        ended = run("run", "-n", 1, write_script(tmp_path, "print(world_size)"), folder=tmp_path, prefix=prefix)
        assert (ended.return_code, ended.output) == (0, "[0] 1\n")
        said.append(ended.errors)
    warning = "SLURM started this command 2 times, and each is a job of its own; for one job give --nodes, or let SLURM"
    assert [warning in each for each in said] == [True, False], said


def test_the_port_listens_before_any_rank_starts(tmp_path: Path) -> None:
    """Rank 1 connects before rank 0 takes its first step, which accepts on the inherited socket."""
    ended = run_script(
        tmp_path,
        """
import socket
address = os.environ["MASTER_ADDR"], int(os.environ["SAMOVAR_PORT"])
if rank == 1:
    with socket.create_connection(address) as connection:
        tell("connected")
        print("rank 0 says", connection.recv(99).decode())
else:
    await_all("connected", [1])
    with socket.socket(fileno=int(os.environ["SAMOVAR_LISTEN_FD"])) as listening:
        assert listening.getsockname() == address
        with listening.accept()[0] as connection:
            connection.sendall(b"welcome")
""",
        2,
    )
    assert (ended.output, ended.return_code) == ("[1] rank 0 says welcome\n", 0), ended.errors


def test_several_hosts_number_their_ranks_on_and_say_how_they_meet(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    flags = ("--nodes", 3, "--node-rank", 2, "--master-addr", "127.0.0.1", "--master-port", port)
    ended = run_script(tmp_path, f"import json\n{WHO}", 2, *flags, arguments=(*NAMES, "MASTER_PORT"))
    found = told(ended.output)
    assert [(one["RANK"], one["LOCAL_RANK"], one["WORLD_SIZE"]) for one in found] == [("4", "0", "6"), ("5", "1", "6")]
    assert {one["SAMOVAR_LISTEN_FD"] for one in found} == {None}
    assert {one["MASTER_PORT"] for one in found} == {str(port)}
    sentence = f"ranks 4 to 5 of 6 on host 2 of 3; they meet at 127.0.0.1 port {port}, reached from 127.0.0.1"
    assert sentence in ended.errors
    assert "(interface lo)" in ended.errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py",), "nowhere.py: no such file"),
        (("-n", 0, "script.py"), "--workers 0: give a number from 1"),
        (("-n", "many", "script.py"), "--workers many: give a number from 1, or auto"),
        (("-n", 5000 * "9", "script.py"), "999: give a number from 1, or auto"),
        (("--transport", "ib", "script.py"), "--transport: got 'ib'; choose one of: auto, shm, gloo, nccl, tcp, gaspi"),
        (
            ("--transport", "mpi", "script.py"),
            "--transport mpi: MPI must start the ranks itself; set SAMOVAR_TRANSPORT=",
        ),
        (("--nodes", 2, "script.py"), "--nodes 2 needs --node-rank, --master-addr, --master-port too"),
        (("--master-port", 99, "script.py"), "--master-port is for several hosts"),
        (
            ("--nodes", 2, "--node-rank", 2, "--master-addr", "here", "--master-port", 99, "script.py"),
            "--node-rank 2: hosts are numbered from 0 to 1",
        ),
        (
            ("--nodes", 2, "--node-rank", 0, "--master-addr", "here", "--master-port", 99_999, "script.py"),
            "--master-port 99999: a port is a number from 1 to 65535",
        ),
    ],
)
def test_wrong_flags(tmp_path: Path, arguments: tuple[object, ...], message: str) -> None:
    write_script(tmp_path, "")
    ended = run("run", *arguments, folder=tmp_path)
    assert ended.return_code == 2
    assert message in ended.error


@pytest.mark.parametrize("forks", [False, True])
def test_a_script_is_started_as_by_hand(tmp_path: Path, forks: bool) -> None:
    """The script gets all its arguments, also flags like ours, finds modules in its folder, and keeps its exit code.

    So does a fork of these tests (`tests/loaded_program.py`).
    """
    (tmp_path / "folder").mkdir()
    script = tmp_path / "folder" / "script.py"
    (tmp_path / "folder" / "beside.py").write_text("word = 'beside'")
    script.write_text(
        "import beside, sys\nassert __name__ == '__main__'\nprint(beside.word, sys.argv, __file__, sys.path[0])"
    )
    ended = run("run", "-n", 1, "folder/script.py", "-n", "--nodes", "--help", folder=tmp_path, forks_scripts=forks)
    assert ended.output == (
        f"[0] beside ['folder/script.py', '-n', '--nodes', '--help'] {tmp_path}/folder/script.py {tmp_path}/folder\n"
    )
    (tmp_path / "folder" / "__init__.py").touch()
    (tmp_path / "folder" / "main.py").write_text("import sys\nprint(__spec__.name, sys.argv[1:])")
    ended = run("run", "-n", 2, "-m", "folder.main", "--deep", folder=tmp_path, forks_scripts=forks)
    assert re.fullmatch(r"\[[01]\] folder\.main \['--deep'\]\n", ended.output)


def test_what_ranks_print_comes_with_their_rank_and_once(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        """
print("all"); print("rank", rank)
print("all", file=sys.stderr)
print("no end", end="")
""",
        3,
        "--all-lines",
    )
    assert ended.return_code == 0
    expected = [f"[{rank}] {text}" for rank in range(3) for text in ("all", f"rank {rank}", "no end")]
    assert sorted(ended.output.splitlines()) == sorted(expected)
    ended = run_script(tmp_path, "print('all')\nprint('all', rank)\nprint('all', file=sys.stderr)", 3)
    assert sorted(line[4:] for line in ended.output.splitlines()) == ["all", "all 0", "all 1", "all 2"]
    assert [line[4:] for line in ended.errors.splitlines() if not line.startswith("samovar")] == ["all"]


def test_of_much_output_nothing_is_lost(tmp_path: Path) -> None:
    """8 MB from each of two ranks: more than pipes and the launcher hold, so that ranks have to wait for the reader."""
    text = "for line in range(80_000): print(f'{rank} {line:06}', 'x' * 90)"
    script = write_script(tmp_path, text)
    process = subprocess.Popen([SAMOVAR, "run", "-n", "2", script], stdout=subprocess.PIPE, cwd=tmp_path)
    try:
        output = process.communicate(timeout=TIMEOUT_S)[0]
    finally:
        process.kill()
        process.wait()
    lines = output.decode().splitlines()
    assert process.returncode == 0
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[{rank}]")]
        assert own == [f"[{rank}] {rank} {line:06} " + "x" * 90 for line in range(80_000)]


def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    text = "for line in range(20_000): print(rank, line)\ntell('done')"
    script = write_script(tmp_path, text)
    ended = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" run -n 2 "$1" | head -n 1', SAMOVAR, script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert len(ended.stdout.splitlines()) == 1
    assert ended.returncode == 0
    assert sorted(path.name for path in tmp_path.glob("done-*")) == ["done-0", "done-1"]


def test_the_first_failing_rank_s_error_comes_last_and_in_full(tmp_path: Path) -> None:
    """Rank 0 prints the same traceback before, so that most of rank 2's lines are doubles."""
    ended = run_script(
        tmp_path,
        """
import traceback
def work():
    raise ValueError("out of tea")
if rank == 0:
    try:
        work()
    except ValueError:
        traceback.print_exc()
    tell("told")
await_all("told", [0])
if rank == 2:
    work()
signal.pause()
""",
        3,
    )
    assert ended.return_code == 1
    *block, sentence = ended.errors.splitlines()[-7:]
    script = tmp_path / "script.py"
    assert block[0] == "[2] Traceback (most recent call last):"
    assert str(script) in block[1]
    assert block[-1] == "[2] ValueError: out of tea"
    assert re.fullmatch(
        rf"samovar: error: rank 2 \(on {re.escape(socket.gethostname())}, process \d+\) ended with exit code 1 "
        r"after \d+\.\d s; ranks 0 and 1 were ended with it",
        sentence,
    )


def test_a_victim_that_ends_sooner_is_not_blamed(tmp_path: Path) -> None:
    """Rank 1 meets its error first, but takes long to end; rank 0 fails because of it, at once."""
    ended = run_script(
        tmp_path,
        """
if rank == 1:
    import atexit
    await_all("rank", [0])
    atexit.register(await_end, 0)
    atexit.register(tell, "failed")
    raise ValueError("the cause")
tell("rank", os.getpid())
await_all("failed", [1])
raise RuntimeError("rank 1 is gone")
""",
        2,
    )
    assert ended.return_code == 1
    lines = ended.errors.splitlines()
    assert "rank 1 (" in lines[-1]
    assert lines[-1].endswith("; rank 0 failed too")
    assert lines[-2] == "[1] ValueError: the cause"


@pytest.mark.parametrize(
    ("text", "return_code", "words"),
    [
        ("sys.exit(7)", 7, "ended with exit code 7"),
        ("sys.exit('sorry')", 1, "ended with exit code 1"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by signal 11 (SIGSEGV)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by signal 9 (SIGKILL), perhaps by the system"),
        ("await_all('rank', [0]); await_end(0); sys.exit(5)", 5, "rank 0 had ended well"),
    ],
)
def test_the_exit_code_is_the_first_failing_rank_s(tmp_path: Path, text: str, return_code: int, words: str) -> None:
    waits = "tell('rank', os.getpid())" if "await" in text else "signal.pause()"
    ended = run_script(tmp_path, f"if rank == 1:\n    {text}\n{waits}", 2)
    assert ended.return_code == return_code
    assert words in ended.errors.splitlines()[-1]


@pytest.mark.parametrize("most", range(11, 15))
def test_too_few_descriptors_are_one_sentence(tmp_path: Path, most: int) -> None:
    """What needs one more than there are depends on their number."""
    limited = ("sh", "-c", f'ulimit -n {most}; exec "$@"', "sh")
    with Command("run", "-n", 2, write_script(tmp_path, "pass"), folder=tmp_path, prefix=limited) as command:
        ended = command.wait()
    assert (ended.return_code, "Too many open files" in ended.error) == (2, True)


def test_who_ends_preempted_lets_the_others_save(tmp_path: Path) -> None:
    text = "tell('rank', os.getpid())\nif rank == 1:\n    sys.exit(75)\nawait_all('rank', [1])\nawait_end(1)\n"
    ended = run_script(tmp_path, text + "tell('saved')\nsys.exit(75)", 2)
    assert ended.return_code == 75
    assert (tmp_path / "saved-0").exists()


def test_signals_are_the_script_s_own_again(tmp_path: Path) -> None:
    """Signals that the launcher and its shim ignore or block are normal in the script."""
    text = (
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []) == set(), "
        "signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    assert run_script(tmp_path, text, 1).output == "[0] True True\n"
