"""`--hosts`: what is refused before another host is asked. Runs over ssh are in multiproc/test_train_ssh.py."""

import signal
import socket
import subprocess
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.launcher import over_ssh
from samovar.launcher.over_ssh import NamedHost, started_over_ssh


def test_a_name_that_leads_here_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian's /etc/hosts has a host's own name."""
    here = socket.getaddrinfo("127.0.1.1", 0, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_name, **_hints: here)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node0\nnode1\n")
    refused = pytest.raises(InputError, match=r"--master-addr node0: leads to this host alone \(127\.0\.1\.1\)")
    with refused, started_over_ssh(hosts, "ssh", [], "1", "node0", None):
        pytest.fail("it was started")


def test_an_interrupted_wait_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C comes while the first host is waited for."""
    started = [(NamedHost("a", None), subprocess.Popen(["sleep", "300"])) for _ in range(2)]
    wait = subprocess.Popen.wait

    def interrupted(self: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(self)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        over_ssh._end(started)
    assert [process.returncode for _, process in started] == [-signal.SIGKILL] * 2
