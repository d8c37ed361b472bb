"""The program of a rank process: `python -m samovar.training.rank`, started by the launcher."""

import gc
import importlib
import os
import select
import signal
import socket
import stat
import sys
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from samovar.core.host import keep_freed_memory
from samovar.launch.limits import allocator_is_chosen
from samovar.launch.rank_arguments import SNAPSHOT_SIGNAL, STOP_SIGNALS, RankArguments, end_with_parent

_REQUEST_BYTES = 64
_MOST_DESCRIPTORS = 3
_ARGUMENTS = slice(45, 47)  # of /proc/PID/stat behind the name: arg_start and arg_end, its fields 48 and 49


def main(arguments: list[str]) -> int:
    """Bind this process's life to the launcher's, then do this rank's part of the job; the exit code."""
    given = RankArguments.parse(arguments)
    end_with_parent(given.parent)
    # These signals wait until the rank can act on them.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, SNAPSHOT_SIGNAL))
    if not allocator_is_chosen():
        keep_freed_memory(large_too=True)
    # Only now: it imports torch, which takes seconds, and the launcher may be killed meanwhile.
    work = _imported("samovar.training.rank_work").work
    warnings.filterwarnings("ignore", "This process .*fork", DeprecationWarning)  # its threads are libraries', and idle
    code: int = work(fork_others(given))
    return code


def _imported(name: str) -> ModuleType:
    """Import a module, and exempt it from garbage collection: that saves a quarter of the time, now and later."""
    gc.disable()
    module = importlib.import_module(name)
    gc.freeze()
    gc.enable()
    return module


def fork_others(given: RankArguments) -> RankArguments:
    """Fork a process for each rank that the launcher asks for at standard input; `given`, or their own arguments.

    They are children of a process that ends after the last one. So the launcher adopts them.
    """
    if not stat.S_ISSOCK(os.fstat(0).st_mode):  # a rank of its own, or one that is started again
        return given
    with socket.socket(fileno=os.dup(0)) as asked:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        first = os.getpid()
        try:
            between = os.fork()
        except OSError:  # no room for it here; the launcher learns it from the closed socket
            return given
        if between:
            os.waitpid(between, 0)
            return given
        try:
            end_with_parent(first)
            return _in_between(given, asked)
        except OSError:
            os._exit(1)


def _in_between(given: RankArguments, asked: socket.socket) -> RankArguments:
    """Serve the launcher until it has all ranks; returns only in these."""
    own = os.pidfd_open(os.getpid())
    asked.send(str(os.getpid()).encode())
    while (request := socket.recv_fds(asked, _REQUEST_BYTES, _MOST_DESCRIPTORS))[0]:
        if os.fork() == 0:
            return _as_forked(given, int(request[0]), request[1], asked, own)
        for descriptor in request[1]:
            os.close(descriptor)
    os._exit(0)


def _as_forked(
    given: RankArguments, rank: int, descriptors: list[int], asked: socket.socket, between: int
) -> RankArguments:
    """Give a forked rank its own session, pipe, log, the place to listen, command line and random numbers."""
    os.setsid()
    pipe, log, *listening = descriptors
    for stream in (1, 2):
        os.dup2(log, stream)
    for descriptor in (log, given.pipe, given.listening):
        if descriptor >= 0:
            os.close(descriptor)
    mine = replace(given, rank=rank, pipe=pipe, listening=listening[0] if listening else -1)
    _show(mine.to_command(sys.executable))
    importlib.import_module("numpy").random.seed()
    importlib.import_module("torch").default_generator.seed()
    asked.send(str(os.getpid()).encode())
    select.select([between], [], [])
    os.close(between)
    end_with_parent(given.parent)
    return mine


def _show(command: list[str]) -> None:
    """Let `ps` show this command in the place of the first rank's."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_ARGUMENTS])
    text = os.fsencode("\0".join(command))[: end - start - 1].ljust(end - start, b"\0")
    with suppress(OSError), Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
