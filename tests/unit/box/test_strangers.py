"""A stranger without a key, or one who sends nonsense, gets nothing, costs little, and does not harm others."""

import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from samovar.box.buffers import BufferShape
from samovar.box.protocol import VERSION, Attachment, Kind, Reply, Request
from samovar.box.remote import RemoteCenter
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.transports.keys import Key, make_key, read_key
from samovar.transports.secure import HEADER_BYTES, ConnectionLost, Handshake, SecureChannel, connect
from samovar.transports.tcp_listen import MOST_STRANGERS
from tests.unit.box.conftest import TIMEOUT_S, ServedBox
from tests.unit.transports.proxy import Proxy

Attach = Callable[..., RemoteCenter]
Attack = Callable[["Stranger"], None]
NUM_TRIES, NUM_SLOW_TRIES = 300, 10_000
MOST_GROWTH_BYTES = 64 << 20


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


class Stranger:
    """Tries one thing after the other at a box's door; `recorded` is what a member once said."""

    def __init__(self, box: ServedBox, other_key: Key, recorded: bytes, seed: int) -> None:
        self.address = box.address.address
        self.other_key = other_key
        self.recorded = recorded
        self.random = random.Random(seed)
        self.idle: list[socket.socket] = []

    def say(self, data: bytes) -> None:
        """Say it, and listen until the door is shut."""
        with socket.create_connection(self.address, TIMEOUT_S) as connection, suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass

    def close(self) -> None:
        for connection in self.idle:
            connection.close()


def nonsense(stranger: Stranger) -> None:
    stranger.say(stranger.random.randbytes(stranger.random.randrange(4000)))


def another_protocol(stranger: Stranger) -> None:
    stranger.say(b"GET / HTTP/1.1\r\nHost: box\r\n\r\n")


def a_plain_request(stranger: Stranger) -> None:
    stranger.say(Request(Kind.DROP, 1, body_bytes=1).pack().ljust(HEADER_BYTES, b"\0") + b"c")


def another_key(stranger: Stranger) -> None:
    with pytest.raises((InputError, DeadlineExceeded)):
        connect(stranger.address, stranger.other_key, "stranger", "box", Deadline.after(0.5)).close()


def no_certificate(stranger: Stranger) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        suppress(OSError),
        socket.create_connection(stranger.address, TIMEOUT_S) as connection,
        context.wrap_socket(connection) as speaking,
    ):
        speaking.sendall(bytes(32))
        assert not speaking.recv(32), "it answered"


def replayed(stranger: Stranger) -> None:
    stranger.say(stranger.recorded)


def truncated(stranger: Stranger) -> None:
    stranger.say(stranger.recorded[: stranger.random.randrange(len(stranger.recorded))])


def changed(stranger: Stranger) -> None:
    data = bytearray(stranger.recorded)
    data[stranger.random.randrange(len(data))] ^= 1 << stranger.random.randrange(8)
    stranger.say(bytes(data))


def oversized(stranger: Stranger) -> None:
    stranger.say(b"\x16\x03\x01\x40\x00" + stranger.random.randbytes(16_384) * 2)


def oversized_records(stranger: Stranger) -> None:
    hello = Handshake(stranger.other_key, is_server=False).advance(b"")
    stranger.say(hello[:3] + struct.pack("!H", 0xFFFF) + hello[5:] * 20)


def begun(stranger: Stranger) -> None:
    stranger.say(Handshake(stranger.other_key, is_server=False).advance(b""))


def silent(stranger: Stranger) -> None:
    """Stays, and says nothing; the oldest of many goes."""
    stranger.idle.append(socket.create_connection(stranger.address, TIMEOUT_S))
    if len(stranger.idle) > 2 * MOST_STRANGERS:
        stranger.idle.pop(0).close()


ATTACKS: list[Attack] = [
    nonsense,
    another_protocol,
    a_plain_request,
    another_key,
    no_certificate,
    replayed,
    truncated,
    changed,
    oversized,
    oversized_records,
    begun,
    silent,
]


@contextmanager
def well_behaved(center: RemoteCenter) -> Iterator[None]:
    """A member that adds ones all the time; all of them must be in the center at the end."""
    ones, ending, errors = np.ones(center.num_elements, np.float32), threading.Event(), list[Exception]()
    done = [0]

    def play() -> None:
        try:
            while not ending.is_set():
                versions = center.accumulate(done[0] + 1, ones, in_time())
                done[0] += 1
                assert (versions == done[0]).all()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    assert errors == []
    assert done[0] > 0
    got = np.zeros_like(ones)
    center.read(got, in_time())
    assert (got == done[0]).all()
    assert center._line.num_reconnects == 0, "it was never cut off"


def record(box: ServedBox, attach: Attach) -> bytes:
    """All that a member once said, from its first byte on."""
    proxy = Proxy(box.address.address, [])
    try:
        center = RemoteCenter(type(box.address)(proxy.address, box.key), "c", "member", in_time())
        center.accumulate(1, np.zeros(center.num_elements, np.float32), in_time())
        center.close()
        return bytes(proxy.seen_up)
    finally:
        proxy.close()


