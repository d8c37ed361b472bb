"""`samovar.box.connect`: named buffers of a served box, here and over the network, in one box and over two."""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import samovar
from samovar.box.joining import parse_endpoint, take_seat
from samovar.box.local import BoxServer
from samovar.cli.box import _described
from samovar.core.clock import Deadline
from samovar.transports.keys import make_key
from tests.unit.box.listening_box import Box as ServedBox

SIZE = 100_000  # two chunks


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServedBox]]:
    key_file = tmp_path_factory.mktemp("key") / "key.pem"
    make_key(key_file)
    with ExitStack() as stack:
        boxes = [ServedBox(key_file) for _ in range(2)]
        for each in boxes:
            stack.callback(each.close)
        yield boxes


@pytest.fixture(params=["here", "there", "both"])
def box(request: pytest.FixtureRequest, served: list[ServedBox]) -> Iterator[samovar.box.Box]:
    far = [f"{each.address.address[0]}:{each.address.address[1]}" for each in served]
    arguments: dict[str, dict[str, Any]] = {
        "here": {"box": served[0].name},
        "there": {"box": far[0], "key_file": served[0].key_file},
        "both": {"box": [served[0].name, far[1]], "key_file": str(served[0].key_file)},
    }
    connected = samovar.box.connect(**arguments[request.param])
    yield connected
    for name in connected.names():
        connected.drop(name)


