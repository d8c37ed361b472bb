"""One timeline of all ranks, from what each of them recorded: Chrome's trace events, as Perfetto opens them.

Reference: the JSON form of the "Trace Event Format" of the Chromium project.
"""

import contextlib
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from samovar.core.errors import InputError
from samovar.core.files import opened, write_file
from samovar.core.trace import Span

STREAMS: Final = ("step", "data", "forward", "backward", "exchange", "update", "in flight")
MAX_ARROWS: Final = 50_000
_TIDS_PER_RANK = 10_000  # no tid is a pid, and none is another rank's
_ZIP_LEVEL = 4
_LARGEST_US = 1e300
_ARROW_TIP_US = 0.001  # inside the span that it ends at

Event: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PartHeader:
    """A rank's first line; `first_s` is its first moment, on its own clock, None if nothing was recorded."""

    rank: int
    clock_offset_s: float
    num_left_out: int
    first_s: float | None


def write_part(path: Path, header: PartHeader, spans: Sequence[Span]) -> None:
    """A rank's spans as JSON lines, outer ones before those inside; replaces the file. Raises OSError."""
    ordered = sorted(spans, key=lambda span: (span.start_s, -span.stop_s))
    lines = [json.dumps([header.rank, header.clock_offset_s, header.num_left_out, header.first_s])]
    lines += [json.dumps(span, separators=(",", ":")) for span in ordered]
    path.unlink(missing_ok=True)
    try:
        write_file(path, ["\n".join(lines).encode()])
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def moved_part(path: Path, offset_s_at: Callable[[float], float]) -> bytes:
    """The content of a part whose clock is `offset_s_at(moment)` behind rank 0's; empty if there is none."""
    if not path.exists():
        return b""
    first, _, rest = path.read_bytes().partition(b"\n")
    header = PartHeader(*json.loads(first))
    moved = [header.rank, offset_s_at(header.first_s or 0.0), header.num_left_out, header.first_s]
    return json.dumps(moved).encode() + b"\n" + rest


def merge(parts: Sequence[Path], target: Path, about: dict[str, object]) -> list[PartHeader]:
    """Make `target`, a gzipped JSON file, of all parts that are not missing or empty; return what their ranks said.

    `about` goes into its "otherData". Cost: the memory of all exchanges' ends, not of all spans. Raises OSError.
    """
    parts = [part for part in parts if part.exists() and part.stat().st_size]
    headers = [_header(part) for part in parts]
    temporary = target.with_name(f".tmp-{target.name}-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            with (
                gzip.GzipFile("", "wb", _ZIP_LEVEL, file, mtime=0) as zipped,
                TextIOWrapper(zipped, encoding="utf-8") as text,
            ):
                _write(text, parts, headers, about)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return headers


