"""`samovar doctor --nodes`: the links between hosts, measured by the transport that `samovar train --nodes` uses."""

import socket
import statistics
import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from samovar.core.clock import Deadline
from samovar.core.machine import CalibrationRecord, TransportFigures
from samovar.launch.meeting import HostHello, HostPlace, Met, meet
from samovar.launcher.hosts import own_versions
from samovar.transports.hosts import Pings, open_hosts
from samovar.transports.keys import key_path, read_key
from samovar.transports.tcp import TcpTransport

SIZES = tuple(1 << power for power in range(12, 25, 2))  # 4 KiB to 16 MiB
_NUM_PINGS, _NUM_PUTS = 200, 5
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
            pings = Pings(window, peer, peer if met.number == 0 else 0, partial(Deadline.after, timeout_s), time.time)
            if met.number == 0:
                found.append(_figures(pings, met.hosts.hosts[peer].name))
            elif met.number == peer:
                pings.answer(_NUM_PINGS + _NUM_PUTS * len(SIZES))
        transport.close(Deadline.after(_PARTING_S))
    except BaseException:
        met.close()
        raise
    return met, tuple(found)


def _figures(pings: Pings, name: str) -> HostLinkFigures:
    found = [pings.ping() for _ in range(_NUM_PINGS)]
    latency_s = statistics.median(seconds for seconds, _ in found) / 2
    bandwidth = []
    for size in SIZES:
        source = np.zeros(size, np.uint8)
        seconds = min(pings.put(source) for _ in range(_NUM_PUTS))
        bandwidth.append((size, size / max(seconds - latency_s, seconds / 2)))
    figures = TransportFigures(latency_s, latency_s, latency_s, tuple(bandwidth))
    return HostLinkFigures(name, figures, min(found)[1])


def with_links(record: CalibrationRecord, links: tuple[HostLinkFigures, ...]) -> CalibrationRecord:
    """`record` with the figures of the slowest link as those of tcp."""
    latency_s = max(link.figures.sleeping_latency_s for link in links)
    rates = zip(*(link.figures.bandwidth for link in links), strict=True)
    bandwidth = tuple((pairs[0][0], min(rate for _, rate in pairs)) for pairs in rates)
    figures = TransportFigures(latency_s, latency_s, latency_s, bandwidth)
    return replace(record, transports={**record.transports, "tcp": figures})
