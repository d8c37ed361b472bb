"""The timeline made of all ranks' parts."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from samovar.core.trace import Span
from samovar.report import timeline
from samovar.report.timeline import PartHeader, merge, write_part

FIRST_S = 1000.0  # of rank 0's clock
AHEAD_S = 250.0  # rank 1's clock is ahead by so much
EXCHANGE = "bucket 0 #1"


def spans(ahead_s: float, late_s: float = 0.0) -> list[Span]:
    """A step of one bucket, in the order of ends; the exchange begins `late_s` later."""
    origin_s = FIRST_S + ahead_s
    return [
        Span("backward", "conv1", origin_s + 1, origin_s + 2),
        Span("backward", "backward", origin_s + 1, origin_s + 3),
        Span("exchange", "bucket 0", origin_s + 3 + late_s, origin_s + 5, EXCHANGE, EXCHANGE),
        Span("step", "step 1", origin_s, origin_s + 6),
    ]


class Merged:
    """Parts as ranks write them, and the timeline of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.target = folder / "trace.json.gz"
        self.parts: list[Path] = []

    def add(self, found: Sequence[Span], offset_s: float = 0.0, num_left_out: int = 0) -> None:
        rank = len(self.parts)
        self.parts.append(self._folder / f".tmp-part{rank}")
        first_s = min((span.start_s for span in found), default=None)
        write_part(self.parts[-1], PartHeader(rank, offset_s, num_left_out, first_s), found)

    def read(self) -> dict[str, Any]:
        merge(self.parts, self.target, {"steps": "1-1"})
        with gzip.open(self.target, "rt") as file:
            return json.load(file)


@pytest.fixture
def merged(tmp_path: Path) -> Merged:
    return Merged(tmp_path)


def of(content: dict[str, Any], phase: str, **wanted: object) -> list[dict[str, Any]]:
    events = [event for event in content["traceEvents"] if event["ph"] == phase]
    return [event for event in events if all(event[key] == value for key, value in wanted.items())]


def test_ranks_are_processes_and_streams_are_threads_with_names(merged: Merged) -> None:
    merged.add(spans(0))
    merged.add(spans(0))
    content = merged.read()
    names = {event["pid"]: event["args"]["name"] for event in of(content, "M", name="process_name")}
    assert names == {0: "rank 0", 1: "rank 1"}
    assert [e["args"]["sort_index"] for e in of(content, "M", name="process_sort_index")] == [0, 1]
    threads = of(content, "M", name="thread_name")
    assert {(e["pid"], e["args"]["name"]) for e in threads} == {
        (rank, stream) for rank in (0, 1) for stream in ("step", "backward", "exchange")
    }
    assert len({event["tid"] for event in threads}) == 6
    assert {event["tid"] for event in of(content, "X")} == {event["tid"] for event in threads}


def test_times_are_microseconds_from_the_first_span_on_rank_0s_clock(merged: Merged) -> None:
    merged.add(spans(0))
    merged.add(spans(AHEAD_S), offset_s=-AHEAD_S)
    content = merged.read()
    for rank in (0, 1):
        found = [(e["name"], e["ts"], e["dur"]) for e in of(content, "X", pid=rank)]
        assert found == [
            ("step 1", 0, 6e6),
            ("backward", 1e6, 2e6),  # the outer one first, where both begin
            ("conv1", 1e6, 1e6),
            ("bucket 0", 3e6, 2e6),
        ]
    assert content["otherData"]["clock_offsets_s"] == {"rank 0": 0.0, "rank 1": -AHEAD_S}
    assert content["otherData"]["steps"] == "1-1"


def test_arrows_lead_from_what_a_rank_gave_to_the_others_that_took_it(merged: Merged) -> None:
    for rank in range(3):
        merged.add(spans(0, late_s=rank / 2))
    content = merged.read()
    starts, ends = ({event["id"]: event for event in of(content, phase)} for phase in "sf")
    assert starts.keys() == ends.keys()
    pairs = {(starts[key]["pid"], ends[key]["pid"]) for key in starts}
    assert pairs == {(one, other) for one in range(3) for other in range(3) if one != other}
    for key, start in starts.items():
        assert start["ts"] == 3e6 + start["pid"] * 0.5e6
        assert ends[key]["ts"] == pytest.approx(5e6)
        assert ends[key]["ts"] < 5e6, "inside the span"
        assert ends[key]["bp"] == "e"


def test_an_exchange_of_which_only_one_end_was_seen_has_no_arrow(merged: Merged) -> None:
    merged.add([Span("exchange", "post bucket 0", 1.0, 2.0, EXCHANGE)])
    merged.add([Span("exchange", "wait bucket 1", 1.0, 2.0, None, "bucket 1 #1")])
    assert not of(merged.read(), "s")


def test_arrows_have_a_cap_of_their_own(merged: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_ARROWS", 4)
    for _ in range(3):
        merged.add(spans(0))
    content = merged.read()
    assert len(of(content, "s")) == len(of(content, "f")) == 4
    assert content["otherData"]["arrows_left_out"] == 2


def test_what_is_in_flight_at_once_gets_rows_of_its_own(merged: Merged) -> None:
    times = [(1.0, 4.0), (2.0, 6.0), (3.0, 5.0), (4.5, 7.0)]
    merged.add([Span("in flight", f"bucket {index}", start, stop) for index, (start, stop) in enumerate(times)])
    content = merged.read()
    rows = {event["tid"]: event["args"]["name"] for event in of(content, "M", name="thread_name")}
    placed = {event["name"]: rows[event["tid"]] for event in of(content, "X")}
    assert placed == {
        "bucket 0": "in flight",
        "bucket 1": "in flight 2",
        "bucket 2": "in flight 3",
        "bucket 3": "in flight",
    }


def test_what_was_left_out_is_said(merged: Merged) -> None:
    merged.add(spans(0))
    merged.add(spans(0), num_left_out=12)
    assert merged.read()["otherData"]["spans_left_out"] == {"rank 1": 12}


def test_a_rank_without_spans_or_without_a_part_does_no_harm(merged: Merged) -> None:
    merged.add([])
    for _ in range(3):
        merged.add(spans(0))
    merged.parts[2].unlink()
    merged.parts[3].write_bytes(b"")  # of a rank on another host, whose disk was full
    content = merged.read()
    assert {event["pid"] for event in of(content, "X")} == {1}
    assert min(event["ts"] for event in of(content, "X")) == 0


def test_a_part_replaces_an_older_one_and_a_timeline_too(merged: Merged) -> None:
    merged.target.write_text("old")
    merged.add(spans(0)[:1])
    write_part(merged.parts[0], PartHeader(0, 0.0, 0, FIRST_S), spans(0))
    assert len(of(merged.read(), "X")) == 4
    assert {path.name for path in merged.target.parent.iterdir()} == {"trace.json.gz", ".tmp-part0"}


def test_nothing_is_left_of_a_timeline_that_cannot_be_written(merged: Merged) -> None:
    merged.add(spans(0))
    merged.target.mkdir()
    with pytest.raises(OSError):
        merged.read()
    assert {path.name for path in merged.target.parent.iterdir()} == {"trace.json.gz", ".tmp-part0"}
