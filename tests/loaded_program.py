"""The program `samovar` and programs of ranks with their modules loaded, torch among them: each process is a fork.

It reads a JSON object a line and answers each with an exit code. What it runs is as real as what is started anew, with
a session, a pidfd, a log and descriptors of its own; the two seconds in which an interpreter loads torch are not there.
"""

import atexit
import faulthandler
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from samovar import _native
from samovar.launch.watch import ForkedProcess

_LAST_STANDARD = 2


def main() -> None:
    _native.die_with_parent()
    for line in sys.stdin:
        _load()
        given = json.loads(line)
        if "streams" in given:
            print(_forked_child(**given), flush=True)
            continue
        run = _run_ranks if "module" in given else _run_command
        child = os.fork()
        if not child:
            _end_as(partial(run, **given))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _load() -> None:
    """All that these programs need; nothing of it computes, so there is no thread that a fork would lose."""
    for module in ("cli.entry", "cli.commands", "cli.train", "training.rank", "training.rank_work", "api.replicate"):
        importlib.import_module(f"samovar.{module}")


def _forked_child(streams: list[str], **given: Any) -> int:
    """The number of a process that is a child of `parent` when the process in between, whose child it was, has ended.

    `parent` adopts orphans meanwhile. The paths of `streams` are descriptors of it, which it closes after this.
    """
    told, tell = os.pipe()
    flags = (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)
    opened = [os.open(path, flag) for path, flag in zip(streams, flags, strict=True)]
    between = os.fork()
    if not between:
        child = os.fork()
        if not child:
            _end_as(partial(_be_child, opened, **given))
        os.write(tell, str(child).encode())
        os._exit(0)
    os.waitpid(between, 0)
    number = int(os.read(told, 99))
    for descriptor in (told, tell, *opened):
        os.close(descriptor)
    return number


