"""A remote member and a local one on the same native memory; the remote one goes on with the next server."""

import sys
import threading
import uuid
from collections.abc import Iterator
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import numpy as np
import pytest

from samovar.box import seats
from samovar.box.board import Board, Member, Origin
from samovar.box.buffers import BufferShape, NamedBuffers
from samovar.box.line import BoxAddress, ask
from samovar.box.local import holder_address
from samovar.box.mapped import MappedCenter
from samovar.box.memory_holder import HeldMemory
from samovar.box.protocol import NOBODY, Attachment, Creation, Kind, Request, unpack_word
from samovar.box.remote import RemoteCenter
from samovar.box.seats import BufferHost
from samovar.box.serving import Service, ServingConfig
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed
from samovar.transports.keys import Key
from samovar.transports.secure import ConnectionLost
from samovar.transports.tcp_listen import Listener, listen
from tests.multiproc.ports import reserved_port

SIZE, ROUNDS = 10_000, 20
SHAPE = BufferShape(SIZE, max_members=4, chunk_elements=512)


class Server:
    """The parts of `samovar box serve --listen`."""

    def __init__(self, buffers: NamedBuffers, key: Key, port: int, most: int = 256) -> None:
        self.service = Service(BufferHost(buffers), ServingConfig(most_connections=most))
        self.listener = Listener(listen(port=port), key, self.service.accept)

    def stop(self) -> None:
        self.listener.close()
        self.service.close()


@pytest.fixture
def buffers() -> Iterator[NamedBuffers]:
    memory = HeldMemory(holder_address(f"test-{uuid.uuid4().hex}"), 20.0)
    made = NamedBuffers(memory)
    yield made
    made.close()
    memory.end()


def soon() -> Deadline:
    return Deadline.after(30.0)


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


class Killed(Exception):
    """The end of a server, here without its process."""


class MemoryOfKilledServer(HeldMemory):
    """That of a server which is killed after `num_discards` discards."""

    num_discards = 0

    def discard(self, key: str) -> None:
        if not self.num_discards:
            raise Killed
        self.num_discards -= 1
        super().discard(key)


