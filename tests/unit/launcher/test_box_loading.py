"""A center to files and back, where the number of boxes is another then: the same elements, velocity and words."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from samovar.box.buffers import BufferShape
from samovar.box.endpoints import Endpoints, create_shards, take_shards
from samovar.box.joining import take_seat
from samovar.box.shards import CenterShard
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, NotFinite
from samovar.launcher.box_files import Content, load, saved
from samovar.strategies.box_terms import BoxWord, Readiness, Terms
from samovar.transports.keys import make_key
from tests.unit.box.listening_box import Box

SIZE = 1000
SHAPE = BufferShape(SIZE, max_members=3, with_velocity=True, chunk_elements=64)
VALUES = np.arange(SIZE, dtype=np.float32)
WORDS = {0: 1, 1: 400, 3: 2**63, 14: 9}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Box]]:
    key = tmp_path_factory.mktemp("keys") / "key.pem"
    make_key(key)
    boxes = [Box(key) for _ in range(3)]
    yield boxes
    for box in boxes:
        box.close()


@pytest.fixture
def boxes(served: list[Box]) -> Iterator[list[Box]]:
    """Empty at the beginning."""
    yield served
    for box in served:
        for name in box.server.buffers.names():
            box.server.buffers.drop(name)


def soon() -> Deadline:
    return Deadline.after(30.0)


def places(boxes: Sequence[Box], kind: str = "local") -> Endpoints:
    return Endpoints(tuple(box.places[kind] for box in boxes))


def filled(boxes: Sequence[Box], name: str = "c") -> Endpoints:
    """A center of VALUES, with twice that as velocity, and WORDS on its board."""
    where = places(boxes)
    assert create_shards(where, name, SHAPE, "test", soon()) is None
    with take_shards(where, name, "test", soon()) as seat:
        seat.center.write(VALUES, soon())
        seat.center.write_velocity(2 * VALUES, soon())
        for index, value in WORDS.items():
            seat.board.set_word(index, value)
    return where


def assert_filled(where: Endpoints, name: str = "c") -> None:
    got = np.empty_like(VALUES)
    with take_shards(where, name, "test", soon()) as seat:
        seat.center.read(got, soon())
        assert (got == VALUES).all()
        seat.center.read_velocity(got, soon())
        assert (got == 2 * VALUES).all()
        assert {index: seat.board.word(index) for index in WORDS} == WORDS


def part_files(boxes: Sequence[Box], folder: Path) -> list[Path]:
    """The content of each box, in its own file."""
    files = [folder / f"{number}-of-{len(boxes)}.safetensors" for number in range(len(boxes))]
    for box, file in zip(boxes, files, strict=True):
        saved(places([box]), "c").write(file)
    return files


@pytest.mark.parametrize(
    ("before", "after", "kind"), [(1, 2, "local"), (2, 1, "local"), (2, 3, "remote"), (3, 2, "local")]
)
def test_a_whole_file_fits_any_number_of_boxes(
    boxes: list[Box], tmp_path: Path, before: int, after: int, kind: str
) -> None:
    filled(boxes[:before])
    content = saved(places(boxes[:before], kind), "c")
    content.write(tmp_path / "file")
    assert (content.part, str(content)) == (None, "1,000 elements")
    assert len(content.arrays["versions"]) == -(-SIZE // content.shape.chunk_elements)
    where, read = places(boxes[-after:], kind), Content.read_all([tmp_path / "file"])
    assert load(read, where, "again")
    assert not load(read, where, "again"), "it is there now, and nobody at work"
    assert_filled(where, "again")


def test_the_parts_of_two_boxes_come_to_one_and_to_three(boxes: list[Box], tmp_path: Path) -> None:
    filled(boxes[:2])
    files = part_files(boxes[:2], tmp_path)
    for count, given in ((1, files), (3, files[::-1])):
        where = places(boxes[:count])
        assert load(Content.read_all(given), where, f"again-{count}")
        assert_filled(where, f"again-{count}")


def test_a_part_comes_back_to_its_box(boxes: list[Box], tmp_path: Path) -> None:
    where = filled(boxes[:2])
    files = part_files(boxes[:2], tmp_path)
    boxes[1].server.buffers.drop("c")
    content = Content.read_all(files[1:])
    assert str(content).startswith("part 2 of 2, ")
    assert load(content, places(boxes[1:2]), "c")
    assert_filled(where)
    assert CenterShard.on(boxes[1].board("c")) == content.part


def test_what_cannot_be_put_together(boxes: list[Box], tmp_path: Path) -> None:
    filled(boxes)
    files = part_files(boxes, tmp_path)
    filled(boxes[:1], "whole")
    whole = tmp_path / "whole.safetensors"
    saved(places(boxes[:1]), "whole").write(whole)
    for box in boxes:
        box.server.buffers.drop("c")
    filled(boxes)
    (other,) = part_files(boxes[:1], tmp_path)
    for given, message in [
        (files[:2], "part 3 of 3 is missing; give all parts"),
        ([files[0], files[0]], "is given twice"),
        ([files[1], other], f"{other} is part 1 of 3 of a different center than {files[1]}"),
        ([whole, files[1]], f"{whole} is a whole center, not a part of one"),
        ([files[1], whole], f"{whole} is a whole center, not a part of one"),
    ]:
        with pytest.raises(InputError, match=message):
            Content.read_all(given)
    with pytest.raises(InputError, match="b is part 1 of 3, and so is a; give each part once"):
        Content.joined({"a": Content.read(files[0]), "b": Content.read(files[0])})


def test_what_does_not_fit_is_refused(boxes: list[Box], tmp_path: Path) -> None:
    filled(boxes[:2])
    files, where = part_files(boxes[:2], tmp_path), places(boxes[:2])
    whole = saved(where, "c")
    part = Content.read(files[0])
    filled(boxes[2:])
    alike = Content(part.shape, {name: part.arrays[name] for name in ("center", "velocity")})
    with take_shards(where, "c", "test", soon()), pytest.raises(InputError, match="members 0 are at work there"):
        load(whole, where, "c")
    for content, to, message in [
        (part, boxes[:2], "part 1 of 2 of a center goes into one box, not 2; give the files of all 2 parts"),
        (part, boxes[2:], "has 1,000 elements with velocity, and the file "),
        (alike, boxes[:1], "is part 1 of 2 of a center, and the file a whole center; drop it first"),
        (whole, boxes, "has 2,000 elements with velocity, and the file 1,000 elements"),
        (whole, boxes[1::-1], "is part 2 of 2 of a center, and not part 1 of 2"),
    ]:
        with pytest.raises(InputError, match=message):
            load(content, places(to), "c")
    boxes[1].server.buffers.drop("c")
    with pytest.raises(InputError, match="has a buffer 'c', the others have none; drop it first"):
        load(whole, where, "c")
    assert "c" not in boxes[1].server.buffers.names()


def test_a_file_with_values_that_are_not_finite_makes_no_buffer(boxes: list[Box], tmp_path: Path) -> None:
    (tmp_path / "nan").write_bytes(safetensors.numpy.save({"center": np.array([1, np.nan], np.float32)}))
    with pytest.raises(InputError, match="nan: holds values that are not finite; give an earlier snapshot"):
        load(Content.read(tmp_path / "nan"), places(boxes[:1]), "c")
    assert boxes[0].server.buffers.names() == []


@pytest.mark.parametrize("first", [2.0, np.nan])
def test_a_shape_of_another_type_is_refused(tmp_path: Path, first: float) -> None:
    shape = np.array([first, 64, 0, 1, 512], np.float64)
    (tmp_path / "file").write_bytes(safetensors.numpy.save({"center": VALUES[:2], "shape": shape}))
    with pytest.raises(InputError, match=r"its `shape` is not that of its|num_elements is 1 to .*, not '2\.0'"):
        Content.read(tmp_path / "file")


def test_weights_alone_take_a_run_back_to_its_first_step_on_its_terms(boxes: list[Box]) -> None:
    where = filled(boxes[:1])
    arrays = saved(where, "c").arrays
    assert not load(Content(SHAPE, {name: arrays[name] for name in ("center", "velocity")}), where, "c")
    with take_shards(where, "c", "test", soon()) as seat:
        assert {index: seat.board.word(index) for index in WORDS} == {**WORDS, BoxWord.STEPS: 0}
        assert seat.board.word(BoxWord.GOAL) == 0


@pytest.mark.parametrize("names", [("center", "velocity"), ("center", "velocity", "words")])
def test_those_who_wait_for_a_buffer_come_in_when_all_of_it_is_there(
    boxes: list[Box], monkeypatch: pytest.MonkeyPatch, names: Sequence[str]
) -> None:
    where = filled(boxes[:1])
    arrays, said = saved(where, "c").arrays, list[int]()
    with take_shards(where, "c", "test", soon()) as seat:
        set_word = seat.board.set_word
        monkeypatch.setattr(seat.board, "set_word", lambda index, value: (said.append(index), set_word(index, value)))
        Content(SHAPE, {name: arrays[name] for name in names}).fill(seat, soon())
    assert said[0] == said[-1] == BoxWord.IS_READY
    assert len(said) > 2


def test_nobody_starts_from_a_buffer_that_was_filled_by_half(boxes: list[Box]) -> None:
    where = filled(boxes[:1])
    half = Content(SHAPE, {"center": -VALUES, "velocity": np.full_like(VALUES, np.nan)})
    with take_shards(where, "c", "test", soon()) as seat:
        with pytest.raises(NotFinite):
            half.fill(seat, soon())
        assert seat.board.word(BoxWord.IS_READY) == 0
        saved(where, "c").fill(seat, soon())  # what is half there is saved so
        assert seat.board.word(BoxWord.IS_READY) == 0
    assert not load(Content(SHAPE, {"center": VALUES, "velocity": VALUES}), where, "c")
    assert boxes[0].board("c").word(BoxWord.IS_READY) == Readiness.FILLED


def test_a_buffer_that_was_filled_from_a_center_alone_is_not_waited_for(boxes: list[Box], tmp_path: Path) -> None:
    """Who joins it is told at once that it is nobody's run."""
    (tmp_path / "center").write_bytes(safetensors.numpy.save({"center": VALUES}))
    where = places(boxes[:1])
    assert load(Content.read(tmp_path / "center"), where, "c")
    with take_seat(where.boxes[0], "c", "test", soon()) as seat:
        assert seat.board.word(BoxWord.IS_READY) == Readiness.FILLED
        with pytest.raises(InputError, match="was not made by `samovar train`"):
            Terms("shm-easgd", "net").require_same(seat.board, "it")
