"""A box's server in this process, with a real memory holder: names, refusals, restarts, members that need no server."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import numpy as np
import pytest

from samovar.box.board import Board, Origin
from samovar.box.buffers import Buffer, BufferShape
from samovar.box.client import connect
from samovar.box.joining import mapped_seat
from samovar.box.local import BoxServer, LocalBox, holder_address, server_address
from samovar.box.mapped import MappedCenter
from samovar.box.protocol import NOBODY, Attachment
from samovar.box.seats import BufferHost
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.transports import unix_sockets

ORIGIN = Origin("192.0.2.7", 7)
SHAPE = BufferShape(1000, max_members=3, chunk_elements=64)
KEEP_S, WAIT_S = 100.0, 100.0
pytestmark = pytest.mark.timeout(300)  # starts processes
HOLDERS: list["subprocess.Popen[bytes]"] = []  # of servers that went without a word


def soon() -> Deadline:
    return Deadline.after(WAIT_S)


@pytest.fixture
def box() -> str:
    return f"test-{uuid.uuid4().hex}"


@contextmanager
def serving(box: str, keep_s: float = KEEP_S) -> Iterator[BoxServer]:
    """A server on a thread; it ends as if it was killed: its memory holder stays."""
    server = BoxServer(box, keep_s)
    over = threading.Event()
    thread = threading.Thread(target=server.serve, args=(over.is_set,))
    thread.start()
    try:
        yield server
    finally:
        over.set()
        thread.join()
        die(server)


def die(server: BoxServer) -> None:
    server._listener.close()
    server.buffers.close()
    server._memory.close()
    if server._memory._process is not None:
        HOLDERS.append(server._memory._process)


def end(box: str) -> None:
    """The regular end, by a server that comes to it."""
    server = BoxServer(box, KEEP_S)
    holder = server._memory._process
    server.close()
    assert holder is None or holder.returncode == 0
    wait_for_holder(box)


def wait_for_holder(box: str) -> None:
    """Until it is gone."""
    while HOLDERS:
        HOLDERS.pop().wait(WAIT_S)
    assert unix_sockets.connect(holder_address(box), soon()) is None


@contextmanager
def member_of(buffer: Buffer) -> Iterator[MappedCenter]:
    board = Board(buffer.board)
    member = board.join()
    with MappedCenter(buffer.center, member) as center:
        yield center
    board.leave(member)


def read(buffer: Buffer) -> set[float]:
    values = np.empty(SHAPE.num_elements, np.float32)
    MappedCenter(buffer.center).read(values, soon())
    return set(values.tolist())


def test_buffers_are_made_found_and_dropped(box: str) -> None:
    with serving(box):
        local = LocalBox(box)
        assert local.names(soon()) == []
        made, found = local.create("lenet", SHAPE, soon()), local.attach("lenet", soon())
        again = local.create("lenet", SHAPE, soon())
        assert local.names(soon()) == ["lenet"]
        with member_of(made) as center:
            center.accumulate(1, np.ones(SHAPE.num_elements, np.float32), soon())
        assert read(found) == read(again) == {1.0}
        local.drop("lenet", soon())
        assert local.names(soon()) == []
        assert read(found) == {1.0}  # who has it keeps it
        with pytest.raises(InputError, match=r"box '.*': no buffer 'lenet'; there are: none"):
            local.attach("lenet", soon())
        for buffer in (made, found, again):
            buffer.close()
    end(box)


def test_what_the_server_refuses(box: str) -> None:
    with serving(box) as server:
        local = LocalBox(box)
        local.create("a", SHAPE, soon()).close()
        with pytest.raises(InputError, match=r"buffer 'a' exists already with another shape: .*1000.* not .*2000"):
            local.create("a", BufferShape(2000), soon())
        for name in ("", "../a", "a/b", "x" * 65, "a\n"):
            with pytest.raises(InputError, match="a buffer cannot be called"):
                local.create(name, SHAPE, soon())
        for shape in (BufferShape(0), BufferShape(-5), BufferShape(10, max_members=2**31), BufferShape(1 << 41)):
            with pytest.raises(InputError, match=r"a buffer's .* is 1 to"):
                local.create("b", shape, soon())
        with pytest.raises(InputError, match=f"box '{box}' is served already"):
            BoxServer(box, KEEP_S)
        assert server.buffers.names() == ["a"]
    end(box)


@pytest.mark.parametrize("name", ["", "a/b c", "x" * 65, "a\n"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(InputError, match="give letters, digits"):
        BoxServer(name, KEEP_S)
    with pytest.raises(InputError, match="give letters, digits"):
        LocalBox(name)


def test_a_box_that_nobody_serves(box: str) -> None:
    with pytest.raises(
        InputError, match=f"nobody serves box '{box}' on this host; start it with `samovar box serve --box {box}`"
    ):
        LocalBox(box).names(soon())


def test_nonsense_does_no_harm(box: str) -> None:
    random = np.random.default_rng(1)
    texts = [
        b"{",
        b"[]",
        b"null",
        b'{"do": 5}',
        b'{"do": "create", "name": {}, "num_elements": 1e400}',
        b"\xff" * 60_001,
    ]
    with serving(box):
        for data in [*texts, *(random.bytes(size) for size in range(1, 200, 7))]:
            connection = unix_sockets.connect(server_address(box), soon())
            assert connection is not None
            with connection:
                socket.send_fds(connection, [data], [0, 0])
                with suppress(SamovarError):  # it may hang up
                    assert "error" in unix_sockets.receive(connection, soon()).content
        for _ in range(3):  # and some who say nothing at all
            connection = unix_sockets.connect(server_address(box), soon())
            assert connection is not None
            connection.close()
        assert LocalBox(box).names(soon()) == []
    end(box)


def test_who_comes_while_no_descriptor_is_free_waits(box: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server, over, refused, sleep = BoxServer(box, KEEP_S), threading.Event(), threading.Event(), time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (refused.set(), sleep(seconds)))
    thread, (soft, hard) = threading.Thread(target=server.serve, args=(over.is_set,)), getrlimit(RLIMIT_NOFILE)
    connection = unix_sockets.connect(server_address(box), soon())
    assert connection is not None
    with connection:
        unix_sockets.send(connection, {"do": "names"}, soon())
        try:
            setrlimit(RLIMIT_NOFILE, (3, hard))
            thread.start()
            assert refused.wait(30.0)
        finally:
            setrlimit(RLIMIT_NOFILE, (soft, hard))
        assert unix_sockets.receive(connection, soon()).content == {"names": []}
    over.set()
    thread.join()
    server.close()


def test_a_program_of_another_container_is_told_the_way(box: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process has another number here, so it would be taken for dead."""
    with serving(box):
        monkeypatch.setattr("samovar.box.local._shares_numbers", lambda _process: False)
        with pytest.raises(InputError, match="another container's; reach the box by its address"):
            LocalBox(box).names(soon())
    end(box)


