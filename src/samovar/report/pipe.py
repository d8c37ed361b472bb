"""Records on a pipe from a rank to its launcher, a line of JSON each."""

import json
import os
import select
import threading

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.report.plain import json_line
from samovar.report.records import Notice, Record, from_json, to_json

MAX_LINE_BYTES = 1 << 20
_SHOWN_BYTES = 80


class RecordWriter:
    """The rank's end: `descriptor` is a pipe that no other process writes to; threads may share the writer.

    A launcher that reads no more costs `timeout_s` once it has let the pipe fill up.
    """

    def __init__(self, descriptor: int, timeout_s: float = 30.0) -> None:
        self._descriptor = descriptor
        self._timeout_s = timeout_s
        self._lock = threading.Lock()

    def write(self, record: Record) -> None:
        """Send one record, whole; raises DeadlineExceeded, or BrokenPipeError where the launcher is gone."""
        line = json_line(to_json(record))
        assert len(line) <= MAX_LINE_BYTES, f"a record of {len(line):,} bytes; the limit is {MAX_LINE_BYTES:,}"
        with self._lock:
            self._write_all(line)

    def _write_all(self, line: bytes) -> None:
        deadline = Deadline.after(self._timeout_s)
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        left = memoryview(line)
        while left:
            if not poll.poll(deadline.remaining_s() * 1000):
                raise DeadlineExceeded(
                    f"the launcher read no record within {self._timeout_s:g} s; is it stopped? "
                    "continue it (SIGCONT) or end this rank"
                )
            # Up to PIPE_BUF bytes a writable pipe takes without blocking.
            left = left[os.write(self._descriptor, left[: select.PIPE_BUF]) :]


class RecordReader:
    """The launcher's end: bytes in, records out, whatever the bytes are."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[Record]:
        """The records that `data` completes. What is no record comes out as a warning Notice."""
        *ends, rest = data.split(b"\n")
        records = [self._ended(end) for end in ends]
        self._take(rest)
        return [record for record in records if record is not None]

    def close(self) -> list[Record]:
        """A Notice if the rank ended in the middle of a record."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        return [_notice("the rank ended in the middle of a record", rest)] if rest else []

    def _ended(self, end: bytes) -> Record | None:
        self._take(end)
        line, self._buffer = bytes(self._buffer), bytearray()
        if self._skipping:
            self._skipping = False
            return _notice(f"a line of over {MAX_LINE_BYTES:,} bytes is no record", line)
        return _record(line) if line.strip() else None

    def _take(self, piece: bytes) -> None:
        """Keep a piece of a line, unless the line is too long: then only its beginning."""
        self._skipping = self._skipping or len(self._buffer) + len(piece) > MAX_LINE_BYTES
        self._buffer += piece
        if self._skipping:
            del self._buffer[_SHOWN_BYTES:]


def _record(line: bytes) -> Record:
    try:
        return from_json(json.loads(line))
    except (ValueError, RecursionError) as error:
        return _notice(f"not a record ({error})", line)


def _notice(what: str, line: bytes) -> Notice:
    shown = line[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return Notice(level="warning", text=f"{what}: {shown!r}; a rank must write nothing else to this pipe")