def test_every_verb(box: samovar.box.Box) -> None:
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    with box.buffer("c", SIZE) as buffer:
        assert not buffer.get().any()
        buffer.put(x)
        buffer.accumulate(2 * x)
        buffer.accumulate(torch.ones(10, SIZE // 10, requires_grad=True))
        np.testing.assert_allclose(buffer.get(), 3 * x + 1, rtol=1e-6)
        assert (buffer.versions == 2).all()
        weights = torch.zeros(SIZE)
        buffer.exchange(weights, 0.25)
        np.testing.assert_allclose(weights, 0.25 * (3 * x + 1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(buffer.get(into=np.empty((2, SIZE // 2), np.float32)), 0.75 * (3 * x + 1), rtol=1e-5)
    assert box.names() == ["c"]
    with box.buffer("c") as again:
        assert again.num_elements == SIZE
        np.testing.assert_allclose(again.get(), 0.75 * (3 * x + 1), rtol=1e-5, atol=1e-6)


def test_momentum_needs_a_velocity(box: samovar.box.Box) -> None:
    ones = np.ones(SIZE, np.float32)
    with box.buffer("with", SIZE, with_velocity=True) as buffer:
        for _ in range(2):
            buffer.accumulate(ones, momentum=0.5)
        assert set(buffer.get()) == {2.5}
    with box.buffer("without", SIZE) as buffer, pytest.raises(samovar.InputError, match="momentum 0\\.5 needs"):
        buffer.accumulate(ones, momentum=0.5)


def test_who_only_looks_is_no_member(served: list[ServedBox]) -> None:
    box = samovar.box.connect(served[0].name)
    size: Any = np.prod((5, 1))  # an integer of NumPy's
    with box.buffer("c", size) as buffer:
        buffer.get()
        assert not served[0].board("c").rows()
        buffer.put(np.ones(5))
        assert [row.is_alive for row in served[0].board("c").rows()] == [True]
    assert served[0].board("c").row(0).process_id == 0
    box.drop("c")


def test_a_buffer_that_was_made_again_with_another_size_is_left_alone(box: samovar.box.Box) -> None:
    """Whole chunks of it are as many numbers as the old one has."""
    with box.buffer("c", 65_536) as buffer:
        box.drop("c")
        with box.buffer("c", 4 * 65_536) as other:
            with pytest.raises(samovar.InputError, match="buffer 'c' was made again, with another size; open it again"):
                buffer.accumulate(np.ones(65_536))
            assert not other.get().any()


MISTAKES: dict[str, tuple[Callable[[samovar.box.Box, samovar.box.BoxBuffer], object], str]] = {
    "no such buffer": (lambda box, _c: box.buffer("d"), "no buffer 'd'; there are: c. Give num_elements to make it"),
    "another size": (lambda box, _c: box.buffer("c", 4), "has 5 elements, and num_elements is 4"),
    "no velocity": (
        lambda box, _c: box.buffer("c", 5, with_velocity=True),
        "has no velocity, and with_velocity is True; take another name, or drop it first",
    ),
    "no size": (lambda box, _c: box.buffer("c", cast("Any", "5")), "num_elements is '5'; give a whole number"),
    "a size that is a truth": (lambda box, _c: box.buffer("d", True), "num_elements is True; give a whole number"),
    "a velocity that is a number": (
        lambda box, _c: box.buffer("d", 5, with_velocity=cast("Any", 1)),
        "with_velocity is 1; give True or False",
    ),
    "a bad name": (lambda box, _c: box.buffer("a/b", 4), "cannot be called 'a/b'"),
    "a number for a name": (lambda box, _c: box.buffer(cast("Any", 5), 3), "cannot be called 5"),
    "no name": (lambda box, _c: box.buffer(cast("Any", None), 3), "cannot be called None"),
    "a name that is no text": (lambda box, _c: box.buffer("\udc80", 3), r"cannot be called '\\udc80'"),
    "to drop a number": (lambda box, _c: box.drop(cast("Any", 5)), "cannot be called 5"),
    "to drop a name that is no text": (lambda box, _c: box.drop("\udc80"), r"cannot be called '\\udc80'"),
    "no elements": (lambda box, _c: box.buffer("d", 0), "num_elements is 0; give a whole number"),
    "a rate that is none": (lambda _box, c: c.exchange(np.ones(5, np.float32), float("nan")), "its rate is nan"),
    "a rate that no float can be": (lambda _box, c: c.accumulate(np.ones(5), 10**400), "accumulate: its rate is 1000"),
    "no rate": (lambda _box, c: c.accumulate(np.ones(5), cast("Any", None)), "accumulate: its rate is None; give a"),
    "a type of torch's own": (lambda _box, c: c.put(torch.ones(5, dtype=torch.bfloat16)), "of a type that NumPy has"),
    "a short array": (lambda _box, c: c.put([1.0]), "put: got 1 elements, and buffer 'c' has 5"),
    "texts": (lambda _box, c: c.accumulate(["1"] * 5), "accumulate: got values of type <U1; give floats, integers"),
    "complex numbers": (lambda _box, c: c.put(np.ones(5, complex)), "put: got values of type complex128; give floats"),
    "rows of several lengths": (lambda _box, c: c.put([[1.0], [1.0, 2.0]]), "put: setting an array element"),
    "a copy": (lambda _box, c: c.exchange(np.ones(5), 0.5), "exchange: its array is changed in place"),
    "a read-only array": (lambda _box, c: c.get(np.broadcast_to(np.float32(1), 5)), "get: its array is changed"),
    "to drop nothing": (lambda box, _c: box.drop("d"), "no buffer 'd'"),
    "closed": (lambda _box, c: (c.close(), c.close(), c.get()), "get: buffer 'c' was closed"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str, box: samovar.box.Box) -> None:
    call, message = MISTAKES[mistake]
    with box.buffer("c", 5) as buffer, pytest.raises(samovar.InputError, match=message):
        call(box, buffer)
    assert box.names() == ["c"]  # it made nothing


def test_numbers_that_are_not_finite_do_not_come_in(box: samovar.box.Box) -> None:
    x = np.ones(SIZE, np.float32)
    x[-1] = np.nan  # in the last chunk
    with box.buffer("c", SIZE) as buffer:
        for change in (buffer.put, buffer.accumulate, lambda x: buffer.exchange(x, 0.5)):
            with pytest.raises(samovar.NotFinite):
                change(x)
        assert not buffer.get().any()
    assert (x[:-1] == 1).all()


def test_threads_share_a_buffer(box: samovar.box.Box) -> None:
    with box.buffer("c", SIZE) as buffer, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: buffer.accumulate(np.ones(SIZE)), range(20)))
        assert set(buffer.get()) == {20.0}


def test_a_fork_opens_a_buffer_of_its_own(box: samovar.box.Box, monkeypatch: pytest.MonkeyPatch) -> None:
    with box.buffer("c", 5) as buffer:
        buffer.accumulate(np.ones(5))
        with monkeypatch.context() as other:
            other.setattr("samovar.box.client.os.getpid", lambda: 1)
            with pytest.raises(
                samovar.InputError, match="was opened by the process that forked this one; open it again"
            ):
                buffer.accumulate(np.ones(5))
        assert set(buffer.get()) == {1.0}


def test_a_buffer_that_is_forgotten_gives_its_seat_back(box: samovar.box.Box) -> None:
    for _ in range(70):  # of 64 seats
        box.buffer("c", 5).accumulate(np.ones(5))
    with box.buffer("c") as buffer:
        assert set(buffer.get()) == {70.0}


def test_a_fork_that_forgets_a_buffer_leaves_its_seat_to_the_parent(
    served: list[ServedBox], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = samovar.box.connect(served[0].name)
    buffer = box.buffer("c", 5)
    buffer.accumulate(np.ones(5))
    monkeypatch.setattr("samovar.box.client.os.getpid", lambda: 1)
    del buffer
    assert [row.is_alive for row in served[0].board("c").rows()] == [True]
    box.drop("c")


@contextmanager
def serving(name: str) -> Iterator[None]:
    """A box of this host; the block's end is that of the box."""
    server, is_over = BoxServer(name, 20.0), threading.Event()
    thread = threading.Thread(target=server.serve, args=(is_over.is_set,))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        server.close()


def test_nobody_changes_or_reads_what_a_box_had_that_has_ended(served: list[ServedBox]) -> None:
    name, address = f"test-{uuid.uuid4().hex}", served[1].address.address
    boxes = [name, f"{address[0]}:{address[1]}"]
    with ExitStack() as stack:
        with serving(name):
            whole = samovar.box.connect(name).buffer("whole", 5)
            halves = samovar.box.connect(boxes, served[1].key_file).buffer("halves", SIZE)
            reader = samovar.box.connect(name).buffer("whole")
            worker = stack.enter_context(take_seat(parse_endpoint(name, None), "whole", "test", Deadline.after(30.0)))
            for buffer in (whole, halves):
                stack.enter_context(buffer).accumulate(np.ones(buffer.num_elements))
            push = worker.center.accumulate_in_background(1, np.ones(5, np.float32))
        with serving(name):
            x = np.ones(SIZE, np.float32)
            calls: list[Callable[[], object]] = [lambda: push.wait(Deadline.after(30.0)), reader.get, whole.get]
            calls += [lambda: worker.center.exchange(2, x[:5], 0.5, Deadline.after(30.0)), halves.get]
            calls += [lambda: whole.put(x[:5]), lambda: whole.accumulate(x[:5]), lambda: halves.exchange(x, 0.5)]
            for call in calls:
                with pytest.raises(
                    samovar.RankFailed, match=f"^box '{name}' has ended, and this center with it; start"
                ):
                    call()
            assert (x[:5] == 1).all()
            with samovar.box.connect(name).buffer("whole", 5) as again:
                again.accumulate(np.ones(5))
                assert set(again.get()) == {1.0}
    samovar.box.connect(boxes[1], served[1].key_file).drop("halves")


def test_several_programs_make_one_buffer(box: samovar.box.Box) -> None:
    barrier = threading.Barrier(4)

    def make(_number: int) -> int:
        barrier.wait(60)
        with box.buffer("c", SIZE) as buffer:
            return buffer.num_elements

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(make, range(4))) == [SIZE] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"box": "nobody-serves-this"},
            "nobody serves box 'nobody-serves-this'.* `samovar box serve --box nobody",
        ),
        ({"box": "host:99999"}, "^box 'host:99999': give a name, or HOST:PORT"),
        ({"box": "host:4711"}, "wants its key; give key_file FILE"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": None}, "timeout_s is None; give more than 0"),
        ({"timeout_s": "5"}, "timeout_s is '5'; give more than 0"),
        ({"timeout_s": 10**400}, "timeout_s is 1000.*; give more than 0"),
        ({"key_file": b"key.pem"}, "key_file is b'key.pem'; give the path of a file as text"),
        ({"box": Path("nobody-serves-this")}, "nobody serves box 'nobody-serves-this'"),
        ({"box": None}, "nobody serves box 'None'"),
    ],
)
def test_no_box(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(samovar.InputError, match=message):
        samovar.box.connect(**arguments)


def test_each_of_several_boxes_is_looked_for(served: list[ServedBox]) -> None:
    far = f"{served[0].address.address[0]}:{served[0].address.address[1]}"
    with pytest.raises(samovar.InputError, match="nobody serves box 'nobody-serves-this'"):
        samovar.box.connect([far, "nobody-serves-this"], served[0].key_file)
    with pytest.raises(samovar.DeadlineExceeded, match=r"127\.0\.0\.1:1 cannot be reached within"):
        samovar.box.connect([far, "127.0.0.1:1"], served[0].key_file, timeout_s=2.0)  # enough for the first


@pytest.mark.parametrize("place", ["local", "remote"])
def test_a_list_leaves_out_what_is_dropped_meanwhile(served: list[ServedBox], place: str) -> None:
    box, is_over = samovar.box.connect(served[1].name), threading.Event()

    def make_and_drop() -> None:
        for number in count():
            box.buffer(f"passing-{number}", 1).close()
            box.drop(f"passing-{number}")
            if is_over.is_set():
                return

    box.buffer("stays", 1).close()
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(make_and_drop)
        try:
            for _ in range(100):
                assert "stays" in [each["name"] for each in _described(served[1].places[place])]
        finally:
            is_over.set()
        made.result()
    box.drop("stays")


def test_a_box_that_does_not_answer(tmp_path: Path) -> None:
    make_key(tmp_path / "key.pem")
    with pytest.raises(samovar.DeadlineExceeded, match="cannot be reached within"):
        samovar.box.connect("127.0.0.1:1", tmp_path / "key.pem", timeout_s=0.2)
