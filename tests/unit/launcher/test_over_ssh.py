"""`--hosts`: what is refused before another host is asked. Runs over ssh are in multiproc/test_train_ssh.py."""

import socket
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.launcher.over_ssh import started_over_ssh


def test_a_name_that_leads_here_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian's /etc/hosts has a host's own name."""
    here = socket.getaddrinfo("127.0.1.1", 0, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_name, **_hints: here)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node0\nnode1\n")
    refused = pytest.raises(InputError, match=r"--master-addr node0: leads to this host alone \(127\.0\.1\.1\)")
    with refused, started_over_ssh(hosts, "ssh", [], "1", "node0", None):
        pytest.fail("it was started")
