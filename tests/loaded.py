"""Commands and rank programs as forks of one process that has loaded torch; see `loaded_program`."""

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = Path(__file__).with_name("loaded_program.py")


class Loaded:
    """Such a process, which runs one thing after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Of numpy, at its import: threads would not come along into a fork.
            env=os.environ | {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")},
        )
        self.lock = threading.Lock()
        self.is_closed = False

    def command(self, arguments: Sequence[str], folder: Path, files: Sequence[Path], timeout_s: float) -> int | None:
        """The exit code of `samovar` with these arguments, which writes to the two files; None if it takes longer."""
        return self._asked(
            timeout_s,
            arguments=list(arguments),
            folder=str(folder),
            output=str(files[0]),
            errors=str(files[1]),
            environment=dict(os.environ),
        )

    def ranks(
        self, module: str, arguments: Sequence[Sequence[str]], files: Sequence[Sequence[Path]], timeout_s: float
    ) -> int | None:
        """The number, counted from 1, of the first rank that failed; 0 if none did, None if they take longer."""
        named = [[str(path) for path in own] for own in files]
        words = [list(own) for own in arguments]
        return self._asked(timeout_s, module=module, folder=str(ROOT), files=named, arguments=words)

    def _asked(self, timeout_s: float, **given: object) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            self.close()  # and with it what it runs
            return None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self.is_closed = True
        self._process.kill()
        self._process.communicate()


_loaded: list[Loaded] = []


@contextmanager
def loaded() -> Iterator[None]:
    """Within it, `free` gives such a process."""
    _loaded.append(Loaded())
    try:
        yield
    finally:
        _loaded.pop().close()


@contextmanager
def free() -> Iterator[Loaded | None]:
    """The process, for the caller alone; None where there is none, or while another thread has it."""
    own = _loaded[-1] if _loaded else None
    if own is None or not own.lock.acquire(blocking=False):
        yield None
        return
    try:
        yield None if own.is_closed else own
    finally:
        own.lock.release()
