"""The board and the seat of a buffer on another host: as those here, each change once, wherever the link breaks."""

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from samovar.box.base import CenterWithVelocity
from samovar.box.board import Member, MemberProgress
from samovar.box.buffers import BufferShape
from samovar.box.joining import (
    BoxSeat,
    Endpoint,
    buffer_names,
    create_buffer,
    drop_buffer,
    look_at,
    read_buffer,
    take_seat,
)
from samovar.box.line import BoxAddress
from samovar.box.protocol import Creation
from samovar.box.remote import RemoteBoard, RemoteCenter
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed, SamovarError
from samovar.transports.keys import make_key
from tests.unit.box.listening_box import ABSENT_S, AWAY_S, Box
from tests.unit.transports.proxy import Proxy
from tests.unit.transports.test_secure import drop_all, probe_soon

SIZE = 10_000
SHAPE = BufferShape(SIZE, max_members=4, with_velocity=True, chunk_elements=512)
PROGRESS = MemberProgress(12, 768, 1234.0, 0.5, 1.5, 4, 12, 0.1)
TIMEOUT_S = 30.0


def soon() -> Deadline:
    return Deadline.after(TIMEOUT_S)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    make_key(tmp_path / "box.pem")
    made = Box(tmp_path / "box.pem")
    yield made
    made.close()


@pytest.fixture(params=["local", "remote"])
def place(request: pytest.FixtureRequest, box: Box) -> Endpoint:
    return box.places[request.param]


def seat_at(place: Endpoint, index: int | None = None) -> BoxSeat:
    return take_seat(place, "c", "rank 1", soon(), index)


def test_a_seat_is_the_same_here_and_elsewhere(box: Box, place: Endpoint) -> None:
    assert buffer_names(place, "rank 1", soon()) == []
    assert create_buffer(place, "c", SHAPE, "rank 1", soon())
    assert not create_buffer(place, "c", SHAPE, "rank 1", soon())
    assert buffer_names(place, "rank 1", soon()) == ["c"]
    with seat_at(place, 2) as seat:
        assert isinstance(seat.center, CenterWithVelocity)
        assert (seat.shape, seat.member, seat.board.max_members) == (SHAPE, Member(2, 1), 4)
        use(seat)
        row = seat.board.row(2)
        assert (row.member, row.progress, row.is_alive) == (seat.member, PROGRESS, True)
        assert [row.member.index for row in seat.board.rows()] == [2]
        shape, arrays = read_buffer(place, "c", "rank 1", soon())
    assert shape == SHAPE
    assert (arrays["center"] == 4).all()
    assert (arrays["velocity"] == 3).all()
    assert (arrays["versions"] == 1).all()
    assert arrays["words"].tolist()[:4] == [0, 2**64 - 1, 5, 0]
    (row,) = look_at(place, "c", "rank 1", soon()).rows
    assert (row.process_id, row.is_alive) == (0, False)
    drop_buffer(place, "c", "rank 1", soon())
    assert box.server.buffers.names() == []


def use(seat: BoxSeat) -> None:
    """Everything once: afterwards c = 4, v = 3, and the words 1 and 2 are set."""
    ones, found = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)
    seat.center.write(ones, soon())
    seat.center.write_velocity(4 * ones, soon())
    seat.center.read_velocity(found, soon())
    assert (found == 4).all()
    seat.center.accumulate(1, ones, soon(), momentum=0.5)
    assert seat.center.lock_wait_s == 0
    seat.board.post(seat.member, PROGRESS)
    seat.board.set_word(1, 2**64 - 1)
    assert seat.board.claim_word(2, 5) == 5
    assert seat.board.claim_word(2, 6) == 5
    assert seat.board.word(1) == 2**64 - 1


