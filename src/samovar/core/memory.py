"""How much memory the process takes, and what it does with what it has freed."""

import contextlib
import ctypes
import re
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
