"""Handing files such as a running segment to a process that comes later."""

import errno
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.core.group import Group
from samovar.transports.shm import ShmTransport
from samovar.transports.unix_sockets import LocalMessage, join_files, listen, offer_files, receive, send

MakeSegment = Callable[[int], int]
TIMEOUT_S = 100.0
NOBODY = 65534
SECRET = secrets.token_bytes(16)
pytestmark = pytest.mark.timeout(300)  # starts processes

JOINER = """
import os, sys
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.transports.base import Notification
from samovar.transports.unix_sockets import join_files
from samovar.transports.shm import ShmTransport

user = int(sys.argv[2])
os.setresuid(user, user, user)  # here, as the interpreter may lie where another user cannot start it
try:
    descriptor, = join_files(bytes.fromhex(sys.argv[1]), 1, Deadline.after(60.0))
except InputError as error:
    sys.exit(str(error))
transport = ShmTransport(descriptor, Group(1, 2), oversubscribed=True)
window = transport.open_window("data", 64, 1)
window.put(0, 32, window.local[:32] + 1, Notification(0, 2))
"""


def run_joiner(user: int) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-c", JOINER, SECRET.hex(), str(user)]
    return subprocess.run(program, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_another_process_joins_reads_and_writes(make_segment: MakeSegment) -> None:
    descriptor = make_segment(2)
    window = ShmTransport(descriptor, Group(0, 2), oversubscribed=True).open_window("data", 64, 1)
    window.put(1, 0, np.arange(100, 132, dtype=np.uint8))
    with offer_files(SECRET, (descriptor,)):
        joined = run_joiner(os.getuid())
    assert joined.returncode == 0, joined.stderr
    assert window.wait(0, 1, 1, Deadline.after(TIMEOUT_S)) == 2
    assert window.local.tolist() == [0] * 32 + list(range(101, 133))


def test_joiners_one_after_the_other_and_one_that_says_nothing(make_segment: MakeSegment) -> None:
    descriptor = make_segment(3)
    with offer_files(SECRET, (descriptor,)) as offer, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"\0{offer.address}")
        for _ in range(3):
            [joined] = join_files(SECRET, 1, Deadline.after(TIMEOUT_S))
            assert os.path.sameopenfile(joined, descriptor)
            assert not os.get_inheritable(joined)
            os.close(joined)


def test_another_user_is_refused(make_segment: MakeSegment) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can start a process of another user")
    with offer_files(SECRET, (make_segment(2),)) as offer:
        refused = run_joiner(NOBODY)
        assert refused.returncode == 1
        assert refused.stderr == f"segment {offer.address}: refused; it belongs to another user\n"
        joined = run_joiner(os.getuid())
        assert joined.returncode == 0, joined.stderr


def test_nobody_there_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"segment samovar-files-00: nobody offers it here .* is the run over\?"):
        join_files(b"\0", 1, Deadline.after(TIMEOUT_S))


def test_somebody_who_never_answers_ends_by_the_deadline() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0samovar-files-{SECRET.hex()}")
        listener.listen()
        with pytest.raises(DeadlineExceeded, match="no answer"):
            join_files(SECRET, 1, Deadline.after(0.05))


def test_a_wait_for_ever_outlasts_the_systems_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is days: processes of mpiexec wait for their host's first one as long as the run lasts."""
    monkeypatch.setattr(Deadline, "timeout_s", lambda _self: 0.001)
    found: list[LocalMessage] = []
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        waiting = threading.Thread(target=lambda: found.append(receive(near, FOR_EVER)))
        waiting.start()
        waiting.join(0.05)
        monkeypatch.undo()
        send(far, {"done": True}, Deadline.after(TIMEOUT_S))
        waiting.join(TIMEOUT_S)
    assert [message.content for message in found] == [{"done": True}]


def test_who_finds_a_full_queue_waits() -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as earlier:
        listener.bind(f"\0samovar-files-{SECRET.hex()}")
        listener.listen(0)
        earlier.connect(listener.getsockname())
        with pytest.raises(DeadlineExceeded, match="no answer"):
            join_files(SECRET, 1, Deadline.after(0.05))


def test_an_offer_that_finds_no_descriptor_answers_later(
    make_segment: MakeSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, errors = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def accept_later(listener: socket.socket) -> tuple[socket.socket, object]:
        if errors:
            raise errors.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    with offer_files(SECRET, (make_segment(1),)):
        [descriptor] = join_files(SECRET, 1, Deadline.after(10.0))
        os.close(descriptor)
    assert not errors


def test_after_close_thread_and_socket_are_gone(make_segment: MakeSegment) -> None:
    descriptor = make_segment(1)
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    offer = offer_files(SECRET, (descriptor,))
    assert offer.address in Path("/proc/net/unix").read_text()
    offer.close()
    assert set(threading.enumerate()) <= threads
    assert open_descriptors() <= descriptors
    assert offer.address not in Path("/proc/net/unix").read_text()
    with pytest.raises(InputError):
        join_files(SECRET, 1, Deadline.after(TIMEOUT_S))


@pytest.mark.skipif(shutil.which("unshare") is None or os.getuid() != 0, reason="makes a PID namespace")
def test_one_that_cannot_be_seen_is_not_called_another_users() -> None:
    """Two containers of one pod share a network, but each sees its own processes alone."""
    address = f"samovar-test-{uuid.uuid4().hex}"
    program = (
        "import sys; from samovar.core.clock import Deadline; from samovar.transports.unix_sockets import connect\n"
        f"connect({address!r}, Deadline.after(60.0))"
    )
    with listen(address):
        words = ["unshare", "--pid", "--fork", sys.executable, "-c", program]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert f"socket {address} is of a process that cannot be seen from this container" in ended.stderr
