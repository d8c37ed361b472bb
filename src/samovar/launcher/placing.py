"""A run's workers on the cores and devices of this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from samovar.config import RunConfig
from samovar.core.device import AUTO, CPU, CUDA, GPU
from samovar.core.errors import InputError, SamovarError
from samovar.core.host import num_available_cpus, taken_cpus
from samovar.core.modules import require_packages
from samovar.launch.limits import require_room
from samovar.launch.numa import numa_nodes, place

_GPUS = ("nvidia[0-9]*", "kfd", "dxg")  # as the drivers of NVIDIA, of AMD, and of both under WSL name them
_MOST_S = 120.0  # on a busy machine PyTorch loads for long


def placed(
    config: RunConfig, workers: int, threads_per_worker: int | None, oversubscribe: bool | None = None
) -> RunConfig:
    """`config` with this number of workers. They get spare cores if an exchange is to run behind the computation.

    Without a number of threads, workers leave alone the cores on which other programs compute. At a box (--box) workers
    are not pinned, because workers that join later need cores too. Raises InputError for more workers than this machine
    can run.
    """
    given = threads_per_worker if workers <= 1 else None
    flag = f"--threads-per-worker {given}" if given else f"--workers {workers}"
    require_room(flag, max(1, workers), threads_per_worker, oversubscribe)
    overlaps = config.strategy.overlap in ("backward", "full")
    taken = () if threads_per_worker or config.needs_cpu else _taken(max(1, workers))
    nodes = [tuple(cpu for cpu in node if cpu not in taken) for node in numa_nodes()]
    free = [node for node in nodes if node]
    placement = place(max(1, workers), threads_per_worker, overlaps, free, num_available_cpus())
    is_free = config.box is not None and not placement.oversubscribed
    return replace(
        config,
        workers=workers,
        threads_per_worker=placement.threads_per_worker,
        cpus=((),) * workers if is_free else placement.cpus,
        num_taken_cpus=len(taken),
        oversubscribed=placement.oversubscribed,
    )


def _taken(workers: int) -> tuple[int, ...]:
    """The cores on which other programs compute, if a worker would have several and keeps at least one."""
    cpus = sorted(os.sched_getaffinity(0))
    taken = taken_cpus(cpus) if len(cpus) >= 2 * workers else ()
    return taken[: len(cpus) - workers]


@dataclass(frozen=True, slots=True)
class Devices:
    """PyTorch's devices: the number of CUDA devices, all as text, and why the requested one cannot be used, or ""."""

    count: int
    described: str
    refusal: str


def torch_devices(device: str | None = None) -> Devices:
    """Ask a process that loads PyTorch, which takes a second; this process never holds a GPU's memory.

    Raises InputError if a package is missing, SamovarError if it does not answer.
    """
    require_packages()
    question = [sys.executable, "-P", "-m", "samovar.model.device", *([] if device is None else [device])]
    try:
        said = subprocess.run(question, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MOST_S, check=True)
        return Devices(**json.loads(said.stdout.strip().rpartition(b"\n")[2]))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        reason = getattr(error, "stderr", None) or str(error).encode()
        last = reason.decode(errors="replace").strip().rpartition("\n")[2]
        raise SamovarError(f"PyTorch does not say which devices there are: {last}; check its installation") from error


def count_gpus(ask: Callable[[], Devices] = torch_devices) -> int:
    """The number of GPUs of this host, for --workers gpu; InputError if there is none."""
    found = ask()
    if not found.count:
        why = found.described.partition("; ")[2]
        raise InputError(f"--workers {GPU}: this host has {why}; give a number of workers")
    return found.count


def worker_on_each_gpu(config: RunConfig, ask: Callable[[], Devices] = torch_devices) -> tuple[RunConfig, int]:
    """`config` on this host's GPUs, and a worker for each of them. Raises InputError."""
    if config.device not in (AUTO, CPU, CUDA):
        raise InputError(f"--workers {GPU}: is a worker on each GPU, not with --device {config.device}; leave one out")
    return replace(config, device=CUDA), count_gpus(ask)


def on_device(
    config: RunConfig, device: str, devices: Path = Path("/dev"), ask: Callable[[str], Devices] = torch_devices
) -> RunConfig:
    """`config` on the device of --device, with `auto` settled; InputError if it does not exist here.

    `auto` is CUDA if PyTorch has it and the run needs nothing that only the CPU gives. PyTorch is asked only if a
    driver shows a device, or one was requested.
    """
    config = replace(config, device=device)
    if device.startswith(CUDA) and (refusal := ask(device).refusal):
        raise InputError(refusal)
    if device != AUTO:
        return config
    has_driver = any(True for pattern in _GPUS for _ in devices.glob(pattern))
    takes_cuda = has_driver and config.needs_cpu is None and ask(CUDA).count > 0
    return replace(config, device=CUDA if takes_cuda else CPU)
