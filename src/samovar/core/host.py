"""This process on its host: its memory, processors and control groups, and other programs on its cores."""

import contextlib
import ctypes
import fcntl
import os
import re
import resource
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from samovar import _native
from samovar.core.errors import InputError

_TRIM_THRESHOLD: Final = -1  # names of glibc's malloc.h
_MMAP_THRESHOLD: Final = -3
_MMAP_MAX: Final = -4
_NEVER: Final = -1
# The largest that glibc takes from its heap where it maps any block by itself.
_LARGEST_BYTES: Final = 32 << 20


def peak_memory_bytes(status: Path = Path("/proc/self/status")) -> int:
    """The most that was resident so far, with memory that it shares with others; 0 where the system does not tell.

    Not getrusage's, which begins with that of the process that started this one.
    """
    found = re.search(r"^VmHWM:\s+(\d+) kB$", text_of(status), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def boot_id() -> str:
    """The number of this host's last start, which no other host has."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def refuse_name(who: str, error: OSError | UnicodeError) -> None:
    """Raise InputError if no host has the name in `who`. A name server that is away now may answer later."""
    if isinstance(error, UnicodeError) or (isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN):
        why = getattr(error, "strerror", None) or "no host can be called so"
        raise InputError(f"{who} is not a known host ({why})") from error


def says_loopback(name: str) -> bool:
    """Whether a name or a numeric address means this host by itself, wherever names lead."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def keep_freed_memory(*, large_too: bool) -> bool:
    """Let malloc keep freed memory for the next step instead of returning it to the kernel; whether it does.

    Every step asks for the same blobs again. Pages that come fresh from the kernel cost a fault and zeros each. They
    take 3 to 20 % of a step (20,000 faults in a step of AlexNet or GoogLeNet). The process stays as large as it was at
    its largest. With `large_too` blocks above 32 MiB are kept as well. Several copies of each may exist until malloc's
    caches of slivers have filled.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    which = mallopt(_MMAP_MAX, 0) if large_too else mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
    return bool(which and mallopt(_TRIM_THRESHOLD, _NEVER))


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that is free for new processes: the system's, less where a control group has less; None: not told.

    `root` is where /proc and /sys are looked for.
    """
    lines = text_of(root / "proc/meminfo").splitlines()
    available = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return min((value for value in (*available, memory_left(root)) if value is not None), default=None)


def address_space_left() -> int | None:
    """Bytes that this process may still map under its limit (`ulimit -v`); None without one."""
    limit, _hard = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, limit - used_pages * resource.getpagesize())


_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create_empty() -> int:
    """A new empty file in memory (memfd) that processes map together: it has no name, so no kill leaves one behind.

    The caller owns the descriptor, which children inherit only where it is passed on.
    """
    return os.memfd_create("samovar", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(descriptor: int) -> None:
    """The file keeps its size from now on, so no mapping of it can ever fault."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)


def is_sealed(descriptor: int) -> bool:
    """Whether the file has got the size and the content with which others may map it."""
    return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK != 0


_PROCESSORS = Path("/proc/cpuinfo")


def vendor(path: Path = _PROCESSORS) -> str:
    """The maker, such as "GenuineIntel" or "AuthenticAMD"; an empty string where it is not told."""
    return next(iter(_values("vendor_id", path)), "")


def models(path: Path = _PROCESSORS) -> list[str]:
    """The name of every core's model."""
    return _values("model name", path)


def _values(key: str, path: Path) -> list[str]:
    return re.findall(rf"^{key}\s*:\s*(.+)$", text_of(path), re.MULTILINE)


_STAT: Final = Path("/proc/stat")
# Of a line of it: user, nice, system, irq, softirq and stolen; a guest's time is in user's already.
_BUSY_FIELDS: Final = (1, 2, 3, 6, 7, 8)
_LOOK_S: Final = 0.1
_LOOK_EVERY_S: Final = 0.5
_CROWDED_CORES, _QUIET_CORES = 0.3, 0.1
_QUIET_LOOKS: Final = 4


def busy_seconds(cpus: Iterable[int], path: Path = _STAT) -> dict[int, float]:
    """Busy seconds of each of these cores since the machine started; empty if the system does not report them."""
    wanted = {f"cpu{cpu}": cpu for cpu in cpus}
    lines = [line.split() for line in text_of(path).splitlines()]
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    found = {wanted[line[0]]: line for line in lines if line and line[0] in wanted}
    return {cpu: sum(int(line[field]) for field in _BUSY_FIELDS) / ticks_a_second for cpu, line in found.items()}


def available_cpus() -> tuple[int, ...]:
    """As many of the cores that this process sees as it may have the time of: a container may see more."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return cores[: max(1, int(cpu_quota_cores() or len(cores)))]


def num_available_cpus() -> int:
    return len(available_cpus())


def taken_cpus(cpus: Iterable[int], look_s: float = _LOOK_S) -> tuple[int, ...]:
    """As many of these cores as others compute on, the busiest first; takes `look_s`, in which this process rests."""
    cpus = tuple(cpus)
    before = busy_seconds(cpus)
    time.sleep(look_s)
    busy = {cpu: seconds - before[cpu] for cpu, seconds in busy_seconds(cpus).items() if cpu in before}
    count = round(sum(busy.values()) / look_s)
    return tuple(sorted(busy, key=busy.__getitem__, reverse=True)[:count])


def family_seconds() -> float:
    """Processor seconds of this process and of all that descend from it, also of those that have ended."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        if fields := text_of(path).rpartition(")")[2].split():  # a process may end meanwhile
            parents[path.parent.name], ticks[path.parent.name] = fields[1], sum(map(int, fields[11:15]))
    family, size = {str(os.getpid())}, 0
    while len(family) > size:
        size = len(family)
        family |= {number for number, parent in parents.items() if parent in family}
    return sum(ticks.get(number, 0) for number in family) / os.sysconf("SC_CLK_TCK")


