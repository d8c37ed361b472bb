"""`samovar box` as docs/how-to/serve-a-box.md shows it, a server killed and started again, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import safetensors.numpy

from samovar.box.board import Board, MemberProgress
from samovar.box.buffers import Buffer, BufferShape
from samovar.box.joining import buffer_names, create_buffer, drop_buffer, parse_endpoint, read_buffer, take_seat
from samovar.box.local import LocalBox
from samovar.box.mapped import MappedCenter
from samovar.core.clock import Deadline
from samovar.core.errors import InputError

SAMOVAR = Path(sys.executable).with_name("samovar")
SIZE = 100_000
WAIT_S = 200.0


@contextmanager
def serve(
    box: str, *flags: str, first: str = "box ", at_hangup: signal.Handlers = signal.SIG_DFL
) -> Iterator["subprocess.Popen[str]"]:
    """A server that has said it is there; it is killed at the end if it still runs."""
    command = [str(SAMOVAR), "box", "serve", "--box", box, *flags]
    before = signal.signal(signal.SIGHUP, at_hangup)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    signal.signal(signal.SIGHUP, before)
    with server:
        try:
            assert server.stdout is not None
            greeting = server.stdout.readline()
            assert greeting.startswith(first), greeting
            yield server
        finally:
            server.kill()


def run(*arguments: str | Path, code: int = 0) -> str:
    ended = subprocess.run([SAMOVAR, "box", *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def end(server: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """As the user ends it: server and memory holder are gone when it has said so."""
    holders = [
        child for child in psutil.Process(server.pid).children() if "samovar.box.memory_holder" in child.cmdline()
    ]
    server.send_signal(number)
    output, _ = server.communicate(timeout=WAIT_S)
    assert output.splitlines()[-1].endswith("has ended"), output
    assert server.returncode == 0
    assert not any(holder.is_running() for holder in holders)


def add(buffer: Buffer, sequence: int) -> None:
    """One update by a member of its own, which stays on the board."""
    board = Board(buffer.board)
    member = board.join()
    with MappedCenter(buffer.center, member) as center:
        center.accumulate(sequence, np.ones(SIZE, np.float32), Deadline.after(WAIT_S))
    board.post(member, MemberProgress(12, 768, 1234.0, 0.5, 1.5, 4, 12, 0.1, finished=True))


def test_a_box_from_beginning_to_end(tmp_path: Path) -> None:
    box = f"test-{uuid.uuid4().hex}"
    with serve(box) as server:
        buffer = LocalBox(box).create("lenet", BufferShape(SIZE, max_members=4), Deadline.after(WAIT_S))
        add(buffer, 1)
        server.kill()  # it has no time to say anything to anybody
        server.wait()
    add(buffer, 1)
    with serve(box) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "kept from a server that was killed: lenet\n"
        shown = run("list", "--box", box)
        assert "lenet: 100,000 elements, 0.4 MB; 2 of at most 4 members alive" in shown
        assert len(re.findall(r"finished +12 +1,234 +0.5000", shown)) == 2
        (described,) = json.loads(run("list", "--box", box, "--json"))
        assert [member["staleness_max"] for member in described["members"]] == [4, 4]
        saved = tmp_path / "lenet.safetensors"
        for _ in range(2):  # a snapshot replaces an earlier one
            assert "100,000 elements" in run("snapshot", "lenet", "--out", saved, "--box", box)
        (other := tmp_path / "solver.prototxt").write_text("a solver")
        refused = run("snapshot", "lenet", "--out", other, "--box", box, code=2)
        assert f"--out {other}: exists, and does not hold what is saved here" in refused
        assert other.read_text() == "a solver"
        arrays = safetensors.numpy.load_file(saved)
        assert (arrays["center"] == 2).all()
        assert (arrays["versions"] == 2).all()
        assert run("drop", "lenet", "--box", box) == "lenet: dropped\n"
        assert LocalBox(box).names(Deadline.after(WAIT_S)) == []
        buffer.close()
        end(server, signal.SIGINT)
    with pytest.raises(InputError, match="nobody serves"):
        LocalBox(box).names(Deadline.after(WAIT_S))


def test_a_box_of_another_host(tmp_path: Path) -> None:
    """As list, snapshot, load and drop see it with its key alone."""
    key = tmp_path / "box.pem"
    with serve(f"test-{uuid.uuid4().hex}", "--listen", "127.0.0.1:0", "--key-file", str(key)) as server:
        assert server.stdout is not None
        address = server.stdout.readline().rpartition(" ")[2].strip()
        place, flags = parse_endpoint(address, key), ("--box", address, "--key-file", key)
        deadline = Deadline.after(WAIT_S)
        create_buffer(place, "lenet", BufferShape(SIZE, max_members=4, with_velocity=True), "test", deadline)
        with take_seat(place, "lenet", "test", deadline) as seat:
            seat.center.accumulate(1, np.ones(SIZE, np.float32), deadline, momentum=0.5)
            seat.board.post(seat.member, MemberProgress(12, 768, 1234.0, 0.5, 1.5, 4, 12, 0.1))
            seat.board.set_word(3, 2**64 - 1)
            shown = run("list", *flags)
            assert "lenet: 100,000 elements, 0.4 MB, with velocity; 1 of at most 4 members alive" in shown
            assert re.search(rf"0\.1 +{os.getpid()} at 127.0.0.1 +works +12 +1,234 +0.5000", shown)
            saved = tmp_path / "lenet.safetensors"
            assert "100,000 elements" in run("snapshot", "lenet", "--out", saved, *flags)
            assert "members 0 are at work there" in run("load", "lenet", saved, *flags, code=2)
        assert run("load", "again", saved, *flags) == f"again: made and filled with 100,000 elements of {saved}\n"
        arrays = [read_buffer(place, name, "test", Deadline.after(WAIT_S))[1] for name in ("again", "lenet")]
        assert all((arrays[0][name] == arrays[1][name]).all() for name in ("center", "velocity", "words"))
        assert (arrays[0]["velocity"] == 1).all()
        assert run("drop", "again", *flags) == "again: dropped\n"
        assert "no buffer 'again'; there are: lenet" in run("drop", "again", *flags, code=2)
        end(server, signal.SIGINT)


def kill_with_holder(server: "subprocess.Popen[str]") -> None:
    """As the loss of the host does it."""
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children()]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, WAIT_S)


def test_a_box_whose_host_was_lost(tmp_path: Path) -> None:
    box, deadline = f"test-{uuid.uuid4().hex}", Deadline.after(WAIT_S)
    folder, place = tmp_path / "box", parse_endpoint(box, None)
    flags = ("--box-snapshot", str(folder), "--snapshot-every", "0.1")
    with serve(box, *flags) as server:
        for number, name in enumerate(("a", "b", "c", "d")):
            create_buffer(place, name, BufferShape(SIZE, 4 + number, number == 1, number != 2), "test", deadline)
            with take_seat(place, name, "test", deadline) as seat:
                seat.center.write(np.full(SIZE, number + 1.0, np.float32), deadline)
                if number == 1:
                    seat.center.write_velocity(np.full(SIZE, 7.0, np.float32), deadline)
                seat.board.set_word(0, number + 10)
        drop_buffer(place, "d", "test", deadline)
        wait_for_files(folder, {"a": 10, "b": 11, "c": 12})
        assert "another box writes there" in run("serve", "--box", f"{box}-2", *flags, code=2)
        kill_with_holder(server)
    spoiled = folder / "a.safetensors"
    spoiled.write_bytes(spoiled.read_bytes()[:-1] + b"\x01")
    (folder / "e.safetensors").write_bytes(b"no safetensors")
    with serve(box, *flags, first="not loaded: ") as server:
        assert server.stdout is not None
        told = [server.stdout.readline() for _ in range(4)]
        assert told[0] == f"loaded from {folder / 'b.safetensors'}: b\n"
        assert told[1] == f"loaded from {folder / 'c.safetensors'}: c\n"
        assert told[2].startswith(f"not loaded: {folder / 'e.safetensors'}: not a safetensors file")
        assert told[3].startswith(f"box '{box}' is served")
        assert buffer_names(place, "test", deadline) == ["b", "c"]
        for name, value in (("b", 2.0), ("c", 3.0)):
            shape, arrays = read_buffer(place, name, "test", deadline)
            assert (arrays["center"] == value).all()
            assert arrays["words"][0] == value + 9
            assert (shape.max_members, shape.with_velocity, shape.with_locks) == (value + 3, value == 2, value == 2)
        assert (read_buffer(place, "b", "test", deadline)[1]["velocity"] == 7).all()
        with take_seat(place, "c", "test", deadline) as seat:
            seat.center.accumulate(1, np.ones(SIZE, np.float32), deadline)
        end(server, signal.SIGTERM)
    assert (safetensors.numpy.load_file(folder / "c.safetensors")["center"] == 4).all(), "written at the end"


def wait_for_files(folder: Path, words: dict[str, int]) -> None:
    """Until each buffer's file holds its word 0, and there are no others."""
    deadline, pause, found = Deadline.after(WAIT_S), threading.Event(), dict[str, int]()
    while found != words:
        assert not deadline.passed(), found
        pause.wait(0.05)
        found = {}
        for path in folder.glob("*.safetensors"):
            with suppress(FileNotFoundError):  # that of a buffer that was dropped may go at this moment
                found[path.stem] = int(safetensors.numpy.load_file(path)["words"][0])


