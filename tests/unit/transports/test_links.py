"""Connections between launchers: content of any size arrives, and nothing that nobody takes holds up the end."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import SamovarError
from samovar.transports.keys import Key
from samovar.transports.links import MOST_BYTES, HostLink, Inbox, door, link_to, sealed_link
from samovar.transports.secure import ConnectionLost
from samovar.transports.tcp_listen import address_of, listen
from tests.unit.transports.test_secure import Receiver, connected, receiver

__all__ = ["receiver"]  # a fixture
TIMEOUT_S = 60.0


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


@pytest.fixture
def pair() -> Iterator[tuple[HostLink, HostLink]]:
    """Both ends of a connection without a key."""
    listener = listen()
    with door(listener, None, set()) as next_link:
        near = link_to(address_of(listener), None, "host 1", in_time())
        near.send({"is": "hello"}, in_time())
        found = next_link(in_time())
    assert found is not None
    yield near, found[0]
    near.close()
    found[0].close()


@pytest.mark.parametrize("size", [1, 23, 24, 25, 64, MOST_BYTES])
def test_a_content_of_any_size_comes_as_it_was(
    receiver: Receiver, key: Key, pair: tuple[HostLink, HostLink], size: int
) -> None:
    """24 bytes are as many as a head has."""
    content = (bytes(range(256)) * (size // 256 + 1))[:size]
    with connected(receiver, key) as (near, far):
        for sender, taker in ((sealed_link(near), sealed_link(far)), pair):
            sender.send({"is": "part"}, in_time(), content)
            assert taker.receive(in_time()) == ({"is": "part"}, content)


def test_who_comes_at_the_end_of_a_look_has_time_to_speak() -> None:
    """Host 0 looks for half a second at a time, and a host takes some time from its connection to its first word."""
    found: list[object] = []
    listener = listen()
    with door(listener, None, set()) as next_link:
        near = link_to(address_of(listener), None, "host 1", in_time())
        looking = threading.Thread(target=lambda: found.append(next_link(Deadline.after(0.0))))
        looking.start()
        looking.join(0.05)
        near.send({"is": "hello"}, in_time())
        looking.join(TIMEOUT_S)
    near.close()
    (came,) = found
    assert isinstance(came, tuple)
    assert came[1] == {"is": "hello"}
    came[0].close()


def test_strangers_that_say_nothing_keep_no_holder_of_the_key_out(key: Key) -> None:
    """Each may take five seconds, and come again."""
    listener = listen()
    with ExitStack() as stack:
        next_link = stack.enter_context(door(listener, key, set()))
        for _ in range(8):
            stack.enter_context(socket.create_connection(address_of(listener), TIMEOUT_S))
        near = link_to(address_of(listener), key, "host 1", in_time())
        stack.callback(near.close)
        near.send({"is": "hello"}, in_time())
        found = next_link(in_time())
        assert found is not None
        stack.callback(found[0].close)
        assert found[1] == {"is": "hello"}


def test_a_holder_of_the_key_that_nobody_takes_hears_so_at_the_end(key: Key) -> None:
    listener = listen()
    with door(listener, key, set()):
        near = link_to(address_of(listener), key, "host 1", in_time())
    with closing(near), pytest.raises(ConnectionLost):
        near.receive(in_time())


def test_a_wait_for_ever_outlasts_the_systems_longest(
    receiver: Receiver, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is days: ranks that have nothing to say to each other for so long are not lost."""
    found: list[bytes] = []
    with connected(receiver, key) as (near, far):
        monkeypatch.setattr(Deadline, "timeout_s", lambda _self: 0.001)
        waiting = threading.Thread(target=lambda: found.append(near.receive(FOR_EVER)))
        waiting.start()
        waiting.join(0.05)
        monkeypatch.undo()
        with suppress(SamovarError):
            far.send(b"here", None, in_time())
        waiting.join(TIMEOUT_S)
    assert [header.rstrip(b"\0") for header in found] == [b"here"]


def test_messages_that_nobody_takes_hold_nothing_up(pair: tuple[HostLink, HostLink]) -> None:
    near, far = pair
    inbox = Inbox({1: near}, TIMEOUT_S)
    for number in range(1000):
        far.send({"is": "record", "number": number}, in_time())
    came: list[int] = []
    while len(came) < 1000 and (more := inbox.wait(in_time())):
        came += [message["number"] for _, message, _ in more]
    assert came == list(range(1000))
    for number in range(1000):
        far.send({"is": "record", "number": number}, in_time())
    closing = threading.Thread(target=inbox.close, daemon=True)
    closing.start()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
