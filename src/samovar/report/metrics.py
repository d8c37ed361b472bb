"""metrics.jsonl: the curves of a run, one JSON object a line.

    {"step": 20, "kind": "train", "loss": 0.41, "learning_rate": 0.01}

Each (step, kind) occurs once, also after a run was stopped and resumed.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samovar.core.closing import Closing
from samovar.core.errors import InputError
from samovar.core.plain import as_number, json_line
from samovar.report.run_folder import write_atomic
from samovar.report.sinks import Sink

Line = dict[str, Any]


class MetricsWriter(Sink, Closing):
    """Appends to `path`; a run that starts after `start_step` steps first drops the lines beyond it.

    The system has each line before `write` returns. Raises InputError if the disk refuses, or if `path` is a different
    file; `flag` names its folder.
    """

    def __init__(self, path: Path, start_step: int = 0, flag: str = "--out") -> None:
        self._path, self._advice = path, f"make room there or give another folder with {flag}"
        kept = _kept(path, start_step)
        self._last_steps = {line["kind"]: line["step"] for line in kept}
        write_atomic(path, b"".join(json_line(line) for line in kept), self._advice)
        self._file = path.open("ab", buffering=0)

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        """Add a line. A line of a step that its kind has passed (a test repeated after resuming) is left out."""
        if step <= self._last_steps.get(kind, -1):
            return
        line = json_line({"step": step, "kind": kind, **values})
        end = os.fstat(self._file.fileno()).st_size
        try:
            self._write_all(line)
        except OSError as error:
            self._file.truncate(end)  # half a line would spoil the next one
            raise InputError(f"{self._path} cannot be written: {error.strerror}; {self._advice}") from error
        self._last_steps[kind] = step

    def close(self) -> None:
        self._file.close()

    def _write_all(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[self._file.write(left) :]


def read_metrics(path: Path) -> list[Line]:
    """The lines of `path` in order, without a last line that a kill cut short.

    Raises InputError naming the line that is not a metric.
    """
    try:
        pieces = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give a run's metrics.jsonl") from error
    return [parsed_line(path, number, text) for number, text in enumerate(pieces[:-1], 1)]


def parsed_line(path: Path, number: int, text: bytes) -> Line:
    """The line of that number; raises InputError if it is not a metric."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}:{number} is not JSON: {error}; remove that line") from error
    if not isinstance(line, dict) or type(line.get("step")) is not int or not isinstance(line.get("kind"), str):
        raise InputError(f"{path}:{number} is not a metric: it needs a step and a kind; remove that line")
    return {name: as_number(value) for name, value in line.items()}


def _kept(path: Path, start_step: int) -> list[Line]:
    """The lines that a run after `start_step` keeps: none of an older run if it starts from the beginning."""
    if start_step == 0 or not path.exists():
        return []
    return [line for line in read_metrics(path) if line["step"] <= start_step]
