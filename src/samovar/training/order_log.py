"""The order in which a center took the updates of a run, as each worker saw it: a file for each worker.

A line of JSON (the head) comes first, then entries of a letter and little-endian numbers. "S" is a step, with the step
of its learning rate (u32). "R" is a read and "U" an update of the center, with a version for every chunk. "E" is the
end, with the number of steps (u32). Versions are differences from those of the worker's entry before: a width in bytes
(u8), then a number for each chunk; width 0 means one number for all chunks.
"""

import contextlib
import json
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from samovar.box.base import Versions
from samovar.core.closing import Closing
from samovar.core.errors import InputError
from samovar.report.run_folder import order_is_written

_FORMAT = 1
_NUMBER = struct.Struct("<I")
_SAME = struct.Struct("<q")
_WIDTHS = (1, 2, 4, 8)
_MOST_HEAD_BYTES = 4096
_READ, _UPDATE, _STEP, _END = b"R", b"U", b"S", b"E"


@dataclass(frozen=True, slots=True)
class LogHead:
    """The rank and the center of a log; `num_chunks` of `chunk_elements` hold `num_elements`."""

    rank: int
    world_size: int
    num_elements: int
    chunk_elements: int
    format: int = _FORMAT

    @property
    def num_chunks(self) -> int:
        return -(-self.num_elements // self.chunk_elements)


class OrderWriter(Closing):
    """A writer of a new file at `path`; use it as a context manager.

    Raises InputError if the disk refuses, at its begin, on the way, or at its `end`.
    """

    def __init__(self, path: Path, head: LogHead) -> None:
        self._path = path
        with order_is_written(path):
            self._file = path.open("wb")
        self._write(json.dumps(asdict(head)).encode() + b"\n")
        self._last = np.zeros(head.num_chunks, np.int64)
        self._num_steps = 0

    def step(self, rate_step: int) -> None:
        """Write that a step begins."""
        self._num_steps += 1
        self._write(_STEP + _NUMBER.pack(rate_step))

    def read(self, versions: Versions) -> None:
        """Write that the worker read chunks of these versions."""
        self._versions(_READ, versions)

    def update(self, versions: Versions) -> None:
        """Write that the worker's update gave chunks these versions."""
        self._versions(_UPDATE, versions)

    def end(self) -> None:
        """Write the end: the log is complete."""
        with order_is_written(self._path):
            self._file.write(_END + _NUMBER.pack(self._num_steps))
            self._file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of a log that is not complete, and was refused already
            self._file.close()

    def _write(self, data: bytes) -> None:
        with order_is_written(self._path):
            self._file.write(data)

    def _versions(self, letter: bytes, versions: Versions) -> None:
        differences = versions - self._last
        self._last = versions.copy()
        if (differences == differences[0]).all():
            self._write(letter + b"\0" + _SAME.pack(int(differences[0])))
            return
        largest = int(np.abs(differences).max())
        width = next(width for width in _WIDTHS if largest < 1 << (8 * width - 1))
        self._write(letter + bytes([width]) + differences.astype(f"<i{width}").tobytes())


@dataclass(slots=True)
class OrderLog:
    """The content of a log: `rate_steps` of the steps, and the `versions` of the center's reads and updates."""

    head: LogHead
    rate_steps: list[int] = field(default_factory=list)
    is_update: list[bool] = field(default_factory=list)
    versions: list[Versions] = field(default_factory=list)


def read_order(path: Path) -> OrderLog:
    """Read the log at `path`; InputError if it does not exist or is not complete."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give the folder of a run with --record") from error
    first, newline, _ = data[:_MOST_HEAD_BYTES].partition(b"\n")
    try:
        head = LogHead(**json.loads(first))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: no record of this version ({error}); record the run again") from error
    if not newline or head.format != _FORMAT or not 0 < head.num_chunks < len(data) + (1 << 31):
        raise InputError(f"{path}: no record of this version; record the run again")
    log = OrderLog(head)
    try:
        _parse(memoryview(data)[len(first) + 1 :], log)
    except (struct.error, IndexError) as error:
        raise InputError(f"{path}: not complete (it ends early): did its rank die? Record the run again") from error
    except ValueError as error:
        raise InputError(f"{path}: not complete ({error}): did its rank die? Record the run again") from error
    return log


def _parse(left: memoryview, log: OrderLog) -> None:
    last = np.zeros(log.head.num_chunks, np.int64)
    while True:
        letter, left = bytes(left[:1]), left[1:]
        if letter in (_STEP, _END):
            if len(left) < _NUMBER.size:
                raise ValueError("it ends early")
            (number,) = _NUMBER.unpack_from(left)
            left = left[_NUMBER.size :]
            if letter == _END:
                if number != len(log.rate_steps) or left:
                    raise ValueError("its end is not where it should be")
                return
            log.rate_steps.append(number)
        elif letter in (_READ, _UPDATE):
            last, left = _next_versions(left, last)
            log.is_update.append(letter == _UPDATE)
            log.versions.append(last)
        else:
            raise ValueError("it ends early" if not letter else "it holds an unknown entry")


def _next_versions(left: memoryview, last: Versions) -> tuple[Versions, memoryview]:
    width = left[0]
    if width == 0:
        return last + _SAME.unpack_from(left, 1)[0], left[1 + _SAME.size :]
    if width not in _WIDTHS:
        raise ValueError(f"versions of {width} bytes")
    stop = 1 + width * len(last)
    differences = np.frombuffer(left[1:stop], f"<i{width}")
    if len(differences) != len(last):
        raise ValueError("it ends early")
    return last + differences, left[stop:]
