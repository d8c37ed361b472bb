"""Starting, watching and ending rank processes, also those that another one forks."""

import ast
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import IO

import psutil
import pytest

from samovar.core.errors import InputError
from samovar.launch.processes import AT_ONCE, Forks, RankEnd
from samovar.launch.rank_arguments import RankArguments
from samovar.launch.watch import RankProcess, readable
from tests.unit.launch.started import PYTHON, Started

TIMEOUT_S = 30.0
FOREVER = "import signal\nwhile True: signal.pause()"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe; the test may close one of them."""
    ends = os.pipe()
    yield ends
    for descriptor in ends:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def children() -> set[psutil.Process]:
    """This process's children, zombies included."""
    return set(psutil.Process().children())


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    def stock() -> tuple[object, ...]:
        descriptors = {path.name for path in Path("/proc/self/fd").iterdir()}
        return children(), descriptors, [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    before = stock()
    yield
    assert stock() == before
    assert signal.set_wakeup_fd(-1) == -1


def test_all_succeed_and_every_byte_of_their_output_comes(tmp_path: Path) -> None:
    write = "import os\nfor k in range(300): os.write({pipe}, bytes([%d]) * 1000)"
    started = Started(tmp_path, [write % rank for rank in range(3)])
    assert sorted(started.run(), key=lambda end: end.rank) == [RankEnd(rank, 0) for rank in range(3)]
    assert started.outputs == {rank: bytes([rank]) * 300_000 for rank in range(3)}


def test_a_hangup_ends_a_job_that_saves_nothing_unless_it_is_to_be_ignored(tmp_path: Path) -> None:
    hang_up = "import os, signal; os.kill(os.getppid(), signal.SIGHUP); signal.pause()"
    launch = Started(tmp_path, [hang_up], effects=AT_ONCE)
    assert launch.run() == []
    assert launch.launch.signals.kill_signal == signal.SIGHUP

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert Started(tmp_path, [hang_up.replace("; signal.pause()", "")], effects=AT_ONCE).run() == [RankEnd(0, 0)]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_rank_prints_goes_to_its_log_and_its_threads_are_limited(tmp_path: Path) -> None:
    program = "import os, sys\nprint(os.environ['OMP_NUM_THREADS'])\nsys.exit('sorry')"
    started = Started(tmp_path, [program], threads_per_worker=3)
    started.logs[0].write_text("earlier\n")
    assert started.run() == [RankEnd(0, 1)]
    assert sorted(started.logs[0].read_text().splitlines()) == ["3", "earlier", "sorry"]


def test_a_rank_reads_nothing_and_gets_the_inherited_descriptors_and_its_pipe_only(tmp_path: Path) -> None:
    program = (
        "import os, sys\nassert sys.stdin.read() == ''\n"
        "names = set(os.listdir('/proc/self/fd')) - {'0', '1', '2'}\n"
        "os.write({pipe}, ' '.join(sorted(n for n in names if os.path.exists('/proc/self/fd/' + n))).encode())"
    )
    programs = [program, program]
    started = Started(tmp_path, programs)
    assert [end.return_code for end in started.run()] == [0, 0]
    for output in started.outputs.values():
        descriptors = output.decode().split()
        assert len(descriptors) == 2
        assert str(started.segment) in descriptors


def test_one_that_fails_ends_the_others_and_is_first_in_the_list(tmp_path: Path) -> None:
    fail = "import os\nos.write({pipe}, b'last words')\nos._exit(3)"
    started = Started(tmp_path, [FOREVER, fail, FOREVER])
    ends = started.run()
    assert ends[0] == RankEnd(1, 3)
    assert started.outputs[1] == b"last words"


def test_a_death_that_takes_long_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a process with much memory of a GPU, or on a machine that gives it no time to die."""
    wait = subprocess.Popen.wait

    def waited(process: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        code = wait(process)
        if FOREVER in process.args:  # type: ignore[operator]
            raise subprocess.TimeoutExpired(process.args, timeout or 0.0)
        return code

    monkeypatch.setattr(subprocess.Popen, "wait", waited)
    assert Started(tmp_path, ["raise SystemExit(3)", FOREVER]).run() == [RankEnd(0, 3)]


def test_one_that_fails_comes_before_those_that_were_done(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """Rank 1 is told rank 0's number and fails when no process has it any more: after rank 0 was taken."""
    done = "import os\nos.write({pipe}, str(os.getpid()).encode())"
    fail = f"import os\npid = os.read({pipe[0]}, 99).decode()\nwhile os.path.exists('/proc/' + pid): pass\nos._exit(4)"
    started = Started(
        tmp_path,
        [done, fail],
        inherited=pipe[:1],
        on_output=lambda _rank, data: os.write(pipe[1], data) and None,  # type: ignore[arg-type]
    )
    assert started.run() == [RankEnd(1, 4), RankEnd(0, 0)]


def test_what_a_rank_wrote_last_comes_though_it_is_gone(tmp_path: Path) -> None:
    """More than one read takes, in a pipe made larger; the first read is not over before the rank is dead."""
    size = 800_000
    program = f"import fcntl, os\nfcntl.fcntl({{pipe}}, fcntl.F_SETPIPE_SZ, 1 << 20)\nos.write({{pipe}}, bytes({size}))"
    num_bytes, others = 0, children()

    def take(_rank: int, data: bytes) -> None:
        nonlocal num_bytes
        num_bytes += len(data)
        (child,) = (one for one in children() if one not in others)
        while child.status() != psutil.STATUS_ZOMBIE:
            pass

    assert Started(tmp_path, [program], on_output=take).run() == [RankEnd(0, 0)]
    assert num_bytes == size


def test_one_killed_from_outside_is_told_by_its_signal(tmp_path: Path) -> None:
    started = Started(tmp_path, [FOREVER, "import os\nos.kill(os.getpid(), 9)"])
    assert started.run()[0] == RankEnd(1, -signal.SIGKILL)


WITH_CHILD = """
import os, signal
if os.fork() == 0:
    {leave}
    os.write({{pipe}}, b"child")
    {stay}
    os._exit(0)
while os.read({told}, 1) != b"!": pass
os._exit({code})
"""


@pytest.mark.parametrize("code", [0, 3])
def test_what_a_rank_started_ends_with_it(tmp_path: Path, code: int, pipe: tuple[int, int]) -> None:
    """The rank's child keeps the pipe open and would live for ever."""
    program = WITH_CHILD.format(leave="pass", stay="signal.pause()", told=pipe[0], code=code)
    started = Started(
        tmp_path,
        [program],
        inherited=pipe[:1],
        on_output=lambda _rank, _data: os.write(pipe[1], b"!") and None,  # type: ignore[arg-type]
    )
    assert started.run() == [RankEnd(0, code)]


def test_a_process_that_left_the_ranks_session_holds_nobody_up(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """It keeps the rank's pipe open until the test closes another one, after the launch."""
    stay_in, stay_out = os.pipe()
    stay = f"os.close({stay_out}); os.read({stay_in}, 1)"
    program = WITH_CHILD.format(leave="os.setsid()", stay=stay, told=pipe[0], code=3)
    inherited = (pipe[0], stay_in, stay_out)
    started = Started(
        tmp_path,
        [program],
        inherited=inherited,
        on_output=lambda _rank, _data: os.write(pipe[1], b"!") and None,  # type: ignore[arg-type]
    )
    try:
        assert started.run() == [RankEnd(0, 3)]
    finally:
        os.close(stay_in)
        os.close(stay_out)


def test_a_command_that_cannot_be_started_is_an_input_error_and_ends_the_others(tmp_path: Path) -> None:
    started = Started(tmp_path, [FOREVER, FOREVER], python=(PYTHON, ["/nowhere/python"]))
    with pytest.raises(InputError, match=r"rank 1 cannot be started: .*No such file"):
        started.run()


def test_an_error_in_the_reader_of_outputs_leaves_no_rank(tmp_path: Path) -> None:
    def fail(_rank: int, _data: bytes) -> None:
        raise ZeroDivisionError

    started = Started(tmp_path, [FOREVER, f"import os\nos.write({{pipe}}, b'x')\n{FOREVER}"], on_output=fail)
    with pytest.raises(ZeroDivisionError):
        started.run()


# A launcher as a process of its own; its one rank reports every change of the board's row.
LAUNCHER = """
import os, sys
from pathlib import Path
from samovar.launch.processes import Launch
from samovar.transports.shm import RunBoard, create_segment

segment = create_segment(1)
launch = Launch(lambda rank, pipe: [sys.executable, "-c", {rank!r}, str(segment), str(pipe)], {{0: Path(sys.argv[1])}},
                RunBoard(segment, 1), [segment], lambda rank, data: os.write(1, data))
ends = launch.run()
print("ends", [end.return_code for end in ends], launch.signals.stop_signal, launch.signals.kill_signal, flush=True)
"""
RANK = """
import os, sys
from samovar.transports.shm import BoardWord
from samovar.transports.shm import RunBoard

board = RunBoard(int(sys.argv[1]), 1)
stop, snapshots = 0, 0
os.write(int(sys.argv[2]), b"ready\\n")
while not (stop and {stops}):
    seen = board.read(1, BoardWord.STOP_SIGNAL), board.read(1, BoardWord.SNAPSHOT_REQUESTS)
    if seen != (stop, snapshots):
        stop, snapshots = seen
        os.write(int(sys.argv[2]), f"stop {{stop}} snapshots {{snapshots}}\\n".encode())
"""


class Launcher:
    """Talks with a launching process by signals, and reads what its rank says."""

    def __init__(self, folder: Path, stops: bool) -> None:
        program = LAUNCHER.format(rank=RANK.format(stops=stops))
        command = [sys.executable, "-c", program, str(folder / "log")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def says(self) -> str:
        assert self.process.stdout is not None
        stream: IO[str] = self.process.stdout
        return stream.readline().strip()

    def __enter__(self) -> "Launcher":
        assert self.says() == "ready"
        return self

    def __exit__(self, *_exception: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_signals_to_the_launcher_are_posted_on_the_board(tmp_path: Path) -> None:
    with Launcher(tmp_path, stops=True) as launcher:
        for count in (1, 2):
            launcher.process.send_signal(signal.SIGHUP)
            assert launcher.says() == f"stop 0 snapshots {count}"
        launcher.process.send_signal(signal.SIGINT)
        assert launcher.says() == "stop 2 snapshots 2"
        assert launcher.says() == "ends [0] 2 0"
        assert launcher.process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_second_signal_to_stop_ends_ranks_that_do_not_stop(tmp_path: Path, first: signal.Signals) -> None:
    with Launcher(tmp_path, stops=False) as launcher:
        launcher.process.send_signal(first)
        assert launcher.says() == f"stop {first.value} snapshots 0"
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.says() == f"ends [] {first.value} 15"
        assert launcher.process.wait(TIMEOUT_S) == 0


# A rank that forks the others as training/rank.py does, and tells what it is.
FORKING = """
import os, sys
import numpy, torch
from samovar.launch.rank_arguments import RankArguments
from samovar.training.rank import fork_others

if {first}: os._exit(0)
given = fork_others(RankArguments.parse(sys.argv[sys.argv.index("samovar.training.rank") + 1:]))
words = open("/proc/self/cmdline", errors="replace").read().split(chr(0))
shown = next(word for word in words if word.startswith("--rank="))
print("log of rank", given.rank)
own = os.getsid(0) == os.getpid(), os.getppid(), shown, len(os.listdir("/proc/self/fd"))
os.write(given.pipe, repr((given.rank, *own, numpy.random.random(), torch.rand(()).item())).encode())
os._exit(0)
"""


def forking(folder: Path, first: str = "False", world_size: int = 3) -> Started:
    """A launch of ranks each of which would fork the others."""

    def command(rank: int, pipe: int) -> list[str]:
        given = RankArguments(rank=rank, segment=started.segment, pipe=pipe, parent=os.getpid(), config=folder)
        words = given.to_command(sys.executable)
        return [*words[:2], "-c", FORKING.format(first=first), *words[words.index("-m") + 1 :]]

    started = Started(folder, [""] * world_size, command=command, may_fork=True)
    return started


def test_the_first_rank_forks_the_others_and_each_is_as_if_started(tmp_path: Path) -> None:
    started = forking(tmp_path)
    assert sorted(started.run(), key=lambda end: end.rank) == [RankEnd(rank, 0) for rank in range(3)]
    told = {rank: ast.literal_eval(output.decode()) for rank, output in started.outputs.items()}
    for rank, (number, leads_session, parent, shown, *_others) in told.items():
        assert (number, leads_session, parent, shown) == (rank, True, os.getpid(), f"--rank={rank}")
        assert started.logs[rank].read_text().startswith(f"log of rank {rank}\n")
    assert len({num_descriptors for *_, num_descriptors, _numpy, _torch in told.values()}) == 1
    assert [len(set(numbers)) for numbers in list(zip(*told.values(), strict=True))[-2:]] == [3, 3]


def test_ranks_that_the_first_one_does_not_fork_are_started(tmp_path: Path) -> None:
    """It ends before it could."""
    started = forking(tmp_path, first="'--rank=0' in sys.argv")
    assert sorted(started.run(), key=lambda end: end.rank) == [RankEnd(rank, 0) for rank in range(3)]
    told = {rank: ast.literal_eval(output.decode()) for rank, output in started.outputs.items()}
    assert {rank: values[:3] for rank, values in told.items()} == {rank: (rank, True, os.getpid()) for rank in (1, 2)}


def test_a_rank_that_nobody_could_watch_is_ended() -> None:
    process = subprocess.Popen(["sleep", "100"], start_new_session=True)
    soft, hard = getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            RankProcess(0, process, {})
    finally:
        setrlimit(RLIMIT_NOFILE, (soft, hard))
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL


def test_where_ends_of_children_are_not_kept_ranks_are_started(tmp_path: Path) -> None:
    """As in a daemon that ignores SIGCHLD."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        ends = forking(tmp_path).run()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert sorted(ends, key=lambda end: end.rank) == [RankEnd(rank, 0) for rank in range(3)]


def test_a_copy_of_the_launchers_socket_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may fork a process at any moment, which then has one."""
    copies, make = [], socket.socketpair

    def pair(*kind: int) -> tuple[socket.socket, socket.socket]:
        ends = make(*kind)
        copies.append(os.dup(ends[0].fileno()))
        return ends

    monkeypatch.setattr(socket, "socketpair", pair)
    ends = forking(tmp_path).run()
    for copy in copies:
        os.close(copy)
    assert sorted(ends, key=lambda end: end.rank) == [RankEnd(rank, 0) for rank in range(3)]


def test_ranks_are_forked_in_a_folder_that_is_not_unicode(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"l\xe4tin")
    folder.mkdir()
    assert sorted(forking(folder).run(), key=lambda end: end.rank) == [RankEnd(rank, 0) for rank in range(3)]


def test_a_first_rank_that_a_signal_stops_does_not_hold_up_the_others(tmp_path: Path) -> None:
    def command(rank: int, _pipe: int) -> list[str]:
        if rank == 0:
            return [*PYTHON, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"]
        stopped = started.launch._watch.ranks[0].process.pid
        return [*PYTHON, f"import os, signal\nos.kill({stopped}, signal.SIGCONT)"]

    started = Started(tmp_path, ["", ""], command=command, may_fork=True)
    assert sorted(started.run(), key=lambda end: end.rank) == [RankEnd(0, 0), RankEnd(1, 0)]


def test_one_in_between_that_dies_with_a_request_unread_forks_nobody() -> None:
    with subprocess.Popen(["sleep", "60"]) as child, Forks(lambda: False) as forks:
        far = socket.socket(fileno=os.dup(forks.far.fileno()))
        far.send(str(child.pid).encode())
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(forks.fork, 1, [])
            assert readable(far.fileno(), TIMEOUT_S)
            child.kill()
            far.close()
            assert asked.result() is None
