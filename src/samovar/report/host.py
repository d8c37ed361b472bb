"""The machine as its kernel describes it, the limits of this process, and the problems with them."""

import contextlib
import os
import platform
import re
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from samovar.core.host import available_bytes, control_groups, cpu_quota_cores, memory_limit, models, text_of
from samovar.core.machine import CalibrationRecord
from samovar.core.modules import Missing, missing_modules

_PACKAGES = ("samovar", "torch", "numpy")
_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "address space": resource.RLIMIT_AS,
    "locked memory": resource.RLIMIT_MEMLOCK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """A field is None if the kernel does not say, or if there is no such limit.

    `memory_limit_bytes` and `cpu_quota_cores` are those of this process's control group. `memory_available_bytes` is
    what machine and group both leave. `limits` are soft limits. `memfd_error` is why an anonymous memory file cannot be
    made. `missing_modules` are not installed.
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
    missing_modules: tuple[str, ...]

    @property
    def cores(self) -> tuple[int, ...]:
        """As many of the allowed cpus as have time: a container may see more."""
        return self.cpus_allowed[: max(1, int(self.cpu_quota_cores or len(self.cpus_allowed)))]


def read_host(root: Path = Path("/")) -> HostFigures:
    """The machine of this process; `root` is the parent of /proc and /sys."""
    memory = _memory(root)
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    groups = list(control_groups(root))
    limits = {name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()}
    waited = re.search(r"^some avg10=([\d.]+)", text_of(root / "proc/pressure/memory"))  # of the last ten seconds
    return HostFigures(
        cpu_model=next(iter(models(root / "proc/cpuinfo")), platform.machine()),
        cores_present=os.cpu_count() or len(cpus),
        cpus_allowed=cpus,
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))),
        cpu_quota_cores=cpu_quota_cores(root),
        governors=_governors(root, cpus),
        load_average=os.getloadavg()[0],
        memory_total_bytes=memory.get("MemTotal", 0),
        memory_available_bytes=available_bytes(root) or 0,
        memory_limit_bytes=min((size for group in groups if (size := memory_limit(group)) is not None), default=None),
        swap_used_bytes=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
        memory_pressure_percent=float(waited[1]) if waited else None,
        memfd_error=_memfd_error(),
        huge_pages=_selected(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        shared_huge_pages=_selected(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        limits={name: None if soft == resource.RLIM_INFINITY else soft for name, soft in limits.items()},
        kernel=f"{platform.system()} {platform.release()}",
        versions={"python": platform.python_version(), **versions_of(*_PACKAGES)},
        missing_modules=missing_modules(),
    )


def _memory(root: Path) -> dict[str, int]:
    rows = re.findall(r"^(\w+):\s+(\d+) kB$", text_of(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(kilobytes) << 10 for name, kilobytes in rows}


def _governors(root: Path, cpus: tuple[int, ...]) -> tuple[str, ...]:
    folder = root / "sys/devices/system/cpu"
    texts = {text_of(folder / f"cpu{cpu}/cpufreq/scaling_governor").strip() for cpu in cpus}
    return tuple(sorted(texts - {""}))


def _selected(path: Path) -> str | None:
    found = re.search(r"\[(\w+)\]", text_of(path))
    return found.group(1) if found else None


def _memfd_error() -> str | None:
    try:
        os.close(os.memfd_create("samovar-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as error:
        return error.strerror
    return None


def versions_of(*names: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


_LOW_MEMORY_BYTES = 2 << 30
_MIN_OPEN_FILES = 256
_PROCESSES_PER_CORE = 32
_HIGH_PRESSURE_PERCENT = 10.0
_SLOW_WAKE_UP_S = 500e-6
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """`level` is "error" (training cannot work), "warning" (it will be slow or may fail) or "hint"."""

    level: str
    text: str
    next_step: str


def diagnose(host: HostFigures, record: CalibrationRecord | None = None) -> list[Finding]:
    """All problems, the worst first; `record` adds those that only measuring shows."""
    checks: tuple[Callable[[HostFigures], Iterator[Finding]], ...] = (
        _packages,
        _shared_memory,
        _cores,
        _short_memory,
        _limits,
        _settings,
    )
    found = [finding for check in checks for finding in check(host)]
    if record is not None:
        found += _measured(record)
    return sorted(found, key=lambda finding: ("error", "warning", "hint").index(finding.level))


def _packages(host: HostFigures) -> Iterator[Finding]:
    for module in host.missing_modules:
        missing = Missing.of(module)
        yield Finding("error", missing.text, missing.next_step)


def _shared_memory(host: HostFigures) -> Iterator[Finding]:
    if host.memfd_error is not None:
        yield Finding(
            "error",
            f"anonymous shared memory (memfd_create) is refused: {host.memfd_error}",
            "allow the system call in the container's seccomp profile or security policy",
        )


def _cores(host: HostFigures) -> Iterator[Finding]:
    allowed = len(host.cpus_allowed)
    if allowed < host.cores_present:
        yield Finding(
            "warning",
            f"only {allowed} of {host.cores_present} cores may be used (cpu affinity)",
            "start without taskset, or ask the scheduler or container for more cores",
        )
    if host.cpu_quota_cores is not None and host.cpu_quota_cores < allowed:
        yield Finding(
            "warning",
            f"the control group gets the time of {host.cpu_quota_cores:g} cores on {allowed}: ranks will be paused",
            f"raise the cpu quota, or use --workers {max(1, int(host.cpu_quota_cores))}",
        )
    if (load := host.load_average) > max(1.0, allowed / 2):
        num_busy = min(load, host.cores_present)
        yield Finding(
            "hint",
            f"other programs keep {num_busy:.1f} of {host.cores_present} cores busy (load average {load:.1f})",
            "end them, or the measured figures are too low",
        )


def _short_memory(host: HostFigures) -> Iterator[Finding]:
    limit = host.memory_limit_bytes
    if limit is not None and limit < min(host.memory_total_bytes, 4 * _LOW_MEMORY_BYTES):
        yield Finding(
            "warning",
            f"the control group's memory limit is {limit / _GIB:.1f} GiB of {host.memory_total_bytes / _GIB:.1f}",
            "raise it: windows, gradients and weights of all ranks count against it",
        )
    if host.memory_available_bytes < _LOW_MEMORY_BYTES:
        yield Finding(
            "warning",
            f"only {host.memory_available_bytes / _GIB:.1f} GiB of memory are free",
            "end other programs, or use fewer workers",
        )
    if (host.memory_pressure_percent or 0.0) > _HIGH_PRESSURE_PERCENT:
        yield Finding(
            "warning",
            f"programs wait for memory {host.memory_pressure_percent:.0f} % of the time, "
            f"{host.swap_used_bytes / _GIB:.1f} GiB are swapped out",
            "end other programs, or use fewer workers",
        )


def _limits(host: HostFigures) -> Iterator[Finding]:
    files, processes = host.limits.get("open files"), host.limits.get("processes")
    if files is not None and files < _MIN_OPEN_FILES:
        yield Finding("warning", f"only {files} files may be open at once", "raise it: ulimit -n 4096")
    needed = _PROCESSES_PER_CORE * len(host.cpus_allowed)
    if processes is not None and processes < needed:
        yield Finding(
            "warning", f"only {processes} processes and threads are allowed", f"raise it: ulimit -u {max(needed, 4096)}"
        )
    space = host.limits.get("address space")
    if space is not None:
        yield Finding(
            "warning",
            f"the address space is limited to {space / _GIB:.1f} GiB: every rank maps the windows of all",
            "lift it: ulimit -v unlimited",
        )


def _settings(host: HostFigures) -> Iterator[Finding]:
    if "powersave" in host.governors:
        yield Finding(
            "hint",
            "the cpu frequency governor is 'powersave': cores may run below their speed",
            "set it: cpupower frequency-set --governor performance",
        )
    if host.shared_huge_pages in ("never", "deny"):
        yield Finding(
            "hint",
            f"huge pages of shared memory are set to '{host.shared_huge_pages}': windows are made of 4 KiB pages",
            "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        )


def _measured(record: CalibrationRecord) -> Iterator[Finding]:
    if record.wake_up_s > _SLOW_WAKE_UP_S:
        yield Finding(
            "hint",
            f"a sleeping rank takes {record.wake_up_s * 1e6:.0f} us to wake up",
            "turn off deep idle states, or leave a core free for each rank; in a virtual machine it may be normal",
        )
