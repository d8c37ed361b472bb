"""Measures this machine with a process on every core, and makes a calibration record of the results."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from samovar.core.errors import RankFailed
from samovar.core.machine import CalibrationRecord, TransportFigures
from samovar.launch.processes import Launch, RankEnd
from samovar.launcher.doctor_rank import LARGEST_MESSAGE_BYTES, DoctorArguments
from samovar.launcher.job import EndedBySignal
from samovar.launcher.passing import passing_folder
from samovar.report.host import HostFigures
from samovar.transports.shm import RunBoard, create_segment

_MAX_RANKS = 64
_COPY_BYTES = LARGEST_MESSAGE_BYTES
_MIN_COPY_BYTES = 1 << 20
# Two arrays per rank; measuring must not be what fills the memory.
_MEMORY_SHARE = 8


def calibrate(host: HostFigures) -> CalibrationRecord:
    """Measure for some seconds, on every core that this process has the time of.

    Raises RankFailed if a process ends early, InputError if memory is short, EndedBySignal.
    """
    cpus = host.cores[:_MAX_RANKS]
    free_bytes = host.memory_available_bytes // (_MEMORY_SHARE * 2 * len(cpus))
    copy_bytes = max(_MIN_COPY_BYTES, min(_COPY_BYTES, free_bytes))
    return _record(host, _measure(cpus * 2 if len(cpus) == 1 else cpus, copy_bytes))


def _measure(cpus: Sequence[int], copy_bytes: int) -> list[dict[str, Any]]:
    """The results of each rank; rank r ran on `cpus[r]`."""
    world_size = len(cpus)
    output = [bytearray() for _ in cpus]
    with contextlib.ExitStack() as stack:
        segments = all_ranks, sleeping, spinning = [create_segment(size) for size in (world_size, 2, 2)]
        for segment in segments:
            stack.callback(os.close, segment)
        folder = stack.enter_context(passing_folder("doctor")).path
        logs = [folder / f"rank{rank}.log" for rank in range(world_size)]

        def command(rank: int, pipe: int) -> list[str]:
            shown = ",".join(map(str, cpus))
            arguments = DoctorArguments(rank, all_ranks, sleeping, spinning, pipe, os.getpid(), copy_bytes, shown)
            return arguments.to_command(sys.executable)

        board = RunBoard(all_ranks, world_size)
        launch = Launch(command, dict(enumerate(logs)), board, segments, lambda rank, data: output[rank].extend(data))
        ends = launch.run()
        if number := launch.signals.stop_signal:
            raise EndedBySignal(f"measuring: ended by {signal.Signals(number).name}", number)
        if ends[0].return_code != 0:
            raise _failure(ends[0], logs[ends[0].rank])
    return [json.loads(text) for text in output]


def _failure(end: RankEnd, log: Path) -> RankFailed:
    code = end.return_code
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    lines = log.read_text(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else "it wrote nothing; is memory short?"
    return RankFailed(f"measuring: process {end.rank} {how}: {reason}")


def _record(host: HostFigures, ranks: Sequence[dict[str, Any]]) -> CalibrationRecord:
    first, second = ranks[:2]
    figures = TransportFigures(
        spinning_latency_s=first["spinning_latency_s"],
        sleeping_latency_s=second["sleeping_latency_s"],
        shared_core_latency_s=first["shared_core_latency_s"],
        bandwidth=tuple((size, rate) for size, rate in first["bandwidth"]),
    )
    num_cores = len(host.cores)
    # Not the best block: in that one another program kept a rank from copying at the same time.
    together = median(sum(rates) for rates in zip(*(rank["copy_all"] for rank in ranks), strict=True))
    return CalibrationRecord(
        machine=host.cpu_model,
        cores=num_cores,
        numa_nodes=max(1, host.numa_nodes),
        # One core makes both the same.
        wake_up_s=max(figures.sleeping_latency_s - figures.spinning_latency_s, figures.spinning_latency_s),
        copy_bandwidth_one_bytes_per_s=max(first["copy_one"]),
        copy_bandwidth_all_bytes_per_s=together if num_cores > 1 else max(first["copy_one"]),
        transports={"shm": figures},
    )
