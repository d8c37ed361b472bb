"""The launcher of an elastic job on several hosts."""

import socket
import uuid
from pathlib import Path
from typing import Any

import pytest

from samovar.cli.elastic_run import ElasticFlags, ElasticRun
from samovar.core.errors import InputError
from tests.multiproc.ports import reserved_port


def test_a_name_that_leads_to_this_host_alone_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a host's own name does in Debian's /etc/hosts; the others know it under another address."""
    found = socket.getaddrinfo

    def look_up(host: str, *words: Any, **more: Any) -> Any:
        return found("127.0.1.1" if host == "host0" else host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with reserved_port() as port:
        flags = ElasticFlags(f"test-{uuid.uuid4().hex}", None, None, None, 1, "host0", port, tmp_path / "key")
        error = r"--master-addr host0: leads to this host alone \(127.0.1.1\); give an address that the others reach"
        with pytest.raises(InputError, match=error), ElasticRun(flags, print):
            pass
