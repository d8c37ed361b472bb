"""What is here: the machine as its kernel describes it, and the limits of this process."""

import contextlib
import os
import platform
import re
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from samovar.core.host import models

_PACKAGES = ("samovar", "torch", "numpy")
_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "address space": resource.RLIMIT_AS,
    "locked memory": resource.RLIMIT_MEMLOCK,
}
_UNLIMITED_BYTES = 1 << 60  # cgroup version 1 writes a number of about this size for "no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """None where the kernel does not tell, or where there is no such limit.

    `memory_limit_bytes` and `cpu_quota_cores` are those of this process's control group. `limits` are soft limits.
    `memfd_error` is why an anonymous memory file cannot be made.
    """

    cpu_model: str
    cores_present: int
    cpus_allowed: tuple[int, ...]
    numa_nodes: int
    cpu_quota_cores: float | None
    governors: tuple[str, ...]
    load_average: float
    memory_total_bytes: int
    memory_available_bytes: int
    memory_limit_bytes: int | None
    swap_used_bytes: int
    memory_pressure_percent: float | None
    memfd_error: str | None
    huge_pages: str | None
    shared_huge_pages: str | None
    limits: Mapping[str, int | None]
    kernel: str
    versions: Mapping[str, str]


def read_host(root: Path = Path("/")) -> HostFigures:
    """The machine of this process; `root` is where /proc and /sys are looked for."""
    memory = _memory(root)
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    groups = list(_control_groups(root))
    return HostFigures(
        cpu_model=_cpu_model(root),
        cores_present=os.cpu_count() or len(cpus),
        cpus_allowed=cpus,
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))),
        cpu_quota_cores=min((quota for group in groups if (quota := _quota(group)) is not None), default=None),
        governors=_governors(root, cpus),
        load_average=os.getloadavg()[0],
        memory_total_bytes=memory.get("MemTotal", 0),
        memory_available_bytes=memory.get("MemAvailable", 0),
        memory_limit_bytes=min((size for group in groups if (size := _memory_limit(group)) is not None), default=None),
        swap_used_bytes=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
        memory_pressure_percent=_pressure(root),
        memfd_error=_memfd_error(),
        huge_pages=_selected(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        shared_huge_pages=_selected(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        limits={name: _soft_limit(number) for name, number in _LIMITS.items()},
        kernel=f"{platform.system()} {platform.release()}",
        versions={"python": platform.python_version(), **_versions()},
    )


def _text(path: Path) -> str:
    """The file's content, or nothing."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _cpu_model(root: Path) -> str:
    return next(iter(models(root / "proc/cpuinfo")), platform.machine())


def _memory(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    rows = re.findall(r"^(\w+):\s+(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(kilobytes) << 10 for name, kilobytes in rows}


def _control_groups(root: Path) -> Iterator[Path]:
    """The folders of this process's control groups and of all above them, of both versions."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup" / controllers
        group = top / path.lstrip("/")
        # Inside a container the path may be the host's; what counts is then mounted at the top.
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top) and folder.is_dir())


def _quota(group: Path) -> float | None:
    """Cores' worth of time that the group may use."""
    words = _text(group / "cpu.max").split()
    if not words:
        words = [*_text(group / "cpu.cfs_quota_us").split(), *_text(group / "cpu.cfs_period_us").split()]
    with contextlib.suppress(ValueError, ZeroDivisionError):
        quota, period = (float(word) for word in words)
        return quota / period if quota > 0 else None
    return None


def _memory_limit(group: Path) -> int | None:
    text = _text(group / "memory.max") or _text(group / "memory.limit_in_bytes")
    return int(text) if text.strip().isdecimal() and int(text) < _UNLIMITED_BYTES else None


def _governors(root: Path, cpus: tuple[int, ...]) -> tuple[str, ...]:
    folder = root / "sys/devices/system/cpu"
    texts = {_text(folder / f"cpu{cpu}/cpufreq/scaling_governor").strip() for cpu in cpus}
    return tuple(sorted(texts - {""}))


def _pressure(root: Path) -> float | None:
    """Share of the last ten seconds in which some process waited for memory, in percent."""
    found = re.search(r"^some avg10=([\d.]+)", _text(root / "proc/pressure/memory"))
    return float(found.group(1)) if found else None


def _selected(path: Path) -> str | None:
    """The word in brackets."""
    found = re.search(r"\[(\w+)\]", _text(path))
    return found.group(1) if found else None


def _memfd_error() -> str | None:
    try:
        os.close(os.memfd_create("samovar-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as error:
        return error.strerror
    return None


def _soft_limit(number: int) -> int | None:
    soft, _ = resource.getrlimit(number)
    return None if soft == resource.RLIM_INFINITY else soft


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
