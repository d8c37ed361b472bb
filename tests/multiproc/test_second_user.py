"""Another user of the same host comes to a running job: no memory, no socket, no key, no process of it is his.

Each try is made twice, by him and by the user of the job: what the second one gets is what the first one is refused.
"""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from samovar.box.buffers import BufferShape
from samovar.box.local import LocalBox, holder_address, server_address
from samovar.core.clock import Deadline
from tests.multiproc.command import Command
from tests.multiproc.nets import write_net, write_solver

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]
PROGRAM = Path(__file__).with_name("second_user_program.py")
NOBODY, WAIT_S = 65534, 50.0
_INODE = re.compile(r"socket:\[(\d+)\]")

Try = list[object]


@pytest.fixture
def common_folder() -> Iterator[Path]:
    """A folder that everybody may walk through, so that what is refused in it is refused by its own mode."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def outcomes(user: int, tries: Sequence[Try]) -> list[str]:
    command = [sys.executable, "-I", "-S", str(PROGRAM), str(user)]
    ended = subprocess.run(
        command, input=json.dumps(tries), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found: list[str] = json.loads(ended.stdout)
    return found


def assert_refused(tries: Sequence[Try]) -> None:
    """To the other user; the job's own gets something at each of them."""
    refused = dict.fromkeys(map(str, tries), "refused")
    assert dict(zip(refused, outcomes(NOBODY, tries), strict=True)) == refused
    for attempt, outcome in zip(tries, outcomes(os.getuid(), tries), strict=True):
        assert outcome != "refused", attempt
        assert not outcome.startswith("failed"), (attempt, outcome)


def of_processes(processes: Sequence[psutil.Process]) -> Iterator[Try]:
    """To look into a process, take its descriptors, open the memory behind them, signal it."""
    for process in processes:
        place = f"/proc/{process.pid}"
        yield ["list", f"{place}/fd"]
        yield ["open", f"{place}/mem", os.O_RDWR]
        yield ["open", f"{place}/environ", os.O_RDONLY]
        yield ["signal", process.pid]
        for number in memory_of(process):
            yield ["open", f"{place}/fd/{number}", os.O_RDONLY]
            yield ["open", f"{place}/fd/{number}", os.O_RDWR]
            yield ["duplicate", process.pid, number]


def memory_of(process: psutil.Process) -> list[int]:
    """Descriptors of anonymous files that it has open."""
    return [number for number, target in open_files(process) if target.startswith("/memfd:")]


def open_files(process: psutil.Process) -> Iterator[tuple[int, str]]:
    """Its descriptors and what they are; one that it closes meanwhile is none."""
    for path in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield int(path.name), os.readlink(path)  # noqa: PTH115


def sockets_of(processes: Sequence[psutil.Process]) -> set[str]:
    """The abstract sockets that they have."""
    links = [target for process in processes for _, target in open_files(process)]
    inodes = {found[1] for link in links if (found := _INODE.fullmatch(link))}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7][1:] for row in rows if len(row) > 7 and row[6] in inodes and row[7].startswith("@")}


def assert_no_door(processes: Sequence[psutil.Process]) -> None:
    """Ranks get their memory from who starts them; the launcher's sockets tell which cores are taken, and no more."""
    names = sockets_of(processes)
    assert all(re.fullmatch(rf"samovar-cpu-[0-9]+-{processes[0].pid}", name) for name in names)
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
    knocks: list[Try] = [["ask", name, int(kind), "hello"] for name in names for kind in kinds]
    for user in (NOBODY, os.getuid()):
        assert outcomes(user, knocks) == ["refused"] * len(knocks)


def of_files(folder: Path, key: Path | None) -> Iterator[Try]:
    """To change anything in a folder, and to read the key."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            yield ["open", str(path / "his.own"), os.O_WRONLY | os.O_CREAT]
        else:
            yield ["open", str(path), os.O_WRONLY]
    if key is not None:
        yield ["open", str(key), os.O_RDONLY]


def assert_no_key_is_told(processes: Sequence[psutil.Process], key: Path) -> None:
    """Everybody can read a command line."""
    secret = key.read_text().split("-----")[2].split()
    for process in processes:
        told = " ".join(process.cmdline())
        assert not any(line in told for line in secret)


def family(command: Command) -> list[psutil.Process]:
    launcher = psutil.Process(command.process.pid)
    return [launcher, *launcher.children(recursive=True)]


def test_a_served_box(common_folder: Path) -> None:
    """With a buffer in it, and a port to the network."""
    box, key = f"test-{uuid.uuid4().hex}", common_folder / "key"
    flags = ("--box", box, "--listen", "127.0.0.1:0", "--key-file", key)
    with Command("box", "serve", *flags, folder=common_folder) as server:
        server.until(lambda: "come in at" in server.output, "the box is served")
        LocalBox(box).create("numbers", BufferShape(1000, max_members=2), Deadline.after(WAIT_S)).close()
        processes = family(server)
        assert len(processes) == 2, "server and memory holder"
        assert all(memory_of(process) for process in processes)
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert_no_key_is_told(processes, key)
        assert sockets_of(processes) == {server_address(box), holder_address(box)}
        wishes: list[dict[str, object]] = [{"do": "names"}, {"do": "attach", "name": "numbers"}]
        wishes.append({"do": "create", "name": "his", "num_elements": 10, "max_members": 1})
        asks: list[Try] = [
            ["ask", server_address(box), int(socket.SOCK_SEQPACKET), json.dumps(wish)] for wish in wishes
        ]
        assert_refused([*asks, *of_processes(processes), *of_files(common_folder, key)])
        server.process.terminate()
        assert server.wait().return_code == 0


@pytest.mark.timeout(180)
@pytest.mark.parametrize("strategy", ["sync", "shm-easgd"])
def test_a_running_train(common_folder: Path, tmp_path: Path, digits: Path, strategy: str) -> None:
    net = write_net(tmp_path, digits)
    solver = write_solver(net, 10_000_000, test_initialization="false", display=1)
    out = common_folder / "out"
    flags = ("--workers", 2, "--threads-per-worker", 1, "--strategy", strategy)
    with Command("train", "--solver", solver, *flags, "--out", out, folder=common_folder) as command:
        command.wait_for_step(out, 3)
        processes = family(command)
        assert any(memory_of(process) for process in processes)
        assert_no_door(processes)
        assert_refused([*of_processes(processes), *of_files(out, None)])
        command.process.terminate()
        assert command.wait().return_code == 75