def attack(box: ServedBox, attach: Attach, tmp_path: Path, num_tries: int) -> None:
    box.create("c", 1000, 100)
    make_key(tmp_path / "other.pem")
    recorded = record(box, attach)
    box.create("c", 10_000, 1000).keeps_log = False  # a new one: the recorded member's zeros count as updates
    accepted: list[SecureChannel] = []
    accept = box.listener._accept
    center = attach()
    box.listener._accept = lambda channel: (accepted.append(channel), accept(channel))[1]
    stranger = Stranger(box, read_key(tmp_path / "other.pem"), recorded, num_tries)
    before = psutil.Process().memory_info().rss
    most = before
    try:
        with well_behaved(center):
            for number in range(num_tries):
                ATTACKS[number % len(ATTACKS)](stranger)
                most = max(most, psutil.Process().memory_info().rss)
    finally:
        stranger.close()
    assert accepted == []
    assert len(box.listener._strangers) <= MOST_STRANGERS
    assert most - before < MOST_GROWTH_BYTES, f"{most - before:,} bytes more"
    assert box.host.num_members == 2
    attach().read(np.zeros(10_000, np.float32), in_time())


def test_strangers_get_nothing_and_disturb_nobody(box: ServedBox, attach: Attach, tmp_path: Path) -> None:
    attack(box, attach, tmp_path, NUM_TRIES)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_tries_get_nothing(box: ServedBox, attach: Attach, tmp_path: Path) -> None:
    attack(box, attach, tmp_path, NUM_SLOW_TRIES)


def nonsensical(generator: random.Random) -> bytes:
    """A header that only chance makes right: fields at their borders, or noise."""
    if generator.random() < 0.3:
        return generator.randbytes(HEADER_BYTES)
    numbers = [-(2**31), -1, 0, 1, 9, 10, 2**31 - 1]
    wide = [*numbers, -(2**63), 2**63 - 1, 2**40]
    unsigned = [0, 1, 9, 10, 11, 4000, 2**20, 2**32 - 1]
    rate = generator.choice([0.0, 1.0, float("nan"), float("inf")])
    return struct.pack(
        "<BB2xIiIIqqdI",
        generator.randrange(20),
        generator.choice([VERSION, VERSION, VERSION, 0, 255]),
        1,
        generator.choice(numbers),
        generator.choice(unsigned),
        generator.choice(unsigned),
        generator.choice(wide),
        generator.choice(wide),
        rate,
        generator.choice(unsigned),
    )


def test_nonsense_with_a_key_ends_its_own_connection_only(box: ServedBox, attach: Attach) -> None:
    box.create("c", 1000, 100)
    center, generator = attach(), random.Random(3)
    with well_behaved(center):
        for _ in range(250):
            header = nonsensical(generator)
            if header[0] == Kind.DROP:
                continue  # that one would be right
            say_with_a_key(box, header, generator)


def say_with_a_key(box: ServedBox, header: bytes, generator: random.Random) -> None:
    """Attach, say it, and listen until the door is shut, or to the one answer of a request that happens to be right."""
    channel = connect(box.address.address, box.key, "me", "box", in_time())
    try:
        attachment = Attachment("c", 1).pack()
        request = Request(generator.choice([Kind.ATTACH, Kind.WATCH]), 1, body_bytes=len(attachment))
        channel.send(request.pack(), np.frombuffer(attachment, np.uint8), in_time())
        welcome = Reply.unpack(channel.receive(in_time()))
        channel.receive_body(np.zeros(welcome.body_bytes, np.uint8), in_time())
        channel.send(header, None, in_time())
        channel.send_body(np.zeros(1000, np.uint8), in_time())
        with suppress(OSError):
            channel._sending.shutdown(socket.SHUT_WR)
        channel.receive(in_time())
    except ConnectionLost:
        pass
    finally:
        channel.close()


@pytest.mark.parametrize(
    "request_",
    [
        Request(Kind.READ, 1, first_chunk=0, num_chunks=0),
        Request(Kind.READ, 1, first_chunk=0, num_chunks=11),
        Request(Kind.READ, 1, first_chunk=10, num_chunks=1),
        Request(Kind.READ, 1, first_chunk=2**32 - 1, num_chunks=2**32 - 1),
        Request(Kind.ACCUMULATE, 1, num_chunks=10, sequence=1, body_bytes=3996),
        Request(Kind.ACCUMULATE, 1, num_chunks=9, sequence=1, body_bytes=4000),
        Request(Kind.READ, 1, num_chunks=1, body_bytes=400),
    ],
)
def test_sizes_that_do_not_fit_are_refused(request_: Request) -> None:
    with pytest.raises(SamovarError):
        Request.unpack(request_.pack()).elements(BufferShape(1000, chunk_elements=100))
