"""A center cut over several boxes: where the cuts are, and what is made, joined, refused and deleted."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import samovar.box.endpoints
from samovar.box.board import MemberProgress
from samovar.box.buffers import BufferShape
from samovar.box.endpoints import Endpoints, create_shards, drop_shards, parse_endpoints, take_shards
from samovar.box.joining import Endpoint, buffer_names, create_buffer, look_at, take_seat
from samovar.box.shards import CenterShard, cut, whole_of
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.transports.keys import make_key
from tests.unit.box.listening_box import Box

SIZE = 10_000
SHAPE = BufferShape(SIZE, max_members=4, with_velocity=True)


def soon() -> Deadline:
    return Deadline.after(30.0)


@pytest.mark.parametrize("size", [2, 8, 8_512, 431_080, 65_536 * 6, 60_965_224])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_parts_are_contiguous_and_nearly_equal(size: int, count: int) -> None:
    if size < 2 * count:
        return
    parts = cut(BufferShape(size, 4), count)
    assert [whole_of(parts).num_elements, len(parts)] == [size, count]
    sizes = [part.num_elements for part in parts]
    assert len(set(sizes[:-1])) <= 1  # so a part's place is its number times a size
    assert len({part.chunk_elements for part in parts}) == 1
    assert parts[0].chunk_elements <= 65_536
    chunks = -(-sizes[0] // parts[0].chunk_elements)
    assert 0 <= sizes[0] - sizes[-1] < max(16 * chunks * count, 2)
    assert sizes[0] % parts[0].chunk_elements == 0 or count == 1


@pytest.mark.parametrize(("size", "count"), [(1, 2), (5, 4)])
def test_no_part_is_empty(size: int, count: int) -> None:
    with pytest.raises(InputError, match=f"{size} elements cannot be cut over {count} boxes; give fewer"):
        cut(BufferShape(size), count)


def test_boxes_by_name_and_address(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    make_key(key)
    here, there = Endpoint("default", None, None), Endpoint(None, ("host0", 4711), key)
    assert parse_endpoints("default", None) == Endpoints((here,))
    assert parse_endpoints("default,host0:4711", key) == Endpoints((here, there))
    assert parse_endpoints("host0:4711,default", key).is_far
    assert not parse_endpoints("default,host0:4711", key).is_far
    for text, message in [
        ("a,b,a", "--box a,b,a: names a twice"),
        ("a,", "give letters, digits"),
        ("a,host:4711", "wants its key"),
        (",".join(f"a{number}" for number in range(65)), "65 boxes; a center is in at most 64"),
    ]:
        with pytest.raises(InputError, match=message):
            parse_endpoints(text, None)
    with pytest.raises(InputError, match="is one of this host"):
        parse_endpoints("a,b", key)


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[list[Box]]:
    key_file = tmp_path / "box.pem"
    make_key(key_file)
    with ExitStack() as stack:
        made = []
        for _ in range(3):
            made.append(Box(key_file))
            stack.callback(made[-1].close)
        yield made


@pytest.fixture
def places(boxes: list[Box]) -> Endpoints:
    """Two boxes that are far, and one that is near between them."""
    return Endpoints(tuple(box.places[kind] for box, kind in zip(boxes, ("remote", "local", "remote"), strict=True)))


def make(places: Endpoints, name: str = "c", *, goes_on: bool = False) -> Endpoint | None:
    return create_shards(places, name, SHAPE, "rank 0", soon(), goes_on=goes_on)


def test_a_seat_at_parts_is_one_at_a_whole(places: Endpoints) -> None:
    assert make(places) is None
    with take_shards(places, "c", "rank 0", soon(), 2) as seat:
        assert (seat.shape.num_elements, seat.shape.with_velocity, seat.member.index) == (SIZE, True, 2)
        values = np.arange(SIZE, dtype=np.float32)
        seat.center.write(values, soon())
        seat.center.write_velocity(-values, soon())
        weights, velocity = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
        seat.center.exchange(1, weights, 0.5, soon())
        push = seat.center.accumulate_in_background(2, values)
        push.wait(soon())
        assert (push.versions == 2).all()
        found = np.empty_like(values)
        assert (seat.center.read(found, soon()) == 2).all()
        seat.center.read_velocity(velocity, soon())
        assert (weights == values / 2).all()
        assert (found == values / 2 + values).all()
        assert (velocity == -values).all()
        seat.board.set_word(1, 5)
        assert (seat.board.claim_word(2, 6), seat.board.word(1)) == (6, 5)
        seat.board.post(seat.member, MemberProgress(steps=7))
    looks = [look_at(place, "c", "rank 0", soon()) for place in places.boxes]
    assert [str(look.part) for look in looks] == ["part 1 of 3", "part 2 of 3", "part 3 of 3"]
    assert [[(row.member.index, row.progress.steps) for row in look.rows if row.member.index] for look in looks] == [
        [(2, 7)]
    ] * 3
    drop_shards(places, "c", "rank 0", soon())
    assert [buffer_names(place, "rank 0", soon()) for place in places.boxes] == [[], [], []]


def test_what_is_made_twice_or_in_part(places: Endpoints) -> None:
    """Nothing is left of what could not be made; an earlier try's parts are taken on."""
    first, middle, last = places.boxes
    create_buffer(middle, "c", SHAPE, "other", soon())
    with pytest.raises(InputError, match=r"rank 0: .*exists already with another shape"):
        make(places)
    create_buffer(first, "d", cut(SHAPE, 3)[0], "other", soon())
    assert make(places, "d") == first
    assert [buffer_names(place, "rank 0", soon()) for place in (first, last)] == [["d"], []]
    assert make(places, "d", goes_on=True) is None
    assert make(places, "d", goes_on=True) is None
    take_shards(places, "d", "rank 0", soon()).close()
    drop_shards(Endpoints((middle,)), "d", "rank 0", soon())
    with pytest.raises(InputError, match="no buffer 'd'"):
        drop_shards(places, "d", "rank 0", soon())
    assert buffer_names(last, "rank 0", soon()) == []


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_buffer_in_use_is_not_taken_for_a_part_of_an_earlier_try(places: Endpoints, *, is_changed: bool) -> None:
    *_, last = places.boxes
    piece = cut(SHAPE, 3)[2]
    create_buffer(last, "c", piece, "other", soon())
    with take_seat(last, "c", "other", soon()) as seat:
        values = np.ones(piece.num_elements, np.float32)
        if is_changed:
            seat.center.accumulate(1, values, soon())
        else:
            seat.center.write(values, soon())
    with pytest.raises(InputError, match=f"rank 0: buffer 'c' of {last} is a whole center, and not part 3 of 3"):
        make(places, goes_on=True)
    assert look_at(last, "c", "rank 0", soon()).part is None
    create_buffer(last, "d", piece, "other", soon())
    with take_seat(last, "d", "other", soon()) as seat:
        CenterShard(0, 3, 1).say(seat.board)
    with pytest.raises(InputError, match="is part 1 of 3, and not part 3 of 3"):
        make(places, "d", goes_on=True)


