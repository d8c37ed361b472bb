"""Processes of one host of which the first runs the workers: how it ended reaches the others."""

import json
import os
import socket

from samovar.core.clock import Deadline
from samovar.launch.local_group import tell
from samovar.transports import unix_sockets


def test_an_outcome_may_be_longer_than_a_message() -> None:
    outcome = {"result": "x" * 200_000}
    first, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with first, other:
        tell([first], outcome)
        message = unix_sockets.receive(other, Deadline.after(60.0))
        (file,) = message.descriptors
        assert json.loads(os.pread(file, 1 << 20, 0)) == outcome
        message.close()
