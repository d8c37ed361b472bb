"""`samovar doctor --nodes`: the links between hosts, measured by the transport that `samovar train --nodes` uses."""

import math
import os
import socket
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from samovar.core.clock import Deadline
from samovar.core.host import busy_seconds
from samovar.core.machine import CalibrationRecord, TransportFigures
from samovar.launch.meeting import HostHello, HostPlace, Met, meet
from samovar.launcher.hosts import own_versions
from samovar.transports.hosts import Pings, open_hosts
from samovar.transports.keys import key_path, read_key
from samovar.transports.tcp import TcpTransport

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


def measure_hosts(place: HostPlace, timeout_s: float) -> tuple[Met, tuple[HostLinkFigures, ...]]:
    """Meet the other hosts, and measure; the figures are on host 0 alone. The caller closes what this returns.

    Raises InputError if hosts have other versions, DeadlineExceeded, RankFailed.
    """
    hello = HostHello(place.number, socket.gethostname(), 1, 1, 0, False, own_versions(), {}, "")
    met = meet(place, hello, timeout_s)
    try:
        key = read_key(key_path(met.key))
        listening = met.listening[0].dup()
        transport = open_hosts(met.number, met.hosts, None, listening, key, timeout_s)
        assert isinstance(transport, TcpTransport), "no memory is shared"
        window = transport.open_window("doctor", SIZES[-1], len(met.hosts.hosts))
        found = []
        for peer in range(1, len(met.hosts.hosts)):
            other, deadline = peer if met.number == 0 else 0, partial(Deadline.after, timeout_s)
            pings = Pings(window, peer, other, deadline, time.time, partial(_busy_s, os.sched_getaffinity(0)))
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


def _busy_s(cpus: Iterable[int]) -> float:
    """Of the cores that this process may use: sending and receiving takes time of the system, too."""
    return sum(busy_seconds(cpus).values())


def with_links(record: CalibrationRecord, links: tuple[HostLinkFigures, ...]) -> CalibrationRecord:
    """`record` with the figures of the slowest link as those of tcp."""
    latency_s = max(link.figures.sleeping_latency_s for link in links)
    rates = zip(*(link.figures.bandwidth for link in links), strict=True)
    bandwidth = tuple((pairs[0][0], min(rate for _, rate in pairs)) for pairs in rates)
    processing = min(link.figures.processing_bytes_per_s for link in links)
    figures = TransportFigures(latency_s, latency_s, latency_s, bandwidth, processing)
    return replace(record, transports={**record.transports, "tcp": figures})