def test_parts_go_when_the_time_for_others_is_over(places: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, last = places.boxes

    def slow(endpoint: Endpoint, name: str, shape: BufferShape, who: str, deadline: Deadline) -> bool:
        if endpoint == last:
            return create_buffer(endpoint, name, shape, who, deadline)
        assert not polled(lambda: False, deadline, 0.01)
        raise DeadlineExceeded("the box does not answer")

    monkeypatch.setattr(samovar.box.endpoints, "create_buffer", slow)
    with pytest.raises(DeadlineExceeded):
        create_shards(places, "c", SHAPE, "rank 0", Deadline.after(1.0), goes_on=True)
    assert buffer_names(last, "rank 0", soon()) == []


def test_boxes_that_do_not_belong_together(places: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samovar.box.endpoints, "_PATIENCE_S", 0.1)
    first, middle, last = places.boxes
    for name, among in (("c", places), ("e", Endpoints((first, middle))), ("e", Endpoints((last,)))):
        assert make(among, name) is None
    drop_shards(Endpoints((middle,)), "e", "rank 0", soon())
    assert make(Endpoints((last, middle)), "f") is None
    assert make(Endpoints((first,)), "f") is None
    for boxes, name, message in [
        (
            (first,),
            "c",
            f"buffer 'c' of {first} is part 1 of 3 of a center, and no whole center; give --box the 3 boxes",
        ),
        ((first, middle), "c", "is part 1 of 3 of a center, and not part 1 of 2"),
        ((first, last, middle), "c", f"buffer 'c' of {last} is part 3 of 3 of a center, and not part 2 of 3"),
        ((first, middle), "e", f"{middle}: no buffer 'e'; there are: c, f"),
        ((last, first), "f", f"buffer 'f' of {first} is a whole center, and not part 2 of 2"),
    ]:
        with pytest.raises(InputError) as caught:
            take_shards(Endpoints(boxes), name, "rank 1", Deadline.after(30))
        assert message in str(caught.value)
        assert str(caught.value).startswith("rank 1: ")
    rows = [look_at(place, "c", "rank 1", soon()).rows for place in places.boxes]
    assert not any(row.is_alive for each in rows for row in each)  # who was refused has left


def test_parts_of_two_centers(places: Endpoints) -> None:
    first, middle, _ = places.boxes
    pair = Endpoints((first, middle))
    make(pair)
    drop_shards(Endpoints((middle,)), "c", "rank 0", soon())
    create_buffer(middle, "c", cut(SHAPE, 2)[1], "other", soon())
    with take_seat(middle, "c", "other", soon()) as seat:
        CenterShard(1, 2, 123).say(seat.board)
    with pytest.raises(InputError, match=f"of {middle} is part 2 of 2 of another center than the box at .* has"):
        take_shards(pair, "c", "rank 1", soon())
