"""What is wrong with a machine, each with what to do about it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from samovar.core.machine import CalibrationRecord
from samovar.report.host import HostFigures

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
    """Everything that is wrong, the worst first; `record` adds what only measuring shows."""
    checks: tuple[Callable[[HostFigures], Iterator[Finding]], ...] = (
        _shared_memory,
        _cores,
        _memory,
        _limits,
        _settings,
    )
    found = [finding for check in checks for finding in check(host)]
    if record is not None:
        found += _measured(record)
    return sorted(found, key=lambda finding: ("error", "warning", "hint").index(finding.level))


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
    if host.load_average > max(1.0, allowed / 2):
        yield Finding(
            "hint",
            f"other programs keep {host.load_average:.1f} of {host.cores_present} cores busy (load average)",
            "end them, or take the figures below as too low",
        )


def _memory(host: HostFigures) -> Iterator[Finding]:
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
