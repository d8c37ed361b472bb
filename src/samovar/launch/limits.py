"""How many workers this machine bears: more are refused before one is started."""

from pathlib import Path
from typing import Final

from samovar.core.errors import InputError
from samovar.launch.placement import num_available_cpus

MOST_THREADS_PER_CORE: Final = 8
# What a rank takes for itself before it has a net: the interpreter and PyTorch. Measured: 190 to 230 MiB.
RANK_BYTES: Final = 160 << 20


def require_room(flag: str, workers: int, threads_per_worker: int | None, oversubscribe: bool) -> None:
    """Raises InputError where so many workers or threads are too many for the cores, or surely for the memory.

    `flag` is what the user gave. `oversubscribe` lifts the limit of the cores; nothing lifts that of the memory.
    """
    cores, threads = num_available_cpus(), threads_per_worker or 1
    most = cores * MOST_THREADS_PER_CORE
    if workers * threads > most and not oversubscribe:
        raise InputError(
            f"{flag}: {workers:,} workers x {threads:,} threads are more than {MOST_THREADS_PER_CORE} threads for each "
            f"of {cores} cores; at most {max(1, most // threads):,} workers of so many threads fit; give fewer, or "
            "--oversubscribe"
        )
    free_bytes = available_bytes()
    if free_bytes is not None and workers * RANK_BYTES > free_bytes:
        raise InputError(
            f"{flag}: {workers:,} workers need at least {workers * RANK_BYTES / 1e9:,.1f} GB, and "
            f"{free_bytes / 1e9:,.1f} GB are free; at most {free_bytes // RANK_BYTES:,} fit; give fewer"
        )


def available_bytes(meminfo: Path = Path("/proc/meminfo"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that is free for new processes: the system's, less where a control group has less; None: not told."""
    found = [_meminfo_bytes(meminfo), _group_bytes(groups)]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def _meminfo_bytes(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _group_bytes(root: Path) -> int | None:
    """What is left of this process's control group and those around it (version 2)."""
    try:
        name = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        own = root / name.lstrip("/")
    except OSError:
        return None
    left = [_left_in(folder) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    known = [value for value in left if value is not None]
    return min(known) if known else None


def _left_in(folder: Path) -> int | None:
    try:
        most = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if most == "max" or not most.isdecimal() else max(0, int(most) - used)