class Others:
    """How many cores' worth other programs than this, which took own_s(), compute on `cpus` between two looks.

    Without `cpus` on all cores of the machine.
    """

    def __init__(self, cpus: Iterable[int] = (), own_s: Callable[[], float] = time.process_time) -> None:
        self._cpus, self._own_s = tuple(cpus) or tuple(range(os.cpu_count() or 1)), own_s
        self._before = self._now()

    def share(self) -> float:
        """Of these cores' time, since the last look."""
        return min(1.0, self.cores() / len(self._cpus))

    def cores(self) -> float:
        """Since the last look; 0 where the system does not tell."""
        before, self._before = self._before, self._now()
        wall_s, busy_s, own_s = (now - then for now, then in zip(self._before, before, strict=True))
        return max(0.0, (busy_s - own_s) / wall_s) if wall_s > 0 else 0.0

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), sum(busy_seconds(self._cpus).values()), self._own_s()


class PoliteThreads:
    """Lets `num_threads` compute threads sleep while they wait for each other, as long as others use their cores.

    By default they spin for milliseconds first. A barrier is then fast if each has a core. If one has none, the others
    spin on the core that it waits for: next to one busy program on 2 cores LeNet makes a tenth of its steps. The sums
    of each thread stay the same.
    """

    def __init__(self, num_threads: int) -> None:
        cpus = os.sched_getaffinity(0)
        self._num_idle = max(1, len(cpus) - num_threads + 2)
        self._others = Others(cpus) if num_threads > 1 else None
        self._look_s = time.monotonic() + _LOOK_EVERY_S
        self._quiet_looks = 0
        self._idle: _native.IdleThreads | None = None

    def look(self) -> bool:
        """Between two steps; whether others have just come, for the first time or again."""
        if self._others is None or time.monotonic() < self._look_s:
            return False
        self._look_s = time.monotonic() + _LOOK_EVERY_S
        cores = self._others.cores()
        if self._idle is None:
            return self._come() if cores > _CROWDED_CORES else False
        self._quiet_looks = self._quiet_looks + 1 if cores < _QUIET_CORES else 0
        if self._quiet_looks == _QUIET_LOOKS:
            self._idle = None
        return False

    def _come(self) -> bool:
        self._idle, self._quiet_looks = _native.IdleThreads(self._num_idle), 0
        return True


_UNLIMITED_BYTES = 1 << 60  # version 1 writes a number of about this size for "no limit"
_CACHE = re.compile(r"^((?:total_)?(?:in)?active_file) (\d+)$", re.MULTILINE)


def control_groups(root: Path = Path("/")) -> Iterator[Path]:
    """The folders of this process's groups and of all above them; `root` is where /proc and /sys are looked for."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup" / controllers
        group = top / path.lstrip("/")
        # Inside a container the path may be the host's; what counts is then mounted at the top.
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top) and folder.is_dir())


def memory_limit(group: Path) -> int | None:
    """In bytes; None without one."""
    limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
    return limit if limit is not None and limit < _UNLIMITED_BYTES else None


def memory_left(root: Path = Path("/")) -> int | None:
    """Bytes that the groups still allow; None if no group has a limit.

    Files that the kernel keeps in memory count as used there, but make room if needed.
    """
    return _least(root, _memory_left_in)


def cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """The number of cores whose time the groups may use; None if no group has a limit."""
    return min((quota for group in control_groups(root) if (quota := _cpu_quota_of(group)) is not None), default=None)


def processes_left(root: Path = Path("/")) -> int | None:
    """Processes and threads that the groups still allow; None if no group has a limit."""
    return _least(root, _processes_left_in)


def text_of(path: Path) -> str:
    """The file's content, or nothing."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _least(root: Path, left_in: Callable[[Path], int | None]) -> int | None:
    return min((left for group in control_groups(root) if (left := left_in(group)) is not None), default=None)


def _memory_left_in(group: Path) -> int | None:
    limit, used = memory_limit(group), _number(group / "memory.current", group / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    kept = {name: int(size) for name, size in _CACHE.findall(text_of(group / "memory.stat"))}
    # Of version 1 the names with "total" count the groups below, as its usage does.
    cache = [kept.get(f"total_{name}", kept.get(name, 0)) for name in ("active_file", "inactive_file")]
    return max(0, limit - max(0, used - sum(cache)))


def _cpu_quota_of(group: Path) -> float | None:
    words = text_of(group / "cpu.max").split()
    if not words:
        words = [*text_of(group / "cpu.cfs_quota_us").split(), *text_of(group / "cpu.cfs_period_us").split()]
    with contextlib.suppress(ValueError, ZeroDivisionError):
        quota, period = (float(word) for word in words)
        return quota / period if quota > 0 else None
    return None


def _processes_left_in(group: Path) -> int | None:
    limit, used = _number(group / "pids.max"), _number(group / "pids.current")
    return None if limit is None or used is None else max(0, limit - used)


def _number(*paths: Path) -> int | None:
    """The number in the first of these files that exists; None if it holds none."""
    found = next((text for path in paths if (text := text_of(path).strip())), "")
    return int(found) if found.isdecimal() else None