def test_what_is_refused(box: Box, place: Endpoint) -> None:
    create_buffer(place, "c", SHAPE, "rank 1", soon())
    other = BufferShape(SIZE + 1)
    with pytest.raises(InputError, match=r"rank 1: .*buffer 'c' exists already with another shape"):
        create_buffer(place, "c", other, "rank 1", soon())
    with pytest.raises(InputError, match=r"rank 1: .*a buffer cannot be called"):
        create_buffer(place, "../c", other, "rank 1", soon())
    with pytest.raises(InputError, match=r"rank 1: .*no buffer 'd'; there are: c"):
        take_seat(place, "d", "rank 1", soon())
    with pytest.raises(InputError, match=r"rank 1: .*no buffer 'd'"):
        drop_buffer(place, "d", "rank 1", soon())
    with pytest.raises(InputError, match=r"rank 1: .*member 4: the box has members 0 to 3"):
        seat_at(place, 4)
    with seat_at(place, 1):
        board = box.board("c")
        for index in (0, 2, 3):
            board.join(index)
        with pytest.raises(InputError, match=r"rank 1: .*4 members, all alive"):
            seat_at(place)


@pytest.mark.parametrize("chunk_elements", [1 << 16, 1 << 24])
def test_a_buffer_larger_than_the_memory_is_refused(box: Box, chunk_elements: int) -> None:
    """By who has the key; nothing is taken."""
    shape = BufferShape(1 << 40, chunk_elements=chunk_elements)
    with pytest.raises(
        InputError, match=r"me: the box at .*: shared memory .* 1,099,511,627,776 elements cannot be had"
    ):
        box.address.create(Creation("c", shape, 1), "me", soon())
    assert box.server.buffers.names() == []
    for wrong in (BufferShape(0), BufferShape(1 << 41), BufferShape(10, max_members=1 << 20), BufferShape(1 << 70)):
        with pytest.raises(InputError, match=r"is 1 to|no buffer has the shape"):
            box.address.create(Creation("c", wrong, 1), "me", soon())


def test_a_center_without_velocity_says_so(box: Box) -> None:
    box.server.buffers.create("c", BufferShape(SIZE, max_members=4))
    values = np.zeros(SIZE, np.float32)
    for place in box.places.values():
        with seat_at(place) as seat:
            with pytest.raises(InputError, match="velocity cannot be read; this one has none"):
                seat.center.read_velocity(values, soon())
            with pytest.raises(InputError, match="velocity cannot be written; this one has none"):
                seat.center.write_velocity(values, soon())


def test_who_made_a_buffer_hears_it_again_when_the_answer_was_lost(box: Box) -> None:
    """An answer that is cut off: the try that follows says the same number."""
    for cut in range(900, 2400, 100):
        proxy = Proxy(box.address.address, [(1 << 30, cut)])
        try:
            address = BoxAddress(proxy.address, box.key)
            assert address.create(Creation(f"c{cut}", SHAPE, cut + 1), "me", soon()), cut
        finally:
            proxy.close()


@pytest.mark.parametrize("seed", range(3))
def test_changes_are_made_once_though_the_link_breaks(box: Box, seed: int) -> None:
    box.server.buffers.create("c", SHAPE)
    generator = np.random.default_rng(seed)
    cuts = [(int(generator.integers(1500, 6000)), int(generator.integers(1500, 6000))) for _ in range(12)]
    proxy = Proxy(box.address.address, cuts)
    center = RemoteCenter(box.address, "c", "me", soon())
    board = RemoteBoard(BoxAddress(proxy.address, box.key), "c", "me", soon(), center.member, center.welcome.token)
    own = box.board("c")
    try:
        for number in range(1, 60):
            board.set_word(0, number)
            assert board.claim_word(1, 7) == 7
            own.set_word(0, own.word(0) + 1000)  # a second setting would undo it
            board.post(center.member, MemberProgress(number))
            assert board.word(0) == number + 1000
            assert board.row(center.member.index).progress.steps == number
        board.close()
    finally:
        proxy.close()
        center.close()
    assert board._line.num_reconnects > 0


def test_a_member_and_its_board_outlive_the_server(box: Box) -> None:
    with seat_with(box) as seat:
        seat.board.set_word(0, 1)
        seat.board.post(seat.member, MemberProgress(1))
        box.listen_anew()
        assert seat.board.word(0) == 1
        assert seat.board.row(0).progress.steps == 1
        seat.board.post(seat.member, MemberProgress(2))
        seat.center.accumulate(1, np.ones(SIZE, np.float32), soon())
        row = seat.board.row(0)
        assert (row.member, row.process_id, row.host) == (seat.member, os.getpid(), "127.0.0.1")
        assert (row.is_alive, row.progress.steps) == (True, 2)


