"""The shell in which the commands of a page are run. tools/docs_run.py uses it."""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from docs_blocks import Step, agree

COMMAND_LIMIT_S = 300.0
_POLL_S = 0.05
_MARK = "SAMOVAR_DOCS_RUN"


@dataclass(frozen=True)
class Ended:
    """A command's exit code (None if it took too long), and its output."""

    code: int | None
    lines: list[str]


@dataclass(frozen=True)
class Background:
    """A command in the background, with the lines that the page showed and the number that it had printed."""

    process: "subprocess.Popen[bytes]"
    output: Path
    shown: list[str]
    num_lines: int


class Shell:
    """A shell in the folder of a page. It keeps what `cd` and `export` change."""

    def __init__(self, root: Path, place: Path, limit_s: float) -> None:
        self.folder = place / "page"
        self._place = place
        self._deadline_s = time.monotonic() + limit_s
        self._started: list[subprocess.Popen[bytes]] = []
        self._background: dict[str, Background] = {}
        self._mark = uuid.uuid4().hex
        self.folder.mkdir()
        (self.folder / "examples").symlink_to(root / "examples")
        (place / "state").write_text(f"cd '{self.folder}'\n")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        plain = {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1", "HOME": str(self.folder)}
        own = {"XDG_STATE_HOME": str(self.folder / ".state"), "PATH": path, _MARK: self._mark}
        self.environment = os.environ | plain | own

    def _start(self, command: str) -> tuple["subprocess.Popen[bytes]", Path]:
        output = self._place / f"output{len(self._started)}"
        with output.open("wb") as out:
            started = subprocess.Popen(
                ["bash", "-c", f". '{self._place}/state'\n{command}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(started)
        return started, output

    def run(self, command: str) -> Ended:
        """Run a command; return its exit code and its output."""
        state = f"{{ export -p; echo \"cd '$PWD'\"; }} > '{self._place}/state'"
        started, output = self._start(f"{command}\n_code=$?; {state}; exit $_code")
        code = self._code(started)
        return Ended(code, lines_of(output))

    def _left_s(self) -> float:
        return min(COMMAND_LIMIT_S, max(0.0, self._deadline_s - time.monotonic()))

    def _code(self, started: "subprocess.Popen[bytes]") -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return started.wait(self._left_s())
        return None

    def begin(self, name: str, step: Step) -> Ended:
        """Start a command in the background, and wait until it has printed what the page shows."""
        # The shell makes way for it, so that Ctrl-C reaches the command alone.
        started, output = self._start(f"exec {step.command}")
        limit_s = time.monotonic() + self._left_s()
        while not (has_come := agree(step.shown, lines_of(output), whole=False)) and time.monotonic() < limit_s:
            if started.poll() is not None:
                break
            time.sleep(_POLL_S)
        lines = lines_of(output)
        self._background[name] = Background(started, output, step.shown, len(lines))
        return Ended(0 if has_come else started.poll(), lines)

    def rest(self, name: str, step: Step) -> Ended:
        """Wait for the end of a command in the background; return its exit code and its output. Raises KeyError."""
        begun = self._background.pop(name)
        if step.command == "^C":
            os.killpg(begun.process.pid, signal.SIGINT)
        code = self._code(begun.process)
        lines = lines_of(begun.output)
        if agree([*begun.shown, *step.shown], lines):
            return Ended(code, step.shown)
        return Ended(code, lines[begun.num_lines :])

    def close(self) -> None:
        """End all that was started here."""
        for begun in self._background.values():
            with suppress(ProcessLookupError):
                os.killpg(begun.process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                begun.process.wait(20)
        while left := marked(self._mark):
            for number in left:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            for started in self._started:
                started.poll()
            time.sleep(_POLL_S)
        for started in self._started:
            started.wait()


def lines_of(output: Path) -> list[str]:
    """The lines as a terminal shows them: of a redrawn line, the last version."""
    text = output.read_text(encoding="utf-8", errors="replace")
    return [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.splitlines()]


def marked(mark: str) -> list[int]:
    """Processes that a page started, also those that left its group."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"{_MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found
