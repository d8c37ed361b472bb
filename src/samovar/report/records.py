"""The records that ranks send to the launcher, and their form on a pipe.

On the pipe a record is one line of JSON with the field `record`: {"record": "progress", "step": 20, ...}.
"""

import fcntl
import json
import os
import re
import select
import struct
import termios
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.core.plain import from_plain, json_line, to_plain
from samovar.report.result import RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Training begins: the plan of the run.

    `worker_cpus` are the cpus that each rank is pinned to, empty for a rank that is not. `threads_per_worker` counts
    compute threads. `run_folder` is None for a run without files. `buckets` says how the model is divided for the
    exchange ("3 buckets (auto)"), or is empty. `how` is "joined" if it starts from the center of others, and "resumed"
    if from a snapshot.
    """

    net_name: str
    num_parameters: int
    data_name: str
    num_train_samples: int
    num_test_samples: int
    workers: int
    threads_per_worker: int
    worker_cpus: tuple[tuple[int, ...], ...]
    batch_per_worker: int
    effective_batch: int
    base_lr: float
    lr_policy: str
    strategy: str
    collective: str
    transport: str
    iterations: int
    start_step: int
    run_folder: str | None
    buckets: str = ""
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Steps done so far; `loss` is the smoothed training loss, `samples_per_second` that of all workers.

    `workers` says how the workers differ, if they may.
    """

    step: int
    total_steps: int
    loss: float
    learning_rate: float
    samples_per_second: float
    eta_s: float | None
    workers: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """Mean outputs of a test pass over test net `net` after `step` steps, by name; value k of several is "name[k]".

    `step` is None for a net that is tested without training. `loss` is the mean of the weighted sum of losses, None if
    not requested. `loss_weights` has the outputs that count as loss.
    """

    step: int | None
    outputs: Mapping[str, float]
    net: int = 0
    loss: float | None = None
    loss_weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedBatch:
    """The outputs of one batch of a test pass."""

    batch: int
    outputs: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterated:
    """A step as Caffe displays it: `iteration` counts from 0, `loss` is smoothed, `outputs` are the training net's.

    `seconds` are those since the iteration displayed before, for `num_iterations`; `display` is the intended number.
    """

    iteration: int
    num_iterations: int
    display: int
    seconds: float
    loss: float
    learning_rate: float
    outputs: Mapping[str, float]
    loss_weights: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLine:
    """A line of `Valued`; `kind` is "top", "parameter", "bottom", "gradient" or "all"."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Valued:
    """Mean absolute values of a pass, for `debug_info`; `is_test`: of a test pass, which is shown later."""

    lines: tuple[ValueLine, ...]
    is_test: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLoss:
    """The smoothed loss of one more forward pass after `step` steps."""

    step: int
    loss: float


READING = "Data"  # the type under which reading a batch is told, whatever the data layers are


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Mean milliseconds of one layer. Type READING means reading a batch, which is not part of a pass.

    `multiply_adds` are those of products with weights in one forward pass, `activation_bytes` the size of its outputs,
    0 in place. An array that layers share counts at the first of them. `num_unlearned` are frozen, or statistics.
    """

    name: str
    type: str
    forward_ms: float
    backward_ms: float
    num_parameters: int = 0
    multiply_adds: int = 0
    activation_bytes: int = 0
    num_unlearned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Mean milliseconds of a net's layers over `iterations` passes on batches of `batch_size`, and of a whole pass.

    `initial_loss` is that of the pass before, None for a net without a loss; `iteration_ms` are the whole passes.
    After 0 iterations layers were only counted. Of several hosts, `host` is the name of that of `rank`.
    """

    rank: int = 0
    host: str = ""
    net_name: str
    phase: str
    batch_size: int
    threads: int
    precision: str = "fp32"
    iterations: int
    layers: tuple[LayerTime, ...]
    forward_ms: float
    backward_ms: float
    iteration_ms: tuple[float, ...]
    initial_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The speed of a setting of workers and threads: samples of all workers, by the median of `num_steps` steps.

    `stop_signal` is the request of a signal meanwhile, 0 for none.
    """

    samples_per_second: float
    num_steps: int
    stop_signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWritten:
    """The snapshot of `step` is in `path`."""

    step: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message; `level` is "info" or "warning". Of messages with the same `topic` only the first is shown."""

    level: str
    text: str
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Training is over, as requested."""

    result: RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A rank (None: the launcher itself) cannot continue; `kind` names the error's class."""

    rank: int | None
    message: str
    step: int | None
    exit_code: int
    kind: str


