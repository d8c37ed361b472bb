"""`--trace`: one timeline of all ranks, whole or not at all."""

import gzip
import json
import signal
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.multiproc.command import Command, run, succeed
from tests.multiproc.leftovers import unfinished
from tests.multiproc.nets import write_net, write_solver

SHAPE = ("--workers", 2, "--threads-per-worker", 1)
OVERLAPPING = ("--overlap", "backward", "--bucket", "layer")
LAYERS = ["conv1", "pool1", "conv2", "pool2", "ip1", "relu1", "ip2", "loss"]
STEPS = (3, 4, 5)
BUCKETS = range(8)  # one for each parameter, the last layer's first
ROUNDING_US = 2e-3
SLOW = pytest.mark.slow
Event = dict[str, Any]


class Timeline:
    """A trace.json.gz, read back."""

    def __init__(self, out: Path) -> None:
        with gzip.open(out / "trace.json.gz", "rt") as file:
            self.content = json.load(file)
        self.events: list[Event] = self.content["traceEvents"]
        self.streams = {event["tid"]: event["args"]["name"] for event in self.events if event["name"] == "thread_name"}

    def spans(self, rank: int, stream: str, name: str | None = None) -> list[Event]:
        """In the order of their beginnings."""
        found = [
            event
            for event in self.events
            if event["ph"] == "X" and event["pid"] == rank and self.streams[event["tid"]].startswith(stream)
        ]
        return sorted((e for e in found if name in (None, e["name"])), key=lambda event: event["ts"])

    def rows(self) -> list[list[Event]]:
        """The spans of each thread, as they stand in the file."""
        spans = [event for event in self.events if event["ph"] == "X"]
        by_row = sorted(spans, key=lambda event: event["tid"])
        return [list(row) for _, row in groupby(by_row, key=lambda event: event["tid"])]

    def arrows(self) -> list[tuple[Event, Event]]:
        starts, ends = ({e["id"]: e for e in self.events if e["ph"] == phase} for phase in "sf")
        assert starts.keys() == ends.keys()
        assert len(starts) + len(ends) == sum(event["ph"] in "sf" for event in self.events)
        return [(starts[key], ends[key]) for key in starts]