@pytest.mark.slow
def test_a_server_that_nohup_started_outlives_its_terminal() -> None:
    with serve(f"test-{uuid.uuid4().hex}", at_hangup=signal.SIG_IGN) as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
        ignored = re.search(r"^SigIgn:\s+(\w+)$", status, re.MULTILINE)
        assert ignored is not None
        assert int(ignored[1], 16) >> signal.SIGHUP - 1 & 1
        end(server, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [("0.5",), ("600", "0.5")])
def test_a_memory_holder_goes_after_the_time_of_the_last_server(keeps: Sequence[str]) -> None:
    box, found = f"test-{uuid.uuid4().hex}", set[psutil.Process]()
    for keep in keeps:
        with serve(box, "--keep", keep) as server:
            found |= set(psutil.Process(server.pid).children())
            create_buffer(parse_endpoint(box, None), keep, BufferShape(10), "test", Deadline.after(WAIT_S))
            server.kill()
            server.wait()
    assert len(found) == 1
    assert psutil.wait_procs(found, WAIT_S)[1] == []


def test_a_stopped_memory_holder_ends_with_its_server() -> None:
    with serve(f"test-{uuid.uuid4().hex}") as server:
        (holder,) = psutil.Process(server.pid).children()
        holder.suspend()
        end(server, signal.SIGTERM)


