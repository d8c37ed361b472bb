"""Channels: what both ends share arrives whole, and what anybody else does opens nothing."""

import ctypes
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.transports import secure
from samovar.transports.keys import Key, make_key, read_key
from samovar.transports.secure import PIECE_BYTES, ConnectionLost, Handshake, SecureChannel, connect
from samovar.transports.tcp_listen import MOST_STRANGERS, Listener, listen
from tests.unit.transports.looked_at import LookedAt
from tests.unit.transports.proxy import Proxy

TIMEOUT_S = 60.0
ALL, NOTHING = (1 << 62, 1 << 62), (0, 0)  # bytes that a proxy lets pass
SIZES = [0, 1, 4, PIECE_BYTES - 4, PIECE_BYTES, PIECE_BYTES + 4, 3 * PIECE_BYTES + 1000]


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


@pytest.fixture
def other_key(tmp_path: Path) -> Key:
    make_key(tmp_path / "other.pem")
    return read_key(tmp_path / "other.pem")


class Receiver:
    """A listener whose channels a test takes out of a queue."""

    def __init__(self, key: Key) -> None:
        self.channels: queue.Queue[SecureChannel] = queue.Queue()
        self.listener = Listener(listen(), key, self.channels.put)
        self.address = self.listener.address

    def taken(self) -> SecureChannel:
        return self.channels.get(timeout=TIMEOUT_S)

    def close(self) -> None:
        self.listener.close()
        while not self.channels.empty():
            self.channels.get().close()


@pytest.fixture
def receiver(key: Key) -> Iterator[Receiver]:
    made = Receiver(key)
    yield made
    made.close()


@contextmanager
def connected(
    receiver: Receiver, key: Key, address: tuple[str, int] | None = None
) -> Iterator[tuple[SecureChannel, SecureChannel]]:
    near = connect(address or receiver.address, key, "me", "you", in_time())
    far = receiver.taken()
    try:
        yield near, far
    finally:
        near.close()
        far.close()