@pytest.mark.parametrize("num_discards", range(4))
def test_a_server_killed_in_a_drop_leaves_nothing_of_the_buffer_to_the_next_one_of_its_name(num_discards: int) -> None:
    address = holder_address(f"test-{uuid.uuid4().hex}")
    memory = MemoryOfKilledServer(address, 20.0)
    memory.num_discards = num_discards
    first = NamedBuffers(memory)
    first.create("c", SHAPE, token=5)
    first.remote_memory("c", 5, 0, SIZE).notes[:] = 1, 7, 0
    if num_discards < 3:
        with pytest.raises(Killed):
            first.drop("c")
    else:
        first.drop("c")
    first.close()
    memory.close()
    next_memory = HeldMemory(address, 20.0)
    buffers = NamedBuffers(next_memory)
    try:
        if "c" in buffers.names():
            buffers.drop("c")
        buffers.create("c", BufferShape(2 * SIZE, max_members=4, chunk_elements=512), token=6)
        assert buffers.remote_memory("c", 6, 0, 2 * SIZE).notes.tolist() == [0, 0, 0]
    finally:
        buffers.close()
        next_memory.end()
        assert memory._process is not None
        memory._process.wait(30.0)


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_member_that_comes_while_its_buffer_is_dropped_leaves_nothing_to_the_next_one_of_its_name(
    buffers: NamedBuffers, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    """The next one's first member has its row, its incarnation, and another number of elements."""
    host, come = BufferHost(buffers), (NOBODY, Origin("127.0.0.1", 1))
    larger = BufferShape(2 * SIZE, max_members=4, chunk_elements=512)
    buffers.create("c", SHAPE)

    def mapped_late(descriptor: int, member: Member | None = None) -> MappedCenter:
        buffers.drop("c")
        if is_made_again:
            buffers.create("c", larger)
        return MappedCenter(descriptor, member)

    with monkeypatch.context() as patched:
        patched.setattr(seats, "MappedCenter", mapped_late)
        with pytest.raises(RankFailed if is_made_again else InputError, match="buffer 'c'"):
            host.attach(Attachment("c", 1, attempt=1), *come)
    buffers.create("c", larger)
    seat = host.attach(Attachment("c", 1, attempt=2), *come)
    assert seat.notes.tolist() == [1, 0, 0]
    seat.close()


def test_remote_and_local_members_change_one_center(buffers: NamedBuffers, key: Key, port: int) -> None:
    buffer = buffers.create("c", SHAPE)
    board = Board(buffer.board)
    server = Server(buffers, key, port)
    address = BoxAddress(server.listener.address, key)
    ones = np.ones(SIZE, np.float32)
    with MappedCenter(buffer.center, board.join()) as local:
        remote = RemoteCenter(address, "c", "worker 1", soon())

        def add() -> None:
            for sequence in range(1, ROUNDS + 1):
                local.accumulate(sequence, ones, soon())

        thread = threading.Thread(target=add)
        thread.start()
        for sequence in range(1, ROUNDS + 1):
            remote.accumulate(sequence, ones, soon())
        thread.join()
        found = np.empty_like(ones)
        assert (remote.read(found, soon()) == 2 * ROUNDS).all()
        assert (found == 2 * ROUNDS).all()

        server.stop()
        server = Server(buffers, key, port)  # another one at the same place
        x = np.zeros(SIZE, np.float32)
        remote.exchange(ROUNDS + 1, x, 0.25, soon())
        assert (x == ROUNDS / 2).all()
        local.read(found, soon())
        assert (found == 2 * ROUNDS * 0.75).all()
        assert [row.is_alive for row in board.rows()] == [True, True]
        remote.close()
    server.stop()


def raised(error: Exception) -> None:
    raise error


def test_a_connection_too_many_is_told_why_and_may_come_later(buffers: NamedBuffers, key: Key, port: int) -> None:
    buffers.create("c", SHAPE)
    server = Server(buffers, key, port, most=1)
    address = BoxAddress(server.listener.address, key)
    first = RemoteCenter(address, "c", "worker 1", soon())
    why = "has 1 connections, which is the most it takes; end a member first"
    with pytest.raises(ConnectionLost, match=why):
        address.ask(Kind.NAMES, b"", "list", soon())
    with pytest.raises(DeadlineExceeded, match=why):
        RemoteCenter(address, "c", "worker 2", Deadline.after(1.0))
    answers: list[Exception] = [ConnectionLost("the box is full"), DeadlineExceeded("it did not answer in time")]
    with pytest.raises(DeadlineExceeded, match=r"^it did not answer in time; before, the box is full$"):
        first._line.insist(lambda _deadline: raised(answers.pop(0)), soon())
    found: list[RemoteCenter] = []
    waiting = threading.Thread(target=lambda: found.append(RemoteCenter(address, "c", "worker 2", soon())))
    waiting.start()
    first.close()
    waiting.join()
    found[0].close()
    server.stop()


def test_what_finds_no_free_descriptor_at_the_server_is_told(buffers: NamedBuffers, key: Key, port: int) -> None:
    server, (soft, hard) = Server(buffers, key, port), getrlimit(RLIMIT_NOFILE)
    channel, wanted = BoxAddress(server.listener.address, key).connect("me", soon()), Creation("c", SHAPE, 1).pack()
    try:
        ask(channel, Request(Kind.NAMES, 1), b"", soon())  # once it answers, the connection has all its descriptors
        setrlimit(RLIMIT_NOFILE, (3, hard))
        with pytest.raises(RankFailed, match="Too many open files"):
            ask(channel, Request(Kind.CREATE, 2), wanted, soon())
        setrlimit(RLIMIT_NOFILE, (soft, hard))
        assert unpack_word(ask(channel, Request(Kind.CREATE, 3), wanted, soon())) == 1
    finally:
        setrlimit(RLIMIT_NOFILE, (soft, hard))
        channel.close()
        server.stop()


def test_names_are_told_while_members_come(buffers: NamedBuffers) -> None:
    """Each brings memory of its own into the table in which the names are."""
    buffers.create("c", SHAPE, token=5)
    has_come = threading.Event()

    def come() -> None:
        for index in range(100):
            buffers.remote_memory("c", 5, index, 16)
        has_come.set()

    before_s = sys.getswitchinterval()
    coming = threading.Thread(target=come)
    sys.setswitchinterval(1e-6)
    try:
        coming.start()
        while not has_come.is_set():
            assert buffers.names() == ["c"]
    finally:
        coming.join()
        sys.setswitchinterval(before_s)
