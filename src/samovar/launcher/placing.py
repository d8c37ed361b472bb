"""A run's workers on the cores and devices of this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from samovar.config import RunConfig
from samovar.core.device import AUTO, CPU, CUDA
from samovar.core.errors import InputError, SamovarError
from samovar.core.host import taken_cpus
from samovar.core.requirements import require_packages
from samovar.launch.limits import require_room
from samovar.launch.numa import numa_nodes, place

_GPUS = ("nvidia[0-9]*", "kfd", "dxg")  # as the drivers of NVIDIA, of AMD, and of both under WSL name them
_MOST_S = 120.0  # on a busy machine PyTorch loads for long


def placed(
    config: RunConfig, workers: int, threads_per_worker: int | None, oversubscribe: bool | None = None
) -> RunConfig:
    """`config` with so many workers; they get cores to spare where an exchange is to run behind the computation.

    Where nobody says how many threads, cores on which other programs compute are left to these.

    Where other runs may train beside this one (--box), workers are not pinned: who joins later needs cores, too.
    Raises InputError for more workers than this machine bears, unless that is asked for.
    """
    flag = f"--workers {workers}" if workers > 1 else f"--threads-per-worker {threads_per_worker}"
    require_room(flag, max(1, workers), threads_per_worker, oversubscribe)
    overlaps = config.strategy.overlap in ("backward", "full")
    taken = () if threads_per_worker or config.needs_cpu else _taken(max(1, workers))
    nodes = [tuple(cpu for cpu in node if cpu not in taken) for node in numa_nodes()]
    free = [node for node in nodes if node]
    placement = place(max(1, workers), threads_per_worker, with_spare=overlaps, nodes=free)
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
    """The cores that other programs compute on, where a worker would have several and each still has one without."""
    cpus = sorted(os.sched_getaffinity(0))
    taken = taken_cpus(cpus) if len(cpus) >= 2 * workers else ()
    return taken[: len(cpus) - workers]


@dataclass(frozen=True, slots=True)
class Devices:
    """What PyTorch sees: how many CUDA devices, all in words, and why the one asked for cannot be had ("": it can)."""

    count: int
    described: str
    refusal: str


def torch_devices(device: str | None = None) -> Devices:
    """What a process that loads PyTorch says: that takes a second, and with a GPU memory for as long as it lives.

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
        raise SamovarError(f"PyTorch cannot be asked which devices are here: {last}; is it installed whole?") from error


def on_device(
    config: RunConfig, device: str, devices: Path = Path("/dev"), ask: Callable[[str], Devices] = torch_devices
) -> RunConfig:
    """`config` on the device that --device names, `auto` settled; InputError where it is not here.

    `auto` is CUDA where PyTorch has it and the run asks for nothing that only the CPU gives, else the CPU. PyTorch is
    asked only where a driver shows a device, or one was asked for.
    """
    config = replace(config, device=device)
    if device.startswith(CUDA) and (refusal := ask(device).refusal):
        raise InputError(refusal)
    if device != AUTO:
        return config
    has_driver = any(True for pattern in _GPUS for _ in devices.glob(pattern))
    takes_cuda = has_driver and config.needs_cpu is None and ask(CUDA).count > 0
    return replace(config, device=CUDA if takes_cuda else CPU)
