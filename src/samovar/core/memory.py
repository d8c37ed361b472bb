"""How much memory there is for a process, how much it takes, and what it does with what it has freed."""

import contextlib
import ctypes
import re
import resource
from pathlib import Path
from typing import Final

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
    with contextlib.suppress(OSError):
        if found := re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE):
            return int(found[1]) << 10
    return 0


def keep_freed_memory(*, large_too: bool) -> bool:
    """Have malloc keep what is freed for the next step, instead of giving it back to the kernel; whether it does.

    Every step asks for the same blobs again, and pages that come fresh from the kernel cost a fault and zeros each:
    3 to 20 % of a step (20,000 faults in each of AlexNet's and GoogLeNet's without this, none with it). The process
    stays as large as it was at its largest. With `large_too` blocks above 32 MiB are kept as well; until malloc's
    caches of slivers have filled, several copies of each may lie there.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    which = mallopt(_MMAP_MAX, 0) if large_too else mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
    return bool(which and mallopt(_TRIM_THRESHOLD, _NEVER))


def available_bytes(meminfo: Path = Path("/proc/meminfo"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that is free for new processes: the system's, less where a control group has less; None: not told."""
    found = [_meminfo_bytes(meminfo), left_in_groups(groups, "memory.max", "memory.current")]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def _meminfo_bytes(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def left_in_groups(root: Path, limit: str, used: str) -> int | None:
    """What is left of this process's control group and of those around it (version 2), as two of their files tell."""
    try:
        name = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
    except OSError:
        return None
    own = root / name.lstrip("/")
    left = [_left_in(folder, limit, used) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    known = [value for value in left if value is not None]
    return min(known) if known else None


def _left_in(folder: Path, limit: str, used: str) -> int | None:
    try:
        most = (folder / limit).read_text().strip()
        taken = int((folder / used).read_text())
    except (OSError, ValueError):
        return None
    return None if most == "max" or not most.isdecimal() else max(0, int(most) - taken)


def address_space_left() -> int | None:
    """What this process may still map under its limit (`ulimit -v`); None without one."""
    limit, _hard = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, limit - used_pages * resource.getpagesize())