def seat_with(box: Box) -> BoxSeat:
    box.server.buffers.create("c", SHAPE)
    return seat_at(box.places["remote"])


def test_the_last_post_is_shown_when_the_seat_is_left(box: Box) -> None:
    with seat_with(box) as seat:
        for number in range(100):
            seat.board.post(seat.member, MemberProgress(number))
    assert box.board("c").row(0).progress.steps == 99


def test_a_box_that_is_gone_does_not_hold_up_who_leaves(box: Box) -> None:
    """Its last post is on its way there, again and again, as long as a call may take."""
    create_buffer(box.places["remote"], "c", SHAPE, "rank 1", soon())
    seat = take_seat(box.places["remote"], "c", "rank 1", soon(), timeout_s=TIMEOUT_S)
    assert isinstance(seat.board, RemoteBoard)
    assert isinstance(seat.center, RemoteCenter)
    address = box.address.address
    box.hang_up()
    seat.board.post(seat.member, PROGRESS)
    wait_until(seat.board._line._lock.locked)
    long = Deadline.after(TIMEOUT_S / 2)
    with suppress(SamovarError):
        seat.board.close(Deadline.after(0.1))
    assert not long.passed()
    box.listen(address[1])
    seat.center.close()


def test_a_post_that_cannot_be_shown_is_told(box: Box) -> None:
    seat = seat_with(box)
    seat.board.post(seat.member, MemberProgress(1))
    assert seat.board.row(0).progress.steps == 1
    address = box.address.address
    box.hang_up()
    seat.board.post(seat.member, MemberProgress(2))
    assert isinstance(seat.board, RemoteBoard)
    with pytest.raises(SamovarError, match=r"rank 1: .*the box at"):
        seat.board.close(Deadline.after(0.2))
    seat.close()
    box.listen(address[1])


def test_a_member_of_a_buffer_that_was_made_anew_is_told(box: Box) -> None:
    """Its number is another's by now."""
    with seat_with(box) as seat:
        box.server.buffers.drop("c")
        box.server.buffers.create("c", SHAPE)
        with seat_at(box.places["remote"]) as newer:
            assert newer.member == seat.member
            ones = np.ones(SIZE, np.float32)
            newer.center.accumulate(1, ones, soon())
            seat.center.accumulate(1, 2 * ones, soon())  # it has the old one's memory still
            newer.center.read(found := np.zeros(SIZE, np.float32), soon())
            assert (found == 1).all()
            box.listen_anew()
            with pytest.raises(RankFailed, match="buffer 'c' was made again, without this member; join again"):
                seat.center.accumulate(2, ones, soon())
            newer.center.accumulate(2, ones, soon())
            with pytest.raises(RankFailed, match="made again"):
                seat.board.set_word(0, 1)


def test_who_looks_at_a_buffer_that_was_made_anew_is_told(box: Box) -> None:
    create_buffer(box.places["remote"], "c", SHAPE, "viewer", soon())
    center = RemoteCenter(box.address, "c", "viewer", soon(), is_viewer=True)
    board = RemoteBoard(box.address, "c", "viewer", soon())
    box.server.buffers.drop("c")
    box.server.buffers.create("c", SHAPE)
    center.read(np.empty(SIZE, np.float32), soon())  # it sees the old one's memory still
    box.listen_anew()
    for look in (lambda: center.read(np.empty(SIZE, np.float32), soon()), board.rows):
        with pytest.raises(RankFailed, match=r"viewer: .*buffer 'c' was made again, and is another one; open it"):
            look()
    center.close()
    board.close()


