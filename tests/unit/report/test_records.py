"""Records survive the pipe; other lines are recognized."""

import json
import math
import os
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.core.errors import DeadlineExceeded
from samovar.report.records import MAX_LINE_BYTES, Notice, Progress, RecordReader, RecordWriter, from_json, to_json

from .examples import EVERY_RECORD, FINISHED, PROGRESS, STARTED, TESTED, TIMED


@pytest.mark.parametrize("record", EVERY_RECORD, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_from_json(record) -> None:
    assert from_json(json.loads(json.dumps(to_json(record), allow_nan=False))) == record


def test_the_wire_form_is_readable() -> None:
    assert to_json(TESTED) == {
        "record": "tested",
        "step": 500,
        "outputs": {"accuracy": 0.981, "loss": 0.053},
        "net": 0,
        "loss": None,
        "loss_weights": {},
    }


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_comes_back(loss: float) -> None:
    text = json.dumps(to_json(replace(PROGRESS, loss=loss)), allow_nan=False)
    assert repr(from_json(json.loads(text)).loss) == repr(loss)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"record": "gossip"}, "record 'gossip' is none of failed, finished, iterated"),
        ({"record": ["progress"]}, "is none of"),
        ({"step": "20"}, "Progress.step is '20', not int"),
        ({"step": True}, "Progress.step is True, not int"),
        ({"loss": "low"}, "Progress.loss is 'low', not float"),
        ({"loss": None}, "Progress.loss is None, not float"),
        ({"extra": 1}, "Progress has unknown fields: extra$"),
        ({"step": "x" * 1000}, r"'x{10,60}\.\.\., not int"),
    ],
)
def test_a_field_that_does_not_fit_is_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        from_json({**to_json(PROGRESS), **change})


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("worker_cpus", [[0], ["1"]], r"worker_cpus\[1\]\[0\] is '1', not int"),
        ("worker_cpus", "01", "worker_cpus is '01', not an array"),
        ("run_folder", 3, "run_folder is 3, not str"),
    ],
)
def test_nested_fields_are_checked(field: str, value: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        from_json({**to_json(STARTED), field: value})


def test_the_result_inside_a_record_is_checked() -> None:
    data = to_json(FINISHED)
    del data["result"]["steps"]
    with pytest.raises(ValueError, match=r"RunResult lacks steps$"):
        from_json(data)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValueError, match="lacks eta_s, learning_rate, loss, "):
        from_json({"record": "progress", "step": 1})


class Pipe:
    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def __enter__(self) -> "Pipe":
        return self

    def __exit__(self, *_: object) -> None:
        self.close_write_end()
        os.close(self.read_end)

    def close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
        self.write_end = -1

    def read_all(self, reader: RecordReader, piece_bytes: int) -> list[Any]:
        """All records until the writing end is closed."""
        records = []
        while data := os.read(self.read_end, piece_bytes):
            records += reader.feed(data)
        return records


@pytest.mark.parametrize("piece_bytes", [1, 7, 65536])
def test_records_cross_a_pipe_in_pieces_of_any_size(piece_bytes: int) -> None:
    with Pipe() as pipe:
        writer = RecordWriter(pipe.write_end)
        for record in EVERY_RECORD:
            writer.write(record)
        pipe.close_write_end()
        assert pipe.read_all(RecordReader(), piece_bytes) == EVERY_RECORD


def test_long_records_of_several_threads_stay_whole() -> None:
    """Each line is longer than the pipe holds, so that every write is done in many pieces."""
    texts = [letter * 200_000 for letter in "abcd"]
    with Pipe() as pipe:
        writer = RecordWriter(pipe.write_end)
        notices = [Notice(level="info", text=text) for text in texts]
        threads = [threading.Thread(target=writer.write, args=(notice,)) for notice in notices]
        closer = threading.Thread(target=lambda: ([thread.join() for thread in threads], pipe.close_write_end()))
        for thread in (*threads, closer):
            thread.start()
        received = pipe.read_all(RecordReader(), 65536)
        closer.join()
    assert sorted(record.text for record in received) == texts


def test_the_times_of_many_passes_come_whole() -> None:
    """`samovar time --iterations 100000`, which may have taken an hour."""
    timed = replace(TIMED, iteration_ms=tuple(10.0 + 1 / number for number in range(1, 100_001)))
    with Pipe() as pipe:
        writing = threading.Thread(target=lambda: (RecordWriter(pipe.write_end).write(timed), pipe.close_write_end()))
        writing.start()
        received = pipe.read_all(RecordReader(), 65536)
        writing.join()
    assert received == [timed]


def test_a_launcher_that_does_not_read_ends_the_wait_by_its_deadline() -> None:
    with Pipe() as pipe:
        writer = RecordWriter(pipe.write_end, timeout_s=0.05)
        with pytest.raises(DeadlineExceeded, match=r"no record within 0\.05 s"):
            writer.write(Notice(level="info", text="x" * 500_000))


def test_a_stopped_launcher_costs_progress_and_no_other_record() -> None:
    with Pipe() as pipe:
        writer = RecordWriter(pipe.write_end, timeout_s=0.05)
        for _ in range(10_000):
            writer.write(PROGRESS)
        writer.write(TESTED)
        pipe.close_write_end()
        received = pipe.read_all(RecordReader(), 65536)
    assert received == [*[PROGRESS] * (len(received) - 1), TESTED]
    assert 1 < len(received) < 10_000


def test_a_launcher_that_is_gone_is_a_broken_pipe() -> None:
    with Pipe() as pipe:
        os.close(pipe.read_end)
        with pytest.raises(BrokenPipeError):
            RecordWriter(pipe.write_end).write(PROGRESS)
        pipe.read_end = os.open(os.devnull, os.O_RDONLY)


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello",
        b"[1, 2]",
        b'{"record": "progress"}',
        b"\xff\xfe",
        b'"',
        b"[" * 100_000,
        b"NaN",
        json.dumps(to_json(PROGRESS) | {"loss": 10**400}).encode(),
    ],
)
def test_a_garbage_line_becomes_a_warning_and_the_next_record_is_read(garbage: bytes) -> None:
    reader = RecordReader()
    notice, record = reader.feed(garbage + b"\n" + json.dumps(to_json(PROGRESS)).encode() + b"\n")
    assert isinstance(notice, Notice)
    assert notice.level == "warning"
    assert "a rank must write nothing else to this pipe" in notice.text
    assert len(notice.text) < 500
    assert record == PROGRESS


@pytest.mark.parametrize("piece_bytes", [1000, 65536, 10**7])
def test_a_line_over_the_limit_is_refused_and_not_kept(piece_bytes: int) -> None:
    reader = RecordReader()
    data = b"x" * (MAX_LINE_BYTES + 1) + b"\n" + json.dumps(to_json(PROGRESS)).encode() + b"\n"
    records = []
    for start in range(0, len(data), piece_bytes):
        records += reader.feed(data[start : start + piece_bytes])
    assert [type(record) for record in records] == [Notice, Progress]
    assert "a line of over 8,388,608 bytes is not a record: 'xxxx" in records[0].text


def test_a_line_of_exactly_the_limit_is_read() -> None:
    def line(text: str) -> bytes:
        return json.dumps(to_json(Notice(level="info", text=text))).encode()

    text = "x" * (MAX_LINE_BYTES - len(line("")))
    assert RecordReader().feed(line(text) + b"\n") == [Notice(level="info", text=text)]


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_no_bytes_raise_anything(pieces: list[bytes]) -> None:
    reader = RecordReader()
    for record in [record for piece in pieces for record in reader.feed(piece)]:
        assert isinstance(record, Notice)