def read_events(path: Path) -> Sequence[Event]:
    """The spans of a merged timeline, and none without one. Raises InputError if the file is broken."""
    try:
        return _events_of(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return ()
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
        raise InputError(f"{path} is not a timeline: {error}; remove it, or record it again with --trace") from error


@lru_cache(maxsize=4)
def _events_of(path: Path, _changed_ns: int) -> Sequence[Event]:
    with opened(path) as zipped, gzip.open(zipped) as file:
        events: Sequence[Event] = json.load(file)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X" and event["cat"] in STREAMS]
    for span in spans:
        _require_drawable(span)
    return spans


def _require_drawable(span: Event) -> None:
    """Raises ValueError unless it is a span as `merge` writes them."""
    name, is_step, times = span["name"], span["cat"] == "step", (span["ts"], span["dur"])
    is_named = isinstance(name, str) and (not is_step or re.fullmatch("step [0-9]{1,18}", name))
    is_timed = all(type(one) in (int, float) and abs(one) < _LARGEST_US for one in times) and times[1] >= 0
    if not (is_named and type(span["pid"]) is int and is_timed):
        raise ValueError(f"it has the span {span}")


def _write(text: TextIOWrapper, parts: Sequence[Path], headers: list[PartHeader], about: dict[str, object]) -> None:
    firsts_s = [header.first_s + header.clock_offset_s for header in headers if header.first_s is not None]
    origin_s, arrows = min(firsts_s, default=0.0), _Arrows()
    spans = (event for part in parts for event in _events(part, origin_s, arrows))
    text.write('{"traceEvents":[')
    for number, event in enumerate(chain(spans, arrows.events())):  # arrows are known when all spans are
        text.write((",\n" if number else "\n") + json.dumps(event, separators=(",", ":")))
    left_out = {f"rank {header.rank}": header.num_left_out for header in headers if header.num_left_out}
    other = {
        **about,
        "clock_offsets_s": {f"rank {header.rank}": header.clock_offset_s for header in headers},
        "started_at_s_of_clock": origin_s,
        "spans_left_out": left_out,
        "arrows_left_out": arrows.num_left_out,
    }
    text.write('\n],"displayTimeUnit":"ms","otherData":' + json.dumps(other) + "}\n")


def _header(part: Path) -> PartHeader:
    with part.open(encoding="utf-8") as lines:
        return PartHeader(*json.loads(next(lines)))


def _events(part: Path, origin_s: float, arrows: "_Arrows") -> Iterator[Event]:
    """A rank's metadata and spans; notes where arrows begin and end."""
    with part.open(encoding="utf-8") as lines:
        header = PartHeader(*json.loads(next(lines)))
        streams = _Streams(header.rank)
        yield from streams.introduce_rank()
        for line in lines:
            span = Span(*json.loads(line))
            start_us, stop_us = (
                round((at_s + header.clock_offset_s - origin_s) * 1e6, 3) for at_s in (span.start_s, span.stop_s)
            )
            tid, introduction = streams.place(span.stream, start_us, stop_us)
            yield from introduction
            place = {"pid": header.rank, "tid": tid}
            arrows.note(span, place, start_us, stop_us)
            duration_us = round(stop_us - start_us, 3)
            yield {"ph": "X", "cat": span.stream, "name": span.name, **place, "ts": start_us, "dur": duration_us}


class _Streams:
    """The rows of a rank: one for each stream, and as many as needed at once for exchanges in flight."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._known: set[int] = set()
        self._lanes_end_us: list[float] = []

    def introduce_rank(self) -> Iterable[Event]:
        return (
            self._metadata("process_name", {"name": f"rank {self._rank}"}),
            self._metadata("process_sort_index", {"sort_index": self._rank}),
        )

    def place(self, stream: str, start_us: float, stop_us: float) -> tuple[int, list[Event]]:
        """The row of a span, and the events that introduce a new row."""
        row, name = STREAMS.index(stream), stream
        if stream == STREAMS[-1]:
            lane = self._lane(start_us, stop_us)
            row, name = row + lane, stream if lane == 0 else f"{stream} {lane + 1}"
        tid = _TIDS_PER_RANK * (self._rank + 1) + row
        if tid in self._known:
            return tid, []
        self._known.add(tid)
        return tid, [
            self._metadata("thread_name", {"name": name}, tid),
            self._metadata("thread_sort_index", {"sort_index": row}, tid),
        ]

    def _lane(self, start_us: float, stop_us: float) -> int:
        for lane, end_us in enumerate(self._lanes_end_us):
            if end_us <= start_us:
                self._lanes_end_us[lane] = stop_us
                return lane
        self._lanes_end_us.append(stop_us)
        return len(self._lanes_end_us) - 1

    def _metadata(self, name: str, arguments: Event, tid: int = 0) -> Event:
        return {"ph": "M", "name": name, "pid": self._rank, "tid": tid, "args": arguments}


@dataclass(slots=True)
class _Ends:
    """The begin and the end of a run of an exchange, on all ranks."""

    sends: list[Event] = field(default_factory=list)
    takes: list[Event] = field(default_factory=list)


class _Arrows:
    """An arrow from where a rank gave its part of an exchange to where the other ranks had it."""

    def __init__(self) -> None:
        self.num_left_out = 0
        self._ends: dict[str, _Ends] = {}
        self._num_made = 0

    def note(self, span: Span, place: Event, start_us: float, stop_us: float) -> None:
        if span.sends is not None:
            self._ends.setdefault(span.sends, _Ends()).sends.append({**place, "ts": start_us})
        if span.takes is not None:
            tip_us = max(start_us, round(stop_us - _ARROW_TIP_US, 3))
            self._ends.setdefault(span.takes, _Ends()).takes.append({**place, "ts": tip_us})

    def events(self) -> Iterator[Event]:
        for name, ends in self._ends.items():
            for send in ends.sends:
                for take in ends.takes:
                    if send["pid"] != take["pid"] and send["ts"] <= take["ts"]:
                        yield from self._arrow(name, send, take)

    def _arrow(self, name: str, send: Event, take: Event) -> Iterator[Event]:
        if self._num_made == MAX_ARROWS:
            self.num_left_out += 1
            return
        self._num_made += 1
        common = {"cat": "exchange", "name": name, "id": self._num_made}
        yield {"ph": "s", **common, **send}
        yield {"ph": "f", "bp": "e", **common, **take}