def _be_child(
    opened: Sequence[int], parent: int, words: list[str], folder: str, environment: dict[str, str], leads: bool
) -> int:
    """`words`, as a child of `parent` with these standard streams."""
    while os.getppid() != parent:
        time.sleep(0.001)
    if leads:
        os.setsid()
    os.chdir(folder)
    for number, descriptor in enumerate(opened):
        os.dup2(descriptor, number)
    os.closerange(_LAST_STANDARD + 1, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = os.fdopen(0, closefd=False)
    _show(words)
    if Path(words[0]).name == "samovar":
        return _be_command(words[1:], environment, forks_scripts=True)
    return _be_program(words[1:], environment)


def _run_command(
    folder: str, output: str, errors: str, environment: dict[str, str], arguments: list[str], forks_scripts: bool
) -> int:
    """`samovar` with these arguments, whose ranks are forks too."""
    _native.die_with_parent()
    os.setsid()
    os.chdir(folder)
    _redirect(output, errors)
    return _be_command(arguments, environment, forks_scripts=forks_scripts)


def _be_command(arguments: Sequence[str], environment: Mapping[str, str], *, forks_scripts: bool) -> int:
    from samovar.cli import entry
    from samovar.launch import processes, script

    _become(["samovar", *arguments], environment)
    # There alone: what else a command starts is started.
    for module in (processes, script) if forks_scripts else (processes,):
        module.subprocess = SimpleNamespace(Popen=_started_rank, DEVNULL=subprocess.DEVNULL)  # type: ignore[attr-defined]
    entry.main()
    return 0


def _be_program(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """A script with its arguments, or `-m` and a module, as Python begins and ends it."""
    is_module = words[0] == "-m"
    name, *arguments = words[is_module:]
    _become([name, *arguments], environment)
    sys.path.insert(0, str(Path.cwd() if is_module else Path(name).resolve().parent))
    if environment.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)
    # What the process that was forked would have done at its own end.
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    sys.modules["__main__"] = ModuleType("__main__")  # which lives until the end
    try:
        return _ended(runpy._run_module_as_main if is_module else _run_file, name)  # type: ignore[attr-defined]
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def _run_file(name: str) -> None:
    path, names = Path(name).absolute(), vars(sys.modules["__main__"])
    names["__file__"] = str(path)
    exec(compile(path.read_bytes(), path, "exec"), names)


def _ended(run: Callable[[str], object], name: str) -> int:
    """The exit code of a program that `run` runs."""
    try:
        run(name)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _run_ranks(
    module: str, folder: str, files: list[list[str]], environment: dict[str, str], arguments: list[list[str]]
) -> int:
    """A rank program once for each list of arguments; the first that fails, counted from 1, ends the others.

    An argument `fd:PATH` is a descriptor, to be opened there.
    """
    _native.die_with_parent()
    os.chdir(folder)
    sys.path.insert(0, folder)
    _become([module], environment)  # before the import, which may read both
    importlib.import_module(module)
    ranks = {}
    for number, (words, (output, errors)) in enumerate(zip(arguments, files, strict=True), 1):
        child = os.fork()
        if not child:
            _redirect(output, errors)
            _end_as(partial(_be_rank_program, module, words))
        ranks[child] = number
    while ranks:
        child, status = os.wait()
        failed = ranks.pop(child)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            return failed
    return 0


def _be_rank_program(module: str, words: Sequence[str]) -> int:
    opened = [str(os.open(word[3:], os.O_RDWR)) if word.startswith("fd:") else word for word in words]
    sys.argv = [module, *opened]
    runpy.run_module(module, run_name="__main__")
    return 0


def _started_rank(
    words: Sequence[str],
    stdin: int,
    stdout: int,
    stderr: int,
    pass_fds: Sequence[int],
    env: Mapping[str, str],
    **_others: object,
) -> Any:
    """In place of `subprocess.Popen` in `launch.processes` and `launch.script`."""
    return _ForkedRank(words, (stdin, stdout, stderr), pass_fds, env)


class _ForkedRank(ForkedProcess):
    """A rank process, which leads its session when it is there."""

    def __init__(
        self, words: Sequence[str], streams: Sequence[int], descriptors: Sequence[int], environment: Mapping[str, str]
    ) -> None:
        sys.stdout.flush()
        begun, begin = os.pipe()
        super().__init__(os.fork())
        if not self.pid:
            _end_as(lambda: _be_rank(words, streams, {*descriptors, begin}, environment, begin))
        os.close(begin)
        os.read(begun, 1)  # until it leads its session
        os.close(begun)


def _be_rank(
    words: Sequence[str], streams: Sequence[int], kept: set[int], environment: Mapping[str, str], begin: int
) -> int:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate(streams):
        os.dup2(nothing if descriptor == subprocess.DEVNULL else descriptor, number)
    first = _LAST_STANDARD + 1
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    os.close(begin)
    for descriptor in kept - {begin}:
        os.set_inheritable(descriptor, True)
    faulthandler.enable()
    _show(words)
    module, *arguments = words[words.index("-m") + 1 :]
    _become([module, *arguments], environment)
    os.execv = _executed  # type: ignore[assignment]
    return int(importlib.import_module(module).main(arguments))


def _executed(_path: str, words: Sequence[str]) -> NoReturn:
    """In place of `os.execv`, by which a rank of `samovar run` becomes its script."""
    _show(words)
    sys.exit(_be_program(words[1:], dict(os.environ)))


def _show(words: Sequence[str]) -> None:
    """On the command line, which has room for it."""
    importlib.import_module("samovar.training.rank")._show(list(words))


def _redirect(output: str, errors: str) -> None:
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY), (2, errors, os.O_WRONLY)):
        opened = os.open(path, flags | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)


def _become(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """What a new interpreter would have: arguments, environment, and no handler of a signal but Ctrl-C's."""
    sys.argv = list(words)
    os.environ.clear()
    os.environ.update(environment)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_as(body: Callable[[], int]) -> NoReturn:
    """This process ends with the exit code of `body`; 1 and a traceback if that raises."""
    code = 1
    try:
        code = body()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