def test_messages_of_all_sizes_arrive_whole_both_ways_at_once(receiver: Receiver, key: Key) -> None:
    arrays = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in SIZES]

    def send(channel: SecureChannel) -> None:
        for number, array in enumerate(arrays):
            channel.send(bytes([number]) * 40, array, in_time())
            channel.send_body(array[: len(array) // 2], in_time())

    def receive(channel: SecureChannel) -> None:
        for number, array in enumerate(arrays):
            assert channel.receive(in_time()) == bytes([number]) * 40 + bytes(24)
            got = np.zeros_like(array)
            channel.receive_body(got, in_time())
            assert (got == array).all()
            channel.receive_body(got[: len(array) // 2], in_time())

    with connected(receiver, key) as (near, far), ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, channel) for channel in (near, far) for work in (send, receive)]:
            done.result()


def test_secrets_follow_each_other(receiver: Receiver, key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure, "_PIECES_PER_SECRET", 3)
    with connected(receiver, key) as (near, far):
        first = far._opener._secret
        for number in range(20):
            near.send(bytes([number]), None, in_time())
            assert far.receive(in_time())[0] == number
        assert far._opener._secret != first


def test_nothing_travels_in_the_open_and_no_two_connections_alike(receiver: Receiver, key: Key) -> None:
    proxy = Proxy(receiver.address, [])
    text = b"weights that nobody else should read"
    seen = []
    try:
        for _ in range(2):
            with connected(receiver, key, proxy.address) as (near, far):
                near.send(text, np.frombuffer(text, np.uint8), in_time())
                assert far.receive(in_time()).startswith(text)
                far.receive_body(np.zeros(len(text), np.uint8), in_time())
            seen.append(bytes(proxy.seen_up[-200:]))
        assert text[:8] not in proxy.seen_up
        assert seen[0] != seen[1]
    finally:
        proxy.close()


def test_another_key_opens_nothing_on_either_side(receiver: Receiver, other_key: Key) -> None:
    with pytest.raises(InputError, match=r"me: you at 127\.0\.0\.1:\d+ does not hold the same key"):
        connect(receiver.address, other_key, "me", "you", in_time())
    assert receiver.channels.empty()


def test_a_member_that_pins_nothing_still_does_not_get_in(receiver: Receiver, key: Key, other_key: Key) -> None:
    """A stranger who trusts anybody, with a certificate of his own."""
    other_key.for_client.load_verify_locations(cadata=key.certificate)
    stranger = Key(key.certificate, other_key.for_client, other_key.for_server)
    with pytest.raises(InputError, match="does not hold the same key"):
        connect(receiver.address, stranger, "me", "you", in_time())
    assert receiver.channels.empty()


def test_a_certificate_that_the_key_signed_is_not_the_keys(receiver: Receiver, key: Key, tmp_path: Path) -> None:
    """Not even for TLS, to which the key's certificate is an authority."""
    signer: Any = serialization.load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    private, own = ec.generate_private_key(ec.SECP256R1()), x509.load_der_x509_certificate(key.certificate)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "another")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(own.subject)
    builder = builder.public_key(private.public_key()).serial_number(7)
    builder = builder.not_valid_before(own.not_valid_before_utc).not_valid_after(own.not_valid_after_utc)
    signed = builder.sign(signer, hashes.SHA256())
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = tmp_path / "signed.pem"
    path.write_bytes(
        private.private_bytes(serialization.Encoding.PEM, *form) + signed.public_bytes(serialization.Encoding.PEM)
    )
    key.for_client.load_cert_chain(path)
    with pytest.raises((InputError, DeadlineExceeded)):
        connect(receiver.address, key, "me", "you", Deadline.after(0.5))
    assert receiver.channels.empty()


def test_every_changed_byte_is_noticed(receiver: Receiver, key: Key) -> None:
    data = np.arange(1000, dtype=np.uint8)
    lengths = Proxy(receiver.address, [])
    with connected(receiver, key, lengths.address) as (near, far):
        near.send(b"x", data, in_time())
        far.receive(in_time())
        far.receive_body(data.copy(), in_time())
    lengths.close()
    num_bytes = len(lengths.seen_up) - 20  # signatures are not all of one length
    for place in [*range(0, num_bytes, 211), num_bytes]:
        proxy = Proxy(receiver.address, [ALL, *[NOTHING] * 100], changed=place)
        try:
            arrived = said(receiver, key, proxy, data)
        finally:
            proxy.close()
        assert not arrived, f"byte {place} of {num_bytes}"


def said(receiver: Receiver, key: Key, proxy: Proxy, data: np.ndarray) -> bool:
    """Whether a message arrives through the proxy."""
    try:
        near = connect(proxy.address, key, "me", "you", Deadline.after(0.2))
    except (InputError, DeadlineExceeded):
        return False
    try:
        near.send(b"x", data, in_time())
        far = receiver.taken()
    finally:
        near.close()
    try:
        far.receive(in_time())
        far.receive_body(data.copy(), in_time())
    except ConnectionLost:
        return False
    finally:
        far.close()
    return True


def test_what_was_recorded_opens_nothing(receiver: Receiver, key: Key) -> None:
    proxy = Proxy(receiver.address, [])
    with connected(receiver, key, proxy.address) as (near, far):
        near.send(b"add one", None, in_time())
        far.receive(in_time())
    proxy.close()
    with socket.create_connection(receiver.address, TIMEOUT_S) as again:
        again.sendall(proxy.seen_up)
        wait_for_its_end(again)
    assert receiver.channels.empty()


def wait_for_its_end(connection: socket.socket) -> None:
    """The other side closes; it sends only TLS's own messages before."""
    with suppress(ConnectionResetError):
        while connection.recv(4096):
            pass


def test_a_message_that_comes_twice_ends_the_connection(receiver: Receiver, key: Key) -> None:
    with connected(receiver, key) as (near, far):
        sent: list[bytes] = []
        plain = near._sending
        near._sending = Recording(plain, sent)  # type: ignore[assignment]
        near.send(b"add one", None, in_time())
        assert far.receive(in_time()).startswith(b"add one")
        plain.sendall(sent[0])
        with pytest.raises(ConnectionLost, match="what arrived is not what was sent"):
            far.receive(in_time())


class Recording:
    def __init__(self, target: socket.socket, sent: list[bytes]) -> None:
        self._target = target
        self._sent = sent

    def __getattr__(self, name: str) -> Callable[..., object]:
        return getattr(self._target, name)

    def sendall(self, data: memoryview) -> None:
        self._sent.append(bytes(data))
        self._target.sendall(data)


def test_who_says_nothing_loses_the_place_to_who_does(receiver: Receiver, key: Key) -> None:
    idle = [socket.create_connection(receiver.address, TIMEOUT_S) for _ in range(3 * MOST_STRANGERS)]
    try:
        with connected(receiver, key) as (near, far):
            near.send(b"hello", None, in_time())
            assert far.receive(in_time()).startswith(b"hello")
        assert len(receiver.listener._strangers) <= MOST_STRANGERS
        assert receiver.listener.num_refused >= 2 * MOST_STRANGERS
    finally:
        for connection in idle:
            connection.close()


def test_more_than_a_handshake_needs_is_not_read(receiver: Receiver) -> None:
    with socket.create_connection(receiver.address, TIMEOUT_S) as connection:
        with suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(b"\x16\x03\x01\x40\x00" + b"\0" * 16_384)
        wait_for_its_end(connection)
    assert receiver.channels.empty()


def test_a_member_that_closes_before_its_secret_came_does_not_shut_the_door(receiver: Receiver, key: Key) -> None:
    member = key.for_client.wrap_socket(socket.create_connection(receiver.address, TIMEOUT_S))
    with member, suppress(OSError):  # its close reads as no bytes, again and again
        member.unwrap()
    with connected(receiver, key):
        assert receiver.listener.num_refused == 1


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_who_finds_no_descriptor_or_thread_does_not_shut_the_door(key: Key, error: type[Exception]) -> None:
    full, taken = [error], queue.Queue[SecureChannel]()

    def accept(channel: SecureChannel) -> None:
        if full:
            channel.close()
            raise full.pop()("none is left")
        taken.put(channel)

    listener = Listener(listen(), key, accept)
    try:
        for _ in range(2):
            connect(listener.address, key, "me", "you", in_time()).close()
        taken.get(timeout=TIMEOUT_S).close()
        assert listener.num_refused == 1
    finally:
        listener.close()


def test_a_member_that_falls_silent_costs_no_more_than_the_deadline(receiver: Receiver, key: Key) -> None:
    with connected(receiver, key) as (near, far):
        with pytest.raises(DeadlineExceeded, match="you did not send data in time"):
            near.receive(Deadline.after(0.05))
        with pytest.raises(ConnectionLost):
            far.receive(in_time())
    with connected(receiver, key) as (near, far):
        with pytest.raises(DeadlineExceeded, match="you did not take data in time"):
            near.send(b"", np.zeros(200_000_000, np.uint8), Deadline.after(0.2))
        del far


def test_nobody_there_costs_no_more_than_the_deadline(key: Key) -> None:
    with listen() as silent:
        address = silent.getsockname()
        with pytest.raises(DeadlineExceeded, match=r"me: you at 127\.0\.0\.1:\d+ cannot be reached within 0\.\d s"):
            connect(address, key, "me", "you", Deadline.after(0.2))
    with pytest.raises(DeadlineExceeded, match="refused"):
        connect(address, key, "me", "you", LookedAt(3))
    with pytest.raises(InputError, match="not a known host"):
        connect(("no.such.host.invalid", 1), key, "me", "you", in_time())


def test_one_that_speaks_no_tls_is_told_apart(key: Key) -> None:
    with listen() as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(InputError, match="does not hold the same key"):
            connect(listener.getsockname(), key, "me", "you", in_time())
        thread.join()


def test_a_handshake_that_ends_early_gives_nothing_away(key: Key) -> None:
    client, server = Handshake(key, is_server=False), Handshake(key, is_server=True)
    to_server = client.advance(b"")
    to_client = server.advance(to_server)
    assert (client.is_over, server.is_over) == (False, False)
    assert server.others_secret == b""
    to_server = client.advance(to_client)
    assert not server.advance(to_server[: len(to_server) // 2])
    assert not server.is_over
    to_client = server.advance(to_server[len(to_server) // 2 :])
    assert server.is_over
    client.advance(to_client)
    assert client.is_over
    assert (client.own_secret, client.others_secret) == (server.others_secret, server.own_secret)


def drop_all(connection: socket.socket) -> None:
    """Let the kernel drop every segment that comes for it, as a cut cable does (a filter of one instruction)."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    attach_filter = 26
    connection.setsockopt(socket.SOL_SOCKET, attach_filter, struct.pack("HL", 1, ctypes.addressof(instruction)))


def probe_soon(channel: SecureChannel) -> None:
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
        channel._receiving.setsockopt(socket.IPPROTO_TCP, option, 1)


def test_a_host_that_answers_no_probe_is_lost_and_not_late(receiver: Receiver, key: Key) -> None:
    with connected(receiver, key) as (near, far):
        probe_soon(near)
        drop_all(far._receiving)
        with pytest.raises(ConnectionLost, match="timed out"):
            near.receive(in_time())


def test_a_silent_host_is_lost_also_with_data_on_their_way_to_it(receiver: Receiver, key: Key) -> None:
    with connected(receiver, key) as (near, far):
        near.heed_silence()
        near._receiving.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)  # and not half a minute
        drop_all(far._receiving)
        near.send(b"an answer", None, in_time())
        with pytest.raises(ConnectionLost, match="timed out"):
            near.receive(in_time())


def test_a_name_server_that_is_away_for_a_moment_is_asked_again(
    receiver: Receiver, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, away = socket.getaddrinfo, [socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")]

    def found(*words: Any, **more: Any) -> Any:
        if away:
            raise away.pop()
        return real(*words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with connected(receiver, key):
        assert not away


@pytest.mark.parametrize("name", ["a..b", "h" * 64 + ".site"])
def test_what_cannot_be_a_name_is_refused(key: Key, name: str) -> None:
    with pytest.raises(InputError, match="not a known host"):
        connect((name, 1), key, "me", "you", in_time())
