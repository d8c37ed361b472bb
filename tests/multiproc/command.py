"""The command line as a user runs it: real processes, whose output goes into files."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests import loaded

SAMOVAR = Path(sys.executable).with_name("samovar")
TIMEOUT_S = 200.0  # on a busy machine what takes 10 s may take 100
_POLL_S = 0.002
_RANK = re.compile(r"--rank=(\d+)")
_TRAIN_STEP = re.compile(rb'{"step": (\d+), "kind": "train".*\n')
_TAIL_BYTES = 1 << 16
Found = TypeVar("Found")


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    return_code: int
    output: str
    errors: str

    @property
    def error(self) -> str:
        """The one sentence on stderr; warnings do not count."""
        lines = [line for line in self.errors.splitlines() if not line.startswith("samovar: warning: ")]
        assert len(lines) == 1, self.errors
        assert lines[0].startswith("samovar: error: "), self.errors
        return lines[0].removeprefix("samovar: error: ")


class Command:
    """`samovar` with `arguments`, started in `folder`, leader of a session of its own.

    Its output goes into files there, or in `output_folder`. `prefix` are the words of a command that runs it, `program`
    is another one in its place. With `is_forked` its interpreter and those of its ranks are not started anew
    (`tests/loaded_program.py`). At the end of the `with` block it is dead.
    """

    def __init__(
        self,
        *arguments: object,
        folder: Path,
        prefix: tuple[object, ...] = (),
        program: Path = SAMOVAR,
        output_folder: Path | None = None,
        is_forked: bool = False,
    ) -> None:
        self._started = time.monotonic_ns()
        self._files = [(output_folder or folder) / f".{name}-{self._started}" for name in ("output", "errors")]
        with self._files[0].open("wb") as output, self._files[1].open("wb") as errors:
            self.process = (loaded.Forked if is_forked and not prefix else subprocess.Popen)(
                [str(word) for word in (*prefix, program, *arguments)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        self._launcher = psutil.Process(self.process.pid)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def wait(self, timeout_s: float = TIMEOUT_S) -> Ended:
        """Its end, which must come within `timeout_s`."""
        return_code = self.process.wait(timeout_s)
        output, errors = (path.read_text() for path in self._files)
        return Ended(return_code, output, errors)

    @property
    def output(self) -> str:
        """Its output on stdout so far."""
        return self._files[0].read_text()

    @property
    def errors(self) -> str:
        """Its output on stderr so far."""
        return self._files[1].read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ranks(self) -> dict[int, psutil.Process]:
        """The rank processes that there are now, by rank."""
        found = {}
        with suppress(psutil.Error):
            for child in self._launcher.children():
                with suppress(psutil.Error):
                    if match := _RANK.search(" ".join(child.cmdline())):
                        found[int(match[1])] = child
        return found

    def wait_for_rank(self, rank: int) -> psutil.Process:
        """The process of `rank`, as soon as it is there."""
        process = self.until(lambda: self.ranks().get(rank), f"rank {rank} starts")
        assert process is not None
        return process

    def until(self, condition: Callable[[], Found], what: str, timeout_s: float = TIMEOUT_S) -> Found:
        """The first true result of `condition`; the command must not end before.

        It need be true at one look alone: what it sees, a file being written, say, may be over at the next.
        """
        seen: list[Found] = []

        def is_over() -> bool:
            has_ended = self.process.poll() is not None  # before the look: what it did last counts
            seen[:] = [condition()]
            return bool(seen[0]) or has_ended

        wait_until(is_over, what, timeout_s)
        assert seen[0], f"ended before: {what}\n{self.wait()}"
        return seen[0]

    def wait_for_step(self, out: Path, step: int) -> None:
        """Until metrics.jsonl of the run in `out` has the line of training step `step`."""
        self.until(lambda: last_step(out) >= step, f"step {step}")

    def when_handled(self, number: signal.Signals) -> None:
        """Send a signal to a launcher that sleeps, and wait until it sleeps again."""
        self.until(self._sleeps, "the launcher sleeps")
        before = self._launcher.num_ctx_switches().voluntary
        self.send(number)
        self.until(
            lambda: self._launcher.num_ctx_switches().voluntary > before and self._sleeps(),
            f"the launcher takes {number.name}",
        )

    def _sleeps(self) -> bool:
        return self._launcher.status() == psutil.STATUS_SLEEPING


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Poll `condition` until it is true; fails after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {timeout_s} s in vain: {what}"
        time.sleep(_POLL_S)


def run(
    *arguments: object,
    folder: Path,
    prefix: tuple[object, ...] = (),
    output_folder: Path | None = None,
    forks_scripts: bool = False,
) -> Ended:
    """Run a command in `folder` to its end; its output goes into files there, or in `output_folder`.

    Its interpreter and those of its ranks are not started anew, unless there is a `prefix` (`tests/loaded_program.py`);
    nor are the scripts of `samovar run`, with `forks_scripts`.
    """
    with loaded.free() as process:
        if process is not None and not prefix:
            files = [(output_folder or folder) / f".{name}-{time.monotonic_ns()}" for name in ("output", "errors")]
            words = [str(word) for word in arguments]
            code = process.command(words, folder, files, TIMEOUT_S, forks_scripts=forks_scripts)
            assert code is not None, f"{arguments} takes too long"
            return Ended(code, *(path.read_text() for path in files))
    with Command(*arguments, folder=folder, prefix=prefix, output_folder=output_folder) as command:
        return command.wait()


def succeed(*arguments: object, folder: Path, output_folder: Path | None = None, forks_scripts: bool = False) -> Ended:
    """Run a command that must end well."""
    ended = run(*arguments, folder=folder, output_folder=output_folder, forks_scripts=forks_scripts)
    assert ended.return_code == 0, ended.errors
    return ended


def result_of(out: Path) -> dict[str, Any]:
    """result.json of a run folder."""
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def metrics_of(out: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl, of one kind or all; none where there is no file."""
    path = out / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    return [line for line in lines if kind in (None, line["kind"])]


def last_step(out: Path) -> int:
    """The last training step that metrics.jsonl knows; 0 before the first. Reads its end alone, being asked often."""
    path = out / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        steps = [int(found) for found in _TRAIN_STEP.findall(file.read())]
    return max(steps, default=0)