Record: TypeAlias = (
    Started
    | Progress
    | Iterated
    | Valued
    | LastLoss
    | Tested
    | TestedBatch
    | Timed
    | Probed
    | SnapshotWritten
    | Notice
    | Finished
    | Failed
)


def record_name(kind: type[Any]) -> str:
    """The value of the field `record`: SnapshotWritten is "snapshot_written"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


_KINDS: dict[str, type[Record]] = {record_name(kind): kind for kind in get_args(Record)}


def to_json(record: Record) -> dict[str, Any]:
    """`record` as a JSON object."""
    return {"record": record_name(type(record)), **to_plain(record)}


def from_json(data: object) -> Record:
    """The record that a JSON object holds; raises ValueError naming what does not fit."""
    if not isinstance(data, Mapping):
        raise ValueError(f"a record is an object, not a {type(data).__name__}")
    name = data.get("record")
    if not isinstance(name, str) or name not in _KINDS:
        raise ValueError(f"record {name!r} is none of {', '.join(sorted(_KINDS))}")
    return from_plain(_KINDS[name], {key: value for key, value in data.items() if key != "record"})


MAX_LINE_BYTES = 1 << 23  # samovar time tells the time of each pass
_SHOWN_BYTES = 80
_C_INT = struct.Struct("i")


class RecordWriter:
    """The rank's end: `descriptor` is a pipe that only this process writes to; threads may share the writer.

    If the launcher stops reading (Ctrl-Z), a pipe that is half full takes no more progress, so that the run continues.
    Once other records have filled the pipe up, a call raises after `timeout_s`.
    """

    def __init__(self, descriptor: int, timeout_s: float = 30.0) -> None:
        self._descriptor = descriptor
        self._timeout_s = timeout_s
        self._lock = threading.Lock()

    def write(self, record: Record) -> None:
        """Send one record, whole; raises DeadlineExceeded, or BrokenPipeError if the launcher is gone."""
        if isinstance(record, Progress) and self._is_half_full():
            return
        line = json_line(to_json(record))
        assert len(line) <= MAX_LINE_BYTES, f"a record of {len(line):,} bytes; the limit is {MAX_LINE_BYTES:,}"
        with self._lock:
            self._write_all(line)

    def _is_half_full(self) -> bool:
        waiting = bytearray(_C_INT.size)
        fcntl.ioctl(self._descriptor, termios.FIONREAD, waiting)
        num_bytes: int = _C_INT.unpack(waiting)[0]
        return 2 * num_bytes > fcntl.fcntl(self._descriptor, fcntl.F_GETPIPE_SZ)

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
    """The launcher's end: bytes in, records out, for any bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[Record]:
        """The records that `data` completes. Bytes that are not a record give a warning Notice."""
        *ends, rest = data.split(b"\n")
        records = [self._ended(end) for end in ends]
        self._take(rest)
        return [record for record in records if record is not None]

    def _ended(self, end: bytes) -> Record | None:
        self._take(end)
        line, self._buffer = bytes(self._buffer), bytearray()
        if self._skipping:
            self._skipping = False
            return _notice(f"a line of over {MAX_LINE_BYTES:,} bytes is not a record", line)
        return _record(line) if line.strip() else None

    def _take(self, piece: bytes) -> None:
        """Keep a piece of a line. Of a line that is too long keep only the beginning."""
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
