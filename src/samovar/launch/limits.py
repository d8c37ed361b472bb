"""How many workers this machine can run: a larger number is refused before any starts."""

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

from samovar.core import host
from samovar.core.errors import InputError
from samovar.core.host import available_bytes, num_available_cpus

MOST_THREADS_PER_CORE: Final = 8
# What a rank has for itself beside a net: the interpreter and PyTorch, of which all ranks share 50 MiB more. Measured
# with the smallest nets: 170 to 174 MiB.
RANK_BYTES: Final = 176 << 20


def require_room(flag: str, workers: int, threads_per_worker: int | None, oversubscribe: bool | None) -> None:
    """Raises InputError for more workers or threads than cores, memory or the limit of processes allow.

    `flag` is the user's. `oversubscribe` lifts the limit of the cores (None: the command has no such flag), and only
    that.
    """
    threads = threads_per_worker or 1
    if not oversubscribe:
        _require_cores(flag, workers, threads, "" if oversubscribe is None else ", or --oversubscribe")
    _require_memory(flag, workers)
    _require_processes(flag, workers, threads)


def _require_cores(flag: str, workers: int, threads: int, way_out: str) -> None:
    cores = num_available_cpus()
    most = cores * MOST_THREADS_PER_CORE
    if workers * threads > most:
        fitting = f"{most // threads:,} workers" if workers > 1 and threads <= most else f"{most:,} threads"
        raise InputError(
            f"{flag}: {workers:,} workers x {threads:,} threads are more than {MOST_THREADS_PER_CORE} threads for each "
            f"of {cores} cores. At most {fitting} fit; give fewer{way_out}"
        )


def _require_memory(flag: str, workers: int) -> None:
    free_bytes = available_bytes()
    if free_bytes is not None and workers * RANK_BYTES > free_bytes:
        most = free_bytes // RANK_BYTES
        raise InputError(
            f"{flag}: {workers:,} workers need at least {workers * RANK_BYTES / 1e9:,.1f} GB, and "
            f"{free_bytes / 1e9:,.1f} GB are free. {f'At most {most:,} fit; give fewer' if most else 'Free some'}"
        )


def _require_processes(flag: str, workers: int, threads: int) -> None:
    left, needed = processes_left(), workers * (1 + threads)
    if left is not None and needed > left:
        raise InputError(
            f"{flag}: {workers:,} workers of {threads:,} threads are at least {needed:,} processes and threads, but "
            f"only {left:,} more may start. At most {left // (1 + threads):,} workers fit; give fewer, or raise the "
            "limit (ulimit -u, or the control group's)"
        )


def processes_left(root: Path = Path("/")) -> int | None:
    """Processes and threads that may still start, by the control groups and the user's limit; None: no limit. Root has
    no limit of its own.
    """
    found = [host.processes_left(root), _left_to_user()]
    return min((value for value in found if value is not None), default=None)


def _left_to_user() -> int | None:
    limit, _hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:
        return None
    return max(0, limit - sum(_num_threads(folder) for folder in Path("/proc").glob("[0-9]*")))


def _num_threads(process: Path) -> int:
    """Threads of a process of this user; 0 for others, and for one that has ended."""
    with contextlib.suppress(OSError):
        return len(list((process / "task").iterdir())) if process.stat().st_uid == os.getuid() else 0
    return 0


_MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def allocator_is_chosen() -> bool:
    """Whether the environment configures malloc, or replaces it."""
    tunes = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    return tunes or "malloc" in os.environ.get("LD_PRELOAD", "") or any(map(os.environ.get, _MALLOC_VARIABLES))
