"""`samovar box`: what docs/box.md shows, a server that is killed and started again, and nothing left behind."""

import json
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import safetensors.numpy

from samovar.box.board import Board, Progress
from samovar.box.buffers import Buffer, BufferShape
from samovar.box.local import LocalBox
from samovar.box.mapped import MappedCenter
from samovar.core.clock import Deadline
from samovar.core.errors import InputError

SAMOVAR = Path(sys.executable).with_name("samovar")
SIZE = 100_000
WAIT_S = 30.0


@contextmanager
def serve(box: str, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    """A server that has said it is there; it is killed at the end if it still runs."""
    command = [str(SAMOVAR), "box", "serve", "--box", box, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            greeting = server.stdout.readline()
            assert greeting.startswith(f"box '{box}' is served"), greeting
            yield server
        finally:
            server.kill()


def run(*arguments: str | Path, code: int = 0) -> str:
    ended = subprocess.run([SAMOVAR, "box", *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def end(server: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """As the user ends it: server and keeper are gone when it has said so."""
    keepers = [child for child in psutil.Process(server.pid).children() if "samovar.box.keeper" in child.cmdline()]
    server.send_signal(number)
    output, _ = server.communicate(timeout=WAIT_S)
    assert output.splitlines()[-1].endswith("has ended"), output
    assert server.returncode == 0
    assert not any(keeper.is_running() for keeper in keepers)


def add(buffer: Buffer, sequence: int) -> None:
    """One update by a member of its own, which stays on the board."""
    board = Board(buffer.board)
    member = board.join()
    with MappedCenter(buffer.center, member) as center:
        center.accumulate(sequence, np.ones(SIZE, np.float32), Deadline.after(WAIT_S))
    board.post(member, Progress(12, 768, 1234.0, 0.5, 1.5, 4, 12, 0.1, finished=True))


@pytest.mark.timeout(180)  # six commands, each of which loads the program anew
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
        assert "100,000 elements" in run("snapshot", "lenet", "--out", saved, "--box", box)
        arrays = safetensors.numpy.load_file(saved)
        assert (arrays["center"] == 2).all()
        assert (arrays["versions"] == 2).all()
        assert run("drop", "lenet", "--box", box) == "lenet: dropped\n"
        assert LocalBox(box).names(Deadline.after(WAIT_S)) == []
        buffer.close()
        end(server, signal.SIGINT)
    with pytest.raises(InputError, match="nobody serves"):
        LocalBox(box).names(Deadline.after(WAIT_S))


@pytest.mark.slow
def test_a_keeper_goes_after_its_time() -> None:
    box = f"test-{uuid.uuid4().hex}"
    with serve(box, "--keep", "0.5") as server:
        (keeper,) = psutil.Process(server.pid).children()
        server.kill()
        server.wait()
    assert psutil.wait_procs([keeper], WAIT_S)[1] == []


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
        (("serve", "--listen", "127.0.0.1:0"), "--listen and --key-file go together"),
        (("serve", "--key-file", "key"), "--listen and --key-file go together"),
        (
            ("serve", "--listen", "here", "--key-file", "/dev/null"),
            "--listen here: give an address of this host and a port",
        ),
        (("serve", "--listen", "127.0.0.1:99999", "--key-file", "key"), "--listen 127.0.0.1:99999: give an address"),
        (("snapshot", "a", "--out", "b"), "nobody serves box"),
    ],
)
def test_what_is_refused(flags: tuple[str, ...], message: str) -> None:
    assert message in run(*flags, "--box", f"test-{uuid.uuid4().hex}", code=2)
