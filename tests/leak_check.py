"""Finds what a test leaves behind: processes, threads, descriptors and sockets, names in /dev/shm."""

import gc
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

GRACE_S = 20.0  # of a busy machine: what was killed ends when it gets a core
_POLL_S = 0.01
_MARK = "SAMOVAR_TEST_RUN"
_SHARED_MEMORY = Path("/dev/shm")
_LAST_STANDARD = 2  # pytest turns output and errors over when it is interrupted
# Opened once and kept by the interpreter or a library, whichever test comes first.
_HARMLESS_THREADS = {"tqdm_monitor"}  # of torch.compile, where tqdm is installed
_HARMLESS_TARGETS = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/nvidia", "/proc/", "/sys/")


@dataclass(frozen=True)
class Belongings:
    """The resources that this test process and its descendants hold at one moment."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]
    shared_memory: frozenset[str]


def mark_descendants() -> None:
    """Give all processes started from here on a mark by which an orphan is still known as ours."""
    os.environ[_MARK] = _mark()


def take_stock() -> Belongings:
    """The resources that exist now."""
    return Belongings(
        frozenset(_descendants()),
        frozenset(_threads()),
        frozenset(_descriptors()),
        frozenset(_shared_memory()),
    )


def leftovers(before: Belongings, grace_s: float, *, outside: bool = False) -> list[str]:
    """A sentence for each thing that is there now and was not `before`, once `grace_s` have passed.

    A resource that is just ending has that long to go. `outside` looks only for what outlives this process: processes
    and names.
    """
    deadline_s = time.monotonic() + grace_s
    while (left := _left(before, outside=outside)) and time.monotonic() < deadline_s:
        gc.collect()  # an object that nobody holds is no leak
        time.sleep(_POLL_S)
    return left


def _left(before: Belongings, *, outside: bool) -> list[str]:
    after = take_stock()
    inside = () if outside else (_left_threads, _left_descriptors)
    searches = (_left_processes, *inside, _left_shared_memory)
    return [sentence for search in searches for sentence in search(before, after)]


def _left_processes(before: Belongings, after: Belongings) -> Iterator[str]:
    for process in after.processes - before.processes:
        yield f"process {process.pid} ({_described(process)})"


def _left_threads(before: Belongings, after: Belongings) -> Iterator[str]:
    for thread in after.threads - before.threads:
        kind = "daemon thread" if thread.daemon else "thread"
        yield f"{kind} {thread.name!r}"


def _left_descriptors(before: Belongings, after: Belongings) -> Iterator[str]:
    new = sorted(after.descriptors - before.descriptors)
    sockets = _socket_names() if new else {}
    for descriptor, target in new:
        yield f"descriptor {descriptor}: {sockets.get(descriptor, target)}"


def _left_shared_memory(before: Belongings, after: Belongings) -> Iterator[str]:
    for path in (_SHARED_MEMORY / name for name in sorted(after.shared_memory - before.shared_memory)):
        if not _held_by_a_stranger(path) and path.exists():  # in this order: a stranger may just be giving it up
            yield f"shared memory name {path}"


def end_processes(before: Belongings) -> None:
    """Kill the processes that came after `before`, and wait for those whose parent is this one."""
    left = _descendants() - before.processes
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=GRACE_S)


class _Census:
    """Whose the processes of this machine are. Strangers are looked at twice, not after every test."""

    def __init__(self) -> None:
        self._strangers: set[int] = set()
        self._seen: set[int] = set()

    def descendants(self) -> set[psutil.Process]:
        """Children of children included; and orphans, by their mark."""
        numbers = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        self._strangers &= numbers
        parents = {number: _parent_of(number) for number in numbers - self._strangers - {os.getpid()}}
        ours = {number for number in parents if _descends(number, parents) or _is_marked(Path("/proc", str(number)))}
        others = parents.keys() - ours
        self._strangers |= others & self._seen  # one that is just starting has no mark to be read yet
        self._seen = set(others)
        return {process for number in ours if (process := _process(number)) is not None}


_census = _Census()


def _descendants() -> set[psutil.Process]:
    return _census.descendants()


def _parent_of(number: int) -> int | None:
    """None where the process has ended meanwhile."""
    try:
        stat = Path("/proc", str(number), "stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])  # its name, in brackets, may hold anything


def _descends(number: int | None, parents: Mapping[int, int | None]) -> bool:
    """Whether this process is an ancestor."""
    while number in parents:
        number = parents[number]
    return number == os.getpid()


def _process(number: int) -> psutil.Process | None:
    try:
        return psutil.Process(number)
    except psutil.Error:
        return None


@cache
def _mark() -> str:
    return f"{os.getpid()}-{psutil.Process().create_time()}"


def _is_marked(entry: Path) -> bool:
    try:
        variables = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{_MARK}={_mark()}".encode() in variables


def _described(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return "ended, but nobody waited for it"
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return "ending"


def _threads() -> Iterator[threading.Thread]:
    for thread in threading.enumerate():
        if thread.is_alive() and thread.name not in _HARMLESS_THREADS:
            yield thread


def _descriptors() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the descriptor of this very listing
            continue
        if int(entry.name) > _LAST_STANDARD and not target.startswith(_HARMLESS_TARGETS):
            yield int(entry.name), target


def _socket_names() -> dict[int, str]:
    """Descriptor to what the socket is: its port, or its name (abstract ones start with @)."""
    connections = psutil.Process().net_connections(kind="all")
    return {one.fd: _socket_name(one) for one in connections}


def _socket_name(connection: "psutil._ntuples.pconn") -> str:
    state = "" if connection.status == psutil.CONN_NONE else f" {connection.status}"
    address = connection.laddr or "without a name"
    if isinstance(address, tuple):
        return f"socket on {address[0]} port {address[1]}{state}"
    return f"unix socket {address}{state}"


def _shared_memory() -> Iterator[str]:
    with suppress(FileNotFoundError):
        for entry in _SHARED_MEMORY.iterdir():
            yield entry.name


def _held_by_a_stranger(path: Path) -> bool:
    """True where a living process that is not ours has the file open or mapped: it is that one's name."""
    ours = {process.pid for process in _descendants()} | {os.getpid()}
    return any(_holds(pid, str(path)) for pid in psutil.pids() if pid not in ours)


def _holds(process_id: int, name: str) -> bool:
    folder = Path("/proc") / str(process_id)
    with suppress(OSError):
        if any(line.endswith(name) for line in (folder / "maps").read_text().splitlines()):
            return True
    with suppress(OSError):
        for entry in (folder / "fd").iterdir():
            with suppress(OSError):
                if str(entry.readlink()) == name:
                    return True
    return False
