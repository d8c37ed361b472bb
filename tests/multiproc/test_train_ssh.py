"""`samovar train --hosts FILE` through a real sshd, which serves this user on a port of loopback."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.multiproc.command import Command, result_of, run, succeed, wait_until
from tests.multiproc.leftovers import living
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.ports import reserved_port

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
PRIVATE = Path("/run/sshd")  # which root's sshd asks for; its service makes it at boot
SERVER = """Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowUsers {user}
"""
CLIENT = """Host localhost
HostName 127.0.0.1
Port {port}
User {user}
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
BatchMode yes
"""
TIMEOUT_S = 20.0  # of waits between hosts
LONGEST_S = 90.0  # until all have ended, on a busy machine
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SSHD and shutil.which("ssh-keygen")), reason="needs sshd: apt-get install openssh-server"),
]


@dataclass(frozen=True)
class OtherHost:
    """An sshd, and the words by which a client reaches it."""

    server: psutil.Process
    ssh: str

    def processes(self) -> list[psutil.Process]:
        """Those of its sessions, and of the commands in them."""
        return living(self.server.children(recursive=True))

    def launcher(self) -> psutil.Process | None:
        """The samovar that a session started."""
        for process in self.processes():
            with suppress(psutil.Error):
                if process.cmdline()[1:4] == ["-P", "-m", "samovar"]:
                    return process
        return None


@pytest.fixture
def other(tmp_path: Path) -> Iterator[OtherHost]:
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    makes_private = os.geteuid() == 0 and not PRIVATE.exists()
    if makes_private:
        PRIVATE.mkdir(mode=0o755)
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    try:
        with reserved_port() as port:
            values = {"port": port, "folder": folder, "user": getpass.getuser()}
            (folder / "server").write_text(SERVER.format(**values))
            (folder / "client").write_text(CLIENT.format(**values))
            host_key = (folder / "host_key.pub").read_text()
            (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
            yield from served(folder, port)
    finally:
        if makes_private:
            PRIVATE.rmdir()


def served(folder: Path, port: int) -> Iterator[OtherHost]:
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([str(SSHD), "-D", "-e", "-f", folder / "server"], stderr=log)
    try:
        wait_until(lambda: listens(port) or server.poll() is not None, "sshd listens")
        assert server.poll() is None, (folder / "log").read_text()
        found = OtherHost(psutil.Process(server.pid), f"ssh -F {folder / 'client'}")
        yield found
        assert found.processes() == []
    finally:
        for process in psutil.Process(server.pid).children(recursive=True):
            process.kill()
        server.kill()
        server.wait()


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def flags(solver: Path, out: Path) -> tuple[object, ...]:
    own = ("--threads-per-worker", 1, "--collective", "ring", "--timeout", TIMEOUT_S)
    return ("train", "--solver", solver, *own, "--out", out)


@pytest.fixture
def over_ssh(tmp_path: Path, other: OtherHost) -> tuple[object, ...]:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("localhost slots=1\nlocalhost slots=2\n")
    return ("--hosts", hosts, "--ssh", other.ssh)


def test_the_weights_are_those_of_one_host(digits: Path, tmp_path: Path, over_ssh: tuple[object, ...]) -> None:
    solver = write_solver(write_net(tmp_path, digits), 12)
    succeed(*flags(solver, tmp_path / "plain"), "--workers", 3, "--oversubscribe", folder=tmp_path)
    ended = succeed(*flags(solver, tmp_path / "out"), *over_ssh, "--oversubscribe", folder=tmp_path)
    assert "step 12/12" in ended.output
    found, expected = result_of(tmp_path / "out"), result_of(tmp_path / "plain")
    assert found["weights_sha256"] == expected["weights_sha256"]


@pytest.fixture
def endless(digits: Path, tmp_path: Path, over_ssh: tuple[object, ...]) -> Iterator[Command]:
    solver = write_solver(write_net(tmp_path, digits), 10_000_000)
    with Command(*flags(solver, tmp_path / "out"), *over_ssh, "--oversubscribe", folder=tmp_path) as command:
        yield command


def assert_gone(other: OtherHost, own: list[psutil.Process]) -> None:
    """Nothing of the run is left on either host."""
    wait_until(lambda: not living(own) and not other.processes(), "all processes end", LONGEST_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_both_hosts(endless: Command, other: OtherHost, tmp_path: Path, number: signal.Signals) -> None:
    endless.wait_for_step(tmp_path / "out", 3)
    own = psutil.Process(endless.process.pid).children(recursive=True)
    endless.send(number)
    ended = endless.wait(LONGEST_S)
    assert ended.return_code == (75 if number is signal.SIGTERM else 0), ended.errors
    assert result_of(tmp_path / "out")["stopped_by"] == number.name
    assert_gone(other, own)


@pytest.mark.parametrize("step", [0, 3])
def test_a_killed_launcher_leaves_nothing_on_the_other_host(
    endless: Command, other: OtherHost, tmp_path: Path, step: int
) -> None:
    """Before the hosts have met, or while they train: the client of ssh lives on for as long as what it started."""
    endless.until(other.launcher, "the other host's command starts")
    if step:
        endless.wait_for_step(tmp_path / "out", step)
    own = psutil.Process(endless.process.pid).children(recursive=True)
    endless.process.kill()
    assert_gone(other, own)


def test_a_killed_launcher_of_the_other_host_ends_the_run(endless: Command, other: OtherHost, tmp_path: Path) -> None:
    endless.wait_for_step(tmp_path / "out", 3)
    own, launcher = psutil.Process(endless.process.pid).children(recursive=True), other.launcher()
    assert launcher is not None
    launcher.kill()
    ended = endless.wait(LONGEST_S)
    assert ended.return_code == 3
    assert "is lost, and the run was ended on all hosts" in ended.errors
    assert_gone(other, own)


def test_a_refused_key_is_named(digits: Path, tmp_path: Path, over_ssh: tuple[object, ...]) -> None:
    solver = write_solver(write_net(tmp_path, digits), 12)
    (tmp_path / "ssh" / "user_key.pub").write_text("")
    ended = run(*flags(solver, tmp_path / "out"), *over_ssh, folder=tmp_path)
    assert ended.return_code == 2
    assert "Permission denied (publickey)" in ended.errors
    assert "the command on localhost ended with exit code 255 before the run began" in ended.errors
    assert not (tmp_path / "out").exists()