def test_where_many_wait_for_a_server_the_next_waits_too(box: str) -> None:
    address = server_address(box)
    with ExitStack() as stack:
        listener = stack.enter_context(unix_sockets.listen(address))
        while True:
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            waiting.setblocking(False)
            if waiting.connect_ex(f"\0{address}") == errno.EAGAIN:
                break
        with pytest.raises(DeadlineExceeded, match="no answer; is the box stopped"):
            unix_sockets.connect(address, Deadline.after(0.1))
        taker = threading.Timer(0.2, lambda: stack.enter_context(listener.accept()[0]))
        taker.start()
        last = unix_sockets.connect(address, soon())
        assert last is not None
        last.close()
        taker.join()


def test_a_server_after_one_that_was_killed_finds_everything(box: str) -> None:
    with serving(box) as server:
        assert not server.was_held
        buffer = LocalBox(box).create("a", SHAPE, soon())
        LocalBox(box).create("b", SHAPE, soon()).close()
        LocalBox(box).drop("b", soon())
    with member_of(buffer) as center:
        for sequence in (1, 2):  # nobody serves the box, and nobody needs to
            center.accumulate(sequence, np.ones(SHAPE.num_elements, np.float32), soon())
        with serving(box) as server:
            assert server.was_held
            assert LocalBox(box).names(soon()) == ["a"]
            found = LocalBox(box).attach("a", soon())
            center.accumulate(3, np.ones(SHAPE.num_elements, np.float32), soon())
            assert read(found) == {3.0}
            found.close()
    buffer.close()
    end(box)


def test_the_memory_of_a_server_that_was_killed_while_it_ended_is_used_again(box: str) -> None:
    with serving(box):
        buffer = connect(box).buffer("a", 5)
        buffer.accumulate(np.ones(5))
    with pytest.raises(RankFailed, match=f"box '{box}' has ended"):
        buffer.accumulate(np.ones(5))
    with serving(box):
        buffer.accumulate(np.ones(5))
        assert set(connect(box).buffer("a").get()) == {2.0}
    buffer.close()
    end(box)


