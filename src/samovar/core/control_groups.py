"""This process's control groups, of both versions, and their limits."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

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