@pytest.mark.slow
def test_a_stopped_memory_holder_of_an_earlier_server_is_named() -> None:
    box = f"test-{uuid.uuid4().hex}"
    with serve(box) as server:
        (holder,) = psutil.Process(server.pid).children()
        create_buffer(parse_endpoint(box, None), "c", BufferShape(10), "test", Deadline.after(WAIT_S))
        server.kill()
        server.wait()
    with serve(box) as server:
        holder.suspend()
        server.send_signal(signal.SIGTERM)
        told, _ = server.communicate(timeout=WAIT_S)
        assert server.returncode == 3
        assert "the process that holds the box's memory: " in told.splitlines()[-1]
        assert "is it stopped?; it ends when it continues" in told
    assert "is it stopped?; let it continue, or end it" in run("serve", "--box", box, code=3)
    holder.resume()
    assert psutil.wait_procs([holder], WAIT_S)[1] == []


@pytest.mark.slow
def test_a_start_that_fails_keeps_what_a_killed_server_left() -> None:
    box = f"test-{uuid.uuid4().hex}"
    with serve(box) as server:
        create_buffer(parse_endpoint(box, None), "c", BufferShape(10), "test", Deadline.after(WAIT_S))
        server.kill()
        server.wait()
    run("serve", "--box", box, "--listen", "here", "--key-file", "/dev/null", code=2)
    with serve(box) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "kept from a server that was killed: c\n"
        end(server, signal.SIGTERM)


@pytest.mark.slow
def test_a_start_that_fails_keeps_nothing_that_it_has_loaded(tmp_path: Path) -> None:
    """The next one may load another folder, and would write over it."""
    box, folder = f"test-{uuid.uuid4().hex}", ("--box-snapshot", str(tmp_path / "box"))
    with serve(box, *folder) as server:
        create_buffer(parse_endpoint(box, None), "c", BufferShape(10), "test", Deadline.after(WAIT_S))
        end(server, signal.SIGTERM)
    run("serve", "--box", box, *folder, "--listen", "here", "--key-file", "/dev/null", code=2)
    with serve(box) as server:
        assert buffer_names(parse_endpoint(box, None), "test", Deadline.after(WAIT_S)) == []
        end(server, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_ends(number: signal.Signals, tmp_path: Path) -> None:
    """With members of other hosts being served."""
    key = tmp_path / "key"
    with serve(f"test-{uuid.uuid4().hex}", "--listen", "127.0.0.1:0", "--key-file", str(key)) as server:
        assert server.stdout is not None
        assert re.fullmatch(r"members of other hosts come in at 127.0.0.1:\d+\n", server.stdout.readline())
        assert key.stat().st_mode & 0o777 == 0o600
        end(server, number)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("serve", "--keep", "0"), "--keep 0: give more than 0"),
        (("serve", "--grace", "-1"), "--grace -1: give more than 0"),
        (("serve", "--snapshot-every", "0"), "--snapshot-every 0: give more than 0"),
        (("snapshot", "c", "--out", "c", "--timeout", "0"), "--timeout 0: give more than 0"),
        (("load", "c", "c", "--timeout", "nan"), "--timeout nan: give more than 0"),
        (("serve", "--box-snapshot", "/dev/null"), "--box-snapshot /dev/null: "),
        (("load", "a", "b"), "b: cannot be read (No such file or directory)"),
        (("list", "--key-file", "key"), "is one of this host; --box HOST:PORT needs a key"),
        (("serve", "--listen", "127.0.0.1:0"), "--listen and --key-file go together"),
        (("serve", "--key-file", "key"), "--listen and --key-file go together"),
        (
            ("serve", "--listen", "here", "--key-file", "/dev/null"),
            "--listen here: give an address of this host and a port",
        ),
        (("serve", "--listen", "127.0.0.1:99999", "--key-file", "key"), "--listen 127.0.0.1:99999: give an address"),
        (("snapshot", "a", "--out", "b"), "nobody serves box"),
        (("snapshot", "a", "--out", "."), "--out .: is not a place for a file"),
    ],
)
def test_what_is_refused(flags: tuple[str, ...], message: str) -> None:
    assert message in run(*flags, "--box", f"test-{uuid.uuid4().hex}", code=2)
