"""The log of `samovar caffe`, read by a reader of Caffe's logs."""

import io
from dataclasses import replace
from datetime import datetime

import pytest

from samovar.report import records
from samovar.report.caffe_log import CaffeLog
from samovar.report.records import Notice, Record, SnapshotWritten
from tests.multiproc.caffe_log import parse_log

from .examples import (
    FINISHED,
    ITERATED,
    LAST_LOSS,
    SECOND_TESTED,
    STARTED,
    TESTED,
    TESTED_BATCH,
    TIMED,
    VALUED,
)


def log_of(*records: Record, command: str = "train") -> str:
    stream = io.StringIO()
    log = CaffeLog(stream, command, now=lambda: datetime(2026, 11, 21, 0, 12, 34, 123456))
    for record in records:
        log.show(record)
    return stream.getvalue()


def text_of(*records: Record, command: str = "train") -> list[str]:
    return [line.partition("] ")[2] for line in log_of(*records, command=command).splitlines()]


def test_the_head_is_glogs() -> None:
    (line,) = log_of(LAST_LOSS).splitlines()
    assert line.startswith("I1121 00:12:34.123456 ")
    assert line.endswith(" solver.cpp:327] Iteration 600, loss = 0.0123456")
    assert log_of(Notice(level="warning", text="x")).startswith("W1121 ")


def test_a_run() -> None:
    parsed = parse_log(log_of(STARTED, ITERATED, TESTED, SECOND_TESTED, FINISHED))
    outputs = {"aux": 0.5, "loss": 0.25, "each": 0.0}  # both values of `each` under its name, as Caffe does it
    assert parsed.train == [{"NumIters": 20, "Seconds": 0.0, "LearningRate": 0.01, **outputs}]
    assert parsed.smoothed == {20: 0.31}
    assert parsed.test == [
        {"NumIters": 500, "Seconds": 0.0, "net": 0, "accuracy": 0.981, "loss": 0.053},
        {"NumIters": 500, "Seconds": 0.0, "net": 1, "top5": 0.99},
    ]


def test_lines_of_an_iteration() -> None:
    assert text_of(ITERATED) == [
        "Iteration 20 (5 iter/s, 2s/10 iters), loss = 0.31",
        "    Train net output #0: aux = 0.5 (* 0.3 = 0.15 loss)",
        "    Train net output #1: loss = 0.25 (* 1 = 0.25 loss)",
        "    Train net output #2: each = 1",
        "    Train net output #3: each = 0",
        "Iteration 20, lr = 0.01",
    ]


def test_a_loss_without_a_top_is_not_an_output() -> None:
    outputs = {"(automatic)": 0.5, "(automatic) 2": 0.25, "side": 1.0}
    told = replace(ITERATED, outputs=outputs)
    assert [text for text in text_of(told) if "output" in text] == ["    Train net output #0: side = 1"]
    tested = replace(TESTED, outputs=outputs)
    assert text_of(tested)[1:] == ["    Test net output #0: side = 1"]
    assert text_of(replace(TESTED_BATCH, outputs=outputs), command="test") == ["Batch 2, side = 1"]
    assert text_of(tested, command="test")[1:] == ["side = 1"]


def test_values_of_a_pass() -> None:
    """Caffe shows the sums over the net as an error; those of a test come behind its head."""
    top, every = (line.partition(" ")[0][:1] + line.partition(" net.cpp")[2] for line in log_of(VALUED).splitlines())
    assert top == "I:593]     [Forward] Layer conv1, top blob conv1 data: 1.32768"
    assert every == "E:721]     [Backward] All net params (data, diff): L1 norm = (384.67, 101.031)"
    test = replace(VALUED, is_test=True)
    texts = text_of(test, test, TESTED, TESTED)
    assert [text.split(",")[0].strip() for text in texts] == [
        "Iteration 500",
        *("[Forward] Layer conv1", "[Backward] All net params (data") * 2,
        *("Test net output #0: accuracy = 0.981", "Test net output #1: loss = 0.053"),
        *("Iteration 500", "Test net output #0: accuracy = 0.981", "Test net output #1: loss = 0.053"),
    ]
    assert len(text_of(test, command="test")) == 2


def test_the_loss_of_a_test_is_told_where_it_was_asked_for() -> None:
    assert text_of(SECOND_TESTED)[:2] == ["Iteration 500, Testing net (#1)", "Test loss: 0.25"]
    assert "Test loss" not in log_of(TESTED)


@pytest.mark.parametrize(("suffix", "form"), [("", "binary proto file"), (".h5", "HDF5 file")], ids=["binary", "hdf5"])
def test_both_files_of_a_snapshot(suffix: str, form: str) -> None:
    path = f"a.caffemodels/net_iter_5.caffemodel{suffix}"
    assert text_of(SnapshotWritten(step=5, path=path)) == [
        f"Snapshotting to {form} {path}",
        f"Snapshotting solver state to {form} a.caffemodels/net_iter_5.solverstate{suffix}",
    ]


def test_the_test_command() -> None:
    tested = records.Tested(step=0, outputs={"accuracy": 0.5, "loss": 1.25}, loss=1.25, loss_weights={"loss": 1.0})
    assert text_of(TESTED_BATCH, tested, command="test") == [
        "Batch 2, accuracy = 0.5",
        "Batch 2, each = 1e-07",
        "Loss: 1.25",
        "accuracy = 0.5",
        "loss = 1.25 (* 1 = 1.25 loss)",
    ]


def test_times() -> None:
    lines = text_of(TIMED, command="time")
    assert lines[3:6] == [
        "*** Benchmark begins ***",
        "Testing for 2 iterations.",
        "Iteration: 1 forward-backward time: 10.5 ms.",
    ]
    assert "     conv1\tbackward: 4.5 ms." in lines
    assert lines[-5:] == [
        "Average Forward pass: 3.5 ms.",
        "Average Backward pass: 6.5 ms.",
        "Average Forward-Backward: 10 ms.",
        "Total Time: 20 ms.",
        "*** Benchmark ends ***",
    ]
