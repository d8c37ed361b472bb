"""Commands and rank programs as forks of one process that has loaded torch; see `loaded_program`."""

import inspect
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROGRAM = Path(__file__).with_name("loaded_program.py")
_FORK_S = 250.0
_ROOM = "-" * 2000  # on its command line, where its forks show theirs


class Loaded:
    """Such a process, which runs one thing after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), _ROOM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Of numpy, at its import: threads would not come along into a fork.
            env=os.environ | {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")},
        )
        self.lock = threading.Lock()
        self.is_closed = False

    def command(
        self,
        arguments: Sequence[str],
        folder: Path,
        files: Sequence[Path],
        timeout_s: float,
        *,
        forks_scripts: bool = False,
    ) -> int | None:
        """The exit code of `samovar` with these arguments, which writes to the two files; None if it takes longer.

        With `forks_scripts` the scripts of `samovar run` are forks too.
        """
        return self._asked(
            timeout_s,
            arguments=list(arguments),
            folder=str(folder),
            output=str(files[0]),
            errors=str(files[1]),
            environment=dict(os.environ),
            forks_scripts=forks_scripts,
        )

    def ranks(
        self, module: str, arguments: Sequence[Sequence[str]], files: Sequence[Sequence[Path]], timeout_s: float
    ) -> int | None:
        """The number, counted from 1, of the first rank that failed; 0 if none did, None if they take longer."""
        named = [[str(path) for path in own] for own in files]
        words = [list(own) for own in arguments]
        environment = dict(os.environ)
        return self._asked(
            timeout_s, module=module, folder=str(ROOT), files=named, environment=environment, arguments=words
        )

    def child(
        self, words: Sequence[str], folder: str, streams: Sequence[str], environment: Mapping[str, str], *, leads: bool
    ) -> int:
        """The number of a child of this process that is `words`, and leads a session if asked to.

        The process between, whose child it was, has ended.
        """
        from samovar import _native  # not by the leak check's own runs, which have no package

        adopted_before = _native.adopt_orphans(True)
        try:
            given = {"words": list(words), "streams": list(streams), "environment": dict(environment)}
            number = self._asked(_FORK_S, parent=os.getpid(), folder=folder, leads=leads, **given)
        finally:
            _native.adopt_orphans(adopted_before)
        assert number is not None, f"{words} is not forked"
        return number

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


class Forked(subprocess.Popen[str]):
    """A child whose interpreter is not started anew: `samovar ...`, `python -m MODULE ...` or `python FILE ...`.

    Another command, one that inherits descriptors, or one for which no loaded process is free, starts as ever.
    """

    def _execute_child(self, *given: Any) -> None:
        """In place of Popen's."""
        execute: Any = super()._execute_child  # type: ignore[misc]
        asked = inspect.signature(execute).bind(*given).arguments
        with free() as process:
            if process is None or asked["pass_fds"] or not _is_known(asked["args"]):
                execute(*given)
                return
            streams = [f"/proc/{os.getpid()}/fd/{asked[name]}" for name in ("p2cread", "c2pwrite", "errwrite")]
            environment = os.environ if asked["env"] is None else asked["env"]
            folder, leads = os.fspath(asked["cwd"] or Path.cwd()), asked["start_new_session"]
            self.pid = process.child(asked["args"], folder, streams, environment, leads=leads)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


def _is_known(words: Sequence[str]) -> bool:
    is_program = words[0] == sys.executable and (words[1] == "-m" or not words[1].startswith("-"))
    return is_program or Path(words[0]).name == "samovar"