@pytest.fixture(scope="module")
def overlapping(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> tuple[Timeline, Path]:
    """Of a run whose exchanges begin inside the backward pass, and its folder."""
    return traced(make_solver(tmp_path_factory.mktemp("overlapping"), digits), *OVERLAPPING)


@pytest.fixture
def solver(tmp_path: Path, digits: Path) -> Path:
    return make_solver(tmp_path, digits)


def make_solver(folder: Path, digits: Path, num_steps: int = 8) -> Path:
    return write_solver(write_net(folder, digits), num_steps)


def stop_of(event: Event) -> float:
    return float(event["ts"] + event["dur"])


def traced(solver: Path, *flags: object, steps: str = "3-5") -> tuple[Timeline, Path]:
    out = solver.parent / "out"
    ended = succeed(
        *("train", "--solver", solver, *SHAPE, "--out", out, "--trace", f"steps={steps}", *flags), folder=solver.parent
    )
    assert f"trace of steps {steps}: {out}/trace.json.gz" in ended.output
    assert unfinished(out) == []
    return Timeline(out), out


def assert_sound(timeline: Timeline) -> None:
    """Spans of a row lie beside or inside each other; arrows lead forward to another rank, from span to span."""
    for row in timeline.rows():
        open_spans: list[Event] = []
        for one, other in pairwise(row):
            assert one["ts"] <= other["ts"]
        for event in row:
            assert event["dur"] >= 0
            while open_spans and stop_of(open_spans[-1]) <= event["ts"] + ROUNDING_US:
                open_spans.pop()
            assert not open_spans or stop_of(event) <= stop_of(open_spans[-1]) + ROUNDING_US
            open_spans.append(event)
    for start, end in timeline.arrows():
        assert start["ts"] <= end["ts"]
        assert start["pid"] != end["pid"]
        assert start["name"] == end["name"]
        for tip in (start, end):
            row = [e for e in timeline.events if e["ph"] == "X" and e["tid"] == tip["tid"]]
            assert any(e["ts"] <= tip["ts"] <= stop_of(e) for e in row)


def test_both_ranks_steps_layers_and_exchanges_are_there(overlapping: tuple[Timeline, Path]) -> None:
    timeline, out = overlapping
    assert_sound(timeline)
    for rank in (0, 1):
        steps = timeline.spans(rank, "step")
        assert [event["name"] for event in steps] == [f"step {step}" for step in STEPS]
        forward = [event["name"] for event in timeline.spans(rank, "forward")]
        assert forward == ["forward", *LAYERS] * len(STEPS)
        backward = [event["name"] for event in timeline.spans(rank, "backward")]
        assert backward == ["backward", *reversed(LAYERS)] * len(STEPS)
        assert len(timeline.spans(rank, "data", "wait for data")) == len(STEPS)
        for bucket in BUCKETS:
            assert len(timeline.spans(rank, "in flight", f"bucket {bucket}")) == len(STEPS)
            assert len(timeline.spans(rank, "update", f"update bucket {bucket}")) == len(STEPS)
    assert len(timeline.arrows()) == 2 * len(BUCKETS) * len(STEPS)
    assert {path.name for path in out.iterdir() if "trace" in path.name} == {"trace.json.gz"}


def test_the_last_layers_exchange_begins_before_the_first_layer_is_done(
    overlapping: tuple[Timeline, Path],
) -> None:
    timeline, _ = overlapping
    for rank in (0, 1):
        last_layers = timeline.spans(rank, "in flight", "bucket 0")
        first_layers = timeline.spans(rank, "backward", "conv1")
        for exchange, backward in zip(last_layers, first_layers, strict=True):
            assert exchange["ts"] < stop_of(backward)
        whole = timeline.spans(rank, "backward", "backward")
        for exchange, step in zip(last_layers, whole, strict=True):
            assert step["ts"] < exchange["ts"] < stop_of(step)


def test_weights_that_come_back_are_exchanges_too(solver: Path) -> None:
    timeline, _ = traced(solver, "--overlap", "full", "--bucket", "layer")
    assert_sound(timeline)
    found = {start["name"] for start, _ in timeline.arrows()}
    assert {f"bucket {bucket}: gradient #{run}" for bucket in BUCKETS for run in STEPS} <= found
    # The weights of the last step may arrive after it.
    assert {f"bucket {bucket}: weights #{run}" for bucket in BUCKETS for run in STEPS[:-1]} <= found
    for bucket in BUCKETS:
        up, down = (
            {(start["pid"], end["pid"]) for start, end in timeline.arrows() if f"{bucket}: {what} #" in start["name"]}
            for what in ("gradient", "weights")
        )
        assert len(up) == len(down) == 1, "to the owner, and from it"
        assert up == {(other, one) for one, other in down}


@SLOW
@pytest.mark.parametrize("flags", [("--overlap", "none"), ("--exact", 2), ("--strategy", "sync-easgd")])
def test_other_exchanges_give_a_sound_timeline(solver: Path, flags: tuple[object, ...]) -> None:
    timeline, _ = traced(solver, *flags)
    assert_sound(timeline)
    assert timeline.spans(1, "exchange") or "sync-easgd" in flags


@SLOW
def test_the_weights_are_those_of_a_run_without_a_trace(overlapping: tuple[Timeline, Path], solver: Path) -> None:
    _, out = overlapping
    plain = solver.parent / "plain"
    succeed("train", "--solver", solver, *SHAPE, *OVERLAPPING, "--out", plain, folder=solver.parent)
    hashes = {json.loads((folder / "result.json").read_text())["weights_sha256"] for folder in (out, plain)}
    assert len(hashes) == 1
    assert not list(plain.glob("*trace*"))


@SLOW
def test_a_run_that_ends_inside_the_window_has_a_shorter_trace(solver: Path) -> None:
    timeline, _ = traced(solver, steps="6-100")
    assert [event["name"] for event in timeline.spans(1, "step")] == ["step 6", "step 7", "step 8"]


@SLOW
def test_a_run_that_ends_before_says_so(solver: Path) -> None:
    out = solver.parent / "out"
    ended = succeed("train", "--solver", solver, "--out", out, "--trace", "steps=20-30", folder=solver.parent)
    assert "trace of steps 20-30: training ended after step 8; there is no trace" in ended.output + ended.errors
    assert not [path for path in out.iterdir() if "trace" in path.name]


def test_what_names_no_steps_is_refused(solver: Path) -> None:
    ended = run("train", "--solver", solver, "--trace", "20-30", folder=solver.parent)
    assert ended.return_code == 2
    assert ended.error.startswith("--trace '20-30': give the first and the last step")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=SLOW)])
def test_a_run_that_is_stopped_leaves_a_trace_or_nothing(tmp_path: Path, digits: Path, number: signal.Signals) -> None:
    solver, out = make_solver(tmp_path, digits, 100_000), tmp_path / "out"
    flags = ("--out", out, "--trace", "steps=2-99999")
    with Command("train", "--solver", solver, *SHAPE, *flags, folder=tmp_path, is_forked=True) as command:
        command.wait_for_step(out, 5)
        if number == signal.SIGINT:
            command.send(number)
        else:
            command.wait_for_rank(1).send_signal(number)
        ended = command.wait()
    assert ended.return_code == (0 if number == signal.SIGINT else 3)
    assert unfinished(out) == []
    assert (out / "trace.json.gz").exists() == (number == signal.SIGINT)
    if number == signal.SIGINT:
        assert len(Timeline(out).spans(1, "step")) >= 3
