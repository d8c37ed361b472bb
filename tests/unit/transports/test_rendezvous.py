"""Where ranks meet: deadlines that hold, and listening sockets that nobody else can reach."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed
from samovar.transports.rendezvous import (
    Rendezvous,
    address_of,
    addresses_towards,
    await_server,
    interface_of,
    is_loopback,
    listen_at,
)
from samovar.transports.unix_sockets import ask_port, offer_port
from tests.unit.transports.looked_at import LookedAt

TIMEOUT_S = 60.0
NOBODY = 65534


class Shelf:
    """A store of this process; it hangs while `answers` is not set."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.answers = threading.Event()
        self.answers.set()

    def set(self, key: str, value: str) -> None:
        self.answers.wait(TIMEOUT_S)
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self.answers.wait(TIMEOUT_S)
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        self.answers.wait(TIMEOUT_S)
        if "broken" in keys:
            raise RuntimeError("Connection reset by peer\nand a long stack")
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
        return int(self.values[key])


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()
    yield shelf
    shelf.answers.set()


def test_keys_are_told_and_heard(shelf: Shelf) -> None:
    rendezvous, deadline = Rendezvous(shelf, "10.0.0.1:1", "rank 1"), Deadline.after(TIMEOUT_S)
    rendezvous.tell("a", "1", deadline)
    assert rendezvous.missing(["a"], deadline) == []
    assert rendezvous.value("a", deadline) == "1"
    assert rendezvous.missing(["a", "b", "c"], LookedAt(3)) == ["b", "c"]
    assert rendezvous.missing(["a", "b"], Deadline.after(0.0)) == ["a", "b"]  # nobody was asked
    assert [rendezvous.claim("rank", deadline) for _ in range(3)] == [True, False, False]


def test_a_store_that_hangs_costs_no_more_than_the_deadline(shelf: Shelf) -> None:
    shelf.answers.clear()
    rendezvous = Rendezvous(shelf, "10.0.0.1:1", "rank 1")
    with pytest.raises(DeadlineExceeded, match=r"10\.0\.0\.1:1 did not answer within 0\.\d s"):
        rendezvous.tell("a", "1", Deadline.after(0.05))
    with pytest.raises(DeadlineExceeded, match=r"10\.0\.0\.1:1"):
        rendezvous.missing(["a"], Deadline.after(0.05))


def test_a_store_may_answer_late_where_only_the_look_is_short(shelf: Shelf) -> None:
    """On a crowded machine rank 0, which has the store, may get no core for a second."""
    shelf.set("a", "1")
    shelf.answers.clear()
    late = threading.Timer(0.7, shelf.answers.set)
    late.start()
    rendezvous = Rendezvous(shelf, "10.0.0.1:1", "rank 1")
    assert rendezvous.missing(["a"], Deadline.after(0.05), Deadline.after(TIMEOUT_S)) == []
    late.join()


def test_a_store_that_is_gone(shelf: Shelf) -> None:
    with pytest.raises(
        RankFailed, match=r"10\.0\.0\.1:1 is gone \(Connection reset by peer\): rank 0 ended; see its log"
    ):
        Rendezvous(shelf, "10.0.0.1:1", "rank 1").missing(["broken"], Deadline.after(TIMEOUT_S))


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(DeadlineExceeded, match=rf"rank 1: rank 0 did not .* 127\.0\.0\.1:{port} within 0\.\d s"):
            await_server("127.0.0.1", port, "rank 1", Deadline.after(0.1))
        bound.listen()
        await_server("127.0.0.1", port, "rank 1", Deadline.after(TIMEOUT_S))
    with pytest.raises(InputError, match=r"no-such-host\.invalid"):
        await_server("no-such-host.invalid", port, "rank 1", Deadline.after(TIMEOUT_S))


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_only_the_address_asked_for_is_bound(name: str) -> None:
    listener = listen_at(name, 0)
    assert listener is not None
    with listener:
        assert is_loopback(listener.getsockname()[0])
        assert listen_at(name, listener.getsockname()[1]) is None


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(InputError, match=r"192\.0\.2\.1.*host that runs rank 0"):
        listen_at("192.0.2.1", 29_500)


def test_interfaces() -> None:
    assert address_of("lo") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert addresses_towards("127.0.0.1") == ("127.0.0.1", "127.0.0.1")
    assert address_of("no-such") is None
    assert interface_of("192.0.2.1") is None


def test_the_port_of_a_job_is_told_on_its_host() -> None:
    job = f"test-{os.getpid()}"
    assert ask_port(job, Deadline.after(0.05)) is None
    offer = offer_port(job, 1234)
    try:
        assert ask_port(job, Deadline.after(TIMEOUT_S)) == 1234
        with pytest.raises(InputError, match="rank 0"):
            offer_port(job, 4321)
    finally:
        offer.close()
    assert ask_port(job, Deadline.after(0.05)) is None


OFFERER = """
import os, sys
user = int(sys.argv[2])
from samovar.transports.unix_sockets import offer_port
os.setresuid(user, user, user)
offer = offer_port(sys.argv[1], 1)
print("offered", flush=True)
sys.stdin.read()
offer.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_users_port_is_refused() -> None:
    job = f"test-stranger-{os.getpid()}"
    words = [sys.executable, "-c", OFFERER, job, str(NOBODY)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "offered\n"
        with pytest.raises(InputError, match="belongs to another user"):
            ask_port(job, Deadline.after(TIMEOUT_S))
        stranger.communicate("")