def test_members_go_on_in_memory_that_is_kept_because_its_last_save_failed(box: str) -> None:
    server, ones = BoxServer(box, KEEP_S), np.ones(5, np.float32)
    server.buffers.create("a", BufferShape(5))
    with server.buffers.held("a") as buffer, mapped_seat(buffer) as seat:
        server.serve(lambda: True)
        with pytest.raises(RankFailed, match="the box has ended"):
            seat.center.accumulate(1, ones, soon())
        server.close(keeps_memory=True)
        assert (seat.center.accumulate(2, ones, soon()) == 1).all()
    assert server._memory._process is not None
    HOLDERS.append(server._memory._process)
    end(box)


def test_the_memory_holder_goes_when_no_server_comes(box: str) -> None:
    with serving(box, keep_s=0.2):
        LocalBox(box).create("a", SHAPE, soon()).close()
    wait_for_holder(box)
    with serving(box) as server:
        assert not server.was_held
        assert LocalBox(box).names(soon()) == []
    end(box)


def test_a_server_whose_memory_holder_was_killed_says_so(box: str) -> None:
    with serving(box) as server:
        assert server._memory._process is not None
        server._memory._process.send_signal(signal.SIGKILL)
        server._memory._process.wait()
        with pytest.raises(InputError, match=r"the process that holds the box's memory: .*; start the box again"):
            LocalBox(box).create("a", SHAPE, soon())


def test_a_buffer_is_handed_out_though_a_member_of_another_host_drops_it(
    box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At this very moment: its descriptors might be those of something else by the time they are sent."""
    with serving(box) as server:
        LocalBox(box).create("a", SHAPE, soon()).close()
        LocalBox(box).create("b", BufferShape(10), soon()).close()
        send = unix_sockets.send

        def send_late(
            connection: socket.socket, content: dict[str, object], deadline: Deadline, descriptors: tuple[int, ...] = ()
        ) -> None:
            if "is_new" in content:
                server.buffers.drop("a")
                server.buffers.create("c", BufferShape(20))
            send(connection, content, deadline, descriptors)

        monkeypatch.setattr(unix_sockets, "send", send_late)
        with LocalBox(box).attach("a", soon()) as buffer:
            assert BufferShape.of_center(buffer.center) == SHAPE
    end(box)


def test_members_whom_the_server_acts_for(box: str) -> None:
    """They go on under their incarnation with the next server; answers to exchanges outlive the first."""
    ones, x = np.ones(SHAPE.num_elements, np.float32), np.full(SHAPE.num_elements, 3.0, np.float32)
    with serving(box) as server:
        LocalBox(box).create("a", SHAPE, soon()).close()
        seat = BufferHost(server.buffers).attach(Attachment("a", 7), NOBODY, ORIGIN)
        seat.center.accumulate_chunks(0, 1, ones, soon())
        seat.center.exchange_chunks(0, 2, x, 0.5, soon(), seat.answers)
        assert (x == 3).all()
        member, seat_token = seat.member, seat.token
        seat.center.close()  # as its process's death would
        del seat
    with serving(box) as server:
        host = BufferHost(server.buffers)
        with server.buffers.held("a") as buffer:
            Board(buffer.board).leave(member)  # what a dead process's row is: nobody's
        seat = host.attach(Attachment("a", 7, token=seat_token), member, ORIGIN)
        assert (seat.answers == 2).all()
        assert (seat.center.accumulate_chunks(0, 1, ones, soon()) == 2).all()  # it has a later one: nothing to do
        versions = seat.center.exchange_chunks(0, 2, x, 0.5, soon(), seat.answers)
        assert (versions == 2).all()
        assert (seat.answers == 2).all()
        with pytest.raises(RankFailed):
            host.attach(Attachment("a", 7), member, ORIGIN)  # it is here
        with pytest.raises(InputError, match="no buffer 'zzz'"):
            host.attach(Attachment("zzz", 7), NOBODY, ORIGIN)
        with pytest.raises(RankFailed, match="buffer 'a' was made again"):
            host.attach(Attachment("a", 7, token=seat_token + 1), member, ORIGIN)
        assert host.buffers.names() == ["a"]
        seat.close()
        del seat
    end(box)


AS_NOBODY = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.settimeout(100)
connection.connect("\\0" + sys.argv[1])
try:
    connection.send(b'{"do": "attach", "name": "a"}')
    print(len(connection.recv(1000)))
except ConnectionError:
    print(0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_nothing(box: str) -> None:
    with serving(box):
        LocalBox(box).create("a", SHAPE, soon()).close()
        for address in (server_address(box), holder_address(box)):
            listening = [sys.executable, "-I", "-S", "-c", AS_NOBODY, address]
            if address == server_address(box):
                found = subprocess.run(listening, capture_output=True, text=True, check=True)
                assert found.stdout.strip() == "0"
    # The memory holder hears others only when no server is there.
    found = subprocess.run(listening, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "0"
    end(box)