def test_a_row_belongs_to_its_member_for_a_while_after_its_connection(box: Box) -> None:
    center = RemoteCenter(box_with_buffer(box), "c", "me", soon())
    board = box.board("c")
    row = board.row(0)
    assert row.is_alive
    assert row.host == "127.0.0.1"
    (place,) = box.service._places

    def has_left() -> bool:
        with box.service._lock:  # when it left is noted with it
            return not place.channels

    center._line.disconnect()  # as its process's death does
    wait_until(has_left)
    box.service.expire(place.left_s + AWAY_S / 2)
    assert board.row(0).is_alive
    for _ in range(2):
        box.service.expire(place.left_s + ABSENT_S / 2)
        assert not board.row(0).is_alive
        assert (board.row(0).progress.away, board.row(0).process_id) == (True, os.getpid())
        center.read(np.zeros(SIZE, np.float32), soon())
        assert (board.row(0).is_alive, board.row(0).member) == (True, row.member)
        assert not board.row(0).progress.away
        center._line.disconnect()
        wait_until(has_left)
    box.service.expire(place.left_s + ABSENT_S + 1.0)  # their sum is rounded
    assert not board.row(0).is_alive
    assert board.row(0).host == "127.0.0.1"
    board.join(0)
    with pytest.raises(RankFailed, match="join again"):
        center.read(np.zeros(SIZE, np.float32), soon())


def box_with_buffer(box: Box) -> BoxAddress:
    box.server.buffers.create("c", SHAPE)
    return box.address


def wait_until(condition: Callable[[], bool]) -> None:
    deadline, pause = soon(), threading.Event()
    while not condition():
        assert not deadline.passed()
        pause.wait(0.01)


def test_who_asks_for_the_row_of_an_absent_member_has_it(box: Box) -> None:
    """A worker that was killed and comes back need not wait until it is missed."""
    first = RemoteCenter(box_with_buffer(box), "c", "me", soon(), index=2)
    with pytest.raises(RankFailed, match="member 2 of the box is process"):
        RemoteCenter(box.address, "c", "me", soon(), index=2)
    first._line.disconnect()
    with take_seat(box.places["remote"], "c", "me", soon(), 2) as seat:
        assert seat.member == Member(2, 2)
        with pytest.raises(RankFailed, match=r"me: the box at .*join again"):
            first.read(np.zeros(SIZE, np.float32), soon())
        assert seat.board.row(2).is_alive


def test_a_lost_welcome_makes_no_second_member(box: Box) -> None:
    """The door shuts at every byte of the answer, then the same attempt is made again."""
    for cut in range(900, 2400, 50):
        box.server.buffers.create(name := f"c{cut}", SHAPE)
        proxy = Proxy(box.address.address, [(1 << 30, cut)])
        try:
            center = RemoteCenter(BoxAddress(proxy.address, box.key), name, "me", soon())
            assert center.member == Member(0, 1)
            assert len(box.board(name).rows()) == 1
            center.close()
        finally:
            proxy.close()


def test_a_viewer_reads_and_changes_nothing(box: Box) -> None:
    with seat_with(box) as seat:
        seat.center.write(np.full(SIZE, 3.0, np.float32), soon())
        board = RemoteBoard(box.address, "c", "viewer", soon())
        center = RemoteCenter(box.address, "c", "viewer", soon(), is_viewer=True)
        found = np.zeros(SIZE, np.float32)
        center.read(found, soon())
        assert (found == 3).all()
        seat.board.post(seat.member, PROGRESS)
        assert seat.board.rows() == board.rows()
        for change in (
            lambda: center.write(found, soon()),
            lambda: center.write_velocity(found, soon()),
            lambda: center.accumulate(1, found, soon()),
            lambda: center.exchange(1, found, 0.5, soon()),
            lambda: board.set_word(0, 1),
            lambda: board.claim_word(0, 1),
        ):
            with pytest.raises(InputError, match=r"viewer: the box at .*: [A-Z_]+ is for members; join first"):
                change()
        center.close()
        board.close()
        assert len(box.board("c").rows()) == 1
        assert box.board("c").word(0) == 0


def test_a_board_that_fell_silent_is_reached_again(box: Box) -> None:
    """The kernel has given the connection up meanwhile, as it does half a minute after a cut."""
    place = box.places["remote"]
    create_buffer(place, "c", SHAPE, "a test", soon())
    seat = take_seat(place, "c", "rank 1", soon())
    seat.board.word(3)
    assert isinstance(seat.board, RemoteBoard)
    channel = seat.board._line._channel
    assert channel is not None
    probe_soon(channel)
    for other in box.service._threads:
        drop_all(other._receiving)
    poll = select.poll()
    poll.register(channel._receiving, select.POLLERR)
    assert poll.poll(1000 * TIMEOUT_S)
    assert seat.board.word(3) == 0
    seat.close()
