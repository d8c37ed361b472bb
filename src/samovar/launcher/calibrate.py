"""The measurements of `samovar doctor`: of this machine, by a process on every core, and of the links of hosts."""

import contextlib
import json
import math
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from samovar.core.clock import Deadline
from samovar.core.errors import RankFailed
from samovar.core.files import passing_folder
from samovar.core.host import busy_seconds
from samovar.core.machine import CalibrationRecord, TransportFigures
from samovar.launch.meeting import HostHello, HostPlace, Met, meet
from samovar.launch.processes import Launch, RankEnd
from samovar.launcher.doctor_rank import LARGEST_MESSAGE_BYTES, DoctorArguments
from samovar.launcher.hosts import own_versions
from samovar.launcher.job import EndedBySignal
from samovar.report.host import HostFigures
from samovar.transports.hosts import Pings, open_hosts
from samovar.transports.keys import key_path, read_key
from samovar.transports.shm import RunBoard, create_segment
from samovar.transports.tcp import TcpTransport

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
    together = statistics.median(sum(rates) for rates in zip(*(rank["copy_all"] for rank in ranks), strict=True))
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


SIZES = tuple(1 << power for power in range(12, 25, 2))  # 4 KiB to 16 MiB
_NUM_PINGS, _NUM_PUTS, _NUM_LOOKS = 200, 5, 4
_REST_S = 0.5
_PARTING_S = 15.0


@dataclass(frozen=True, slots=True)
class HostLinkFigures:
    """The link from host 0 to another host, and how far the other's clock is ahead of host 0's."""

    host: str
    figures: TransportFigures
    clock_ahead_s: float


def measure_hosts(
    place: HostPlace, timeout_s: float, warn: Callable[[str], None]
) -> tuple[Met, tuple[HostLinkFigures, ...]]:
    """Meet the other hosts, and measure; the figures are on host 0 alone. The caller closes what this returns.

    Raises InputError if hosts have other versions, DeadlineExceeded, RankFailed.
    """
    hello = HostHello(place.number, socket.gethostname(), 1, 1, 0, False, own_versions(), {}, "")
    met = meet(place, hello, timeout_s, warn)
    try:
        key = read_key(key_path(met.key))
        listening = met.listening[0].dup()
        transport = open_hosts(met.number, met.hosts, None, listening, key, timeout_s)
        assert isinstance(transport, TcpTransport), "no memory is shared"
        window = transport.open_window("doctor", SIZES[-1], len(met.hosts.hosts))
        found = []
        for peer in range(1, len(met.hosts.hosts)):
            other, deadline = peer if met.number == 0 else 0, partial(Deadline.after, timeout_s)
            pings = Pings(window, peer, other, deadline, time.time, _busy_s)
            if met.number == 0:
                found.append(_figures(pings, met.hosts.hosts[peer].name))
            elif met.number == peer:
                pings.answer(_NUM_PINGS + _NUM_PUTS * len(SIZES) + _NUM_LOOKS)
        transport.close(Deadline.after(_PARTING_S))
    except BaseException:
        met.close()
        raise
    return met, tuple(found)


def _figures(pings: Pings, name: str) -> HostLinkFigures:
    found = [pings.ping() for _ in range(_NUM_PINGS)]
    latency_s = statistics.median(seconds for seconds, _ in found) / 2
    before_s = pings.used_s()
    time.sleep(_REST_S)
    idle = (pings.used_s() - before_s) / _REST_S  # cores that are busy in any case
    taken_s = {size: _puts(pings, size) for size in SIZES[:-1]}
    before_s, taken_s[SIZES[-1]] = pings.used_s(), _puts(pings, SIZES[-1])
    busy_s = pings.used_s() - before_s - idle * sum(taken_s[SIZES[-1]])
    bandwidth = tuple((size, size / max(min(of) - latency_s, min(of) / 2)) for size, of in taken_s.items())
    processing = 2 * _NUM_PUTS * SIZES[-1] / busy_s if busy_s > 0 else math.inf
    figures = TransportFigures(latency_s, latency_s, latency_s, bandwidth, processing)
    return HostLinkFigures(name, figures, min(found)[1])


def _puts(pings: Pings, size: int) -> list[float]:
    source = np.zeros(size, np.uint8)
    return [pings.put(source) for _ in range(_NUM_PUTS)]


def _busy_s() -> float:
    """Of the cores that this process may use: sending and receiving takes time of the system, too."""
    return sum(busy_seconds(os.sched_getaffinity(0)).values())


def with_links(record: CalibrationRecord, links: tuple[HostLinkFigures, ...]) -> CalibrationRecord:
    """`record` with the figures of the slowest link as those of tcp."""
    latency_s = max(link.figures.sleeping_latency_s for link in links)
    rates = zip(*(link.figures.bandwidth for link in links), strict=True)
    bandwidth = tuple((pairs[0][0], min(rate for _, rate in pairs)) for pairs in rates)
    processing = min(link.figures.processing_bytes_per_s for link in links)
    figures = TransportFigures(latency_s, latency_s, latency_s, bandwidth, processing)
    return replace(record, transports={**record.transports, "tcp": figures})
