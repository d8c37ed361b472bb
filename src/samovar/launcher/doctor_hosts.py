"""`samovar doctor --nodes`: the links between hosts, measured by the transport that `samovar train --nodes` uses."""

import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from samovar.core.clock import Deadline
from samovar.core.machine import CalibrationRecord, TransportFigures
from samovar.launch.meeting import HostHello, HostPlace, Met, meet
from samovar.launcher.hosts import own_versions
from samovar.transports.base import Notification
from samovar.transports.hosts import open_hosts
from samovar.transports.keys import key_path, read_key
from samovar.transports.tcp import TcpTransport, TcpWindow

SIZES = tuple(1 << power for power in range(12, 25, 2))  # 4 KiB to 16 MiB
_NUM_PINGS, _NUM_PUTS = 200, 5
_PARTING_S = 15.0
_LINE_BYTES = 64
_THERE, _BACK = 0, 1  # slots: host 0 has sent, the other has answered


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
        window = transport.open_window("doctor", SIZES[-1], 2)
        found = []
        for peer in range(1, len(met.hosts.hosts)):
            measuring = _Measuring(window, peer, lambda: Deadline.after(timeout_s))
            if met.number == 0:
                found.append(measuring.lead(met.hosts.hosts[peer].name))
            elif met.number == peer:
                measuring.answer()
        transport.close(Deadline.after(_PARTING_S))
    except BaseException:
        met.close()
        raise
    return met, tuple(found)


class _Measuring:
    """Messages to and from one other host; both sides make the same ones."""

    def __init__(self, window: TcpWindow, peer: int, deadline: Callable[[], Deadline]) -> None:
        self._window, self._peer, self._deadline = window, peer, deadline
        self._clock = window.local[:8].view(np.float64)
        self._count = 0

    def lead(self, name: str) -> HostLinkFigures:
        pings = [self._ping() for _ in range(_NUM_PINGS)]
        latency_s = statistics.median(seconds for seconds, _ in pings) / 2
        bandwidth = []
        for size in SIZES:
            source = np.zeros(size, np.uint8)
            seconds = min(self._put(source) for _ in range(_NUM_PUTS))
            bandwidth.append((size, size / max(seconds - latency_s, seconds / 2)))
        figures = TransportFigures(latency_s, latency_s, latency_s, tuple(bandwidth))
        return HostLinkFigures(name, figures, min(pings)[1])

    def answer(self) -> None:
        for _ in range(_NUM_PINGS + _NUM_PUTS * len(SIZES)):
            self._count += 1
            self._window.wait(_THERE, self._count, 0, self._deadline())
            now = np.array([time.time()])
            self._window.put(0, 0, now, Notification(_BACK, self._count))

    def _ping(self) -> tuple[float, float]:
        """The seconds there and back, and the other clock's lead over this one in the middle."""
        before_s = time.time()
        seconds = self._put(np.zeros(_LINE_BYTES, np.uint8))
        return seconds, float(self._clock[0]) - (before_s + seconds / 2)

    def _put(self, source: np.ndarray) -> float:
        self._count += 1
        began_s = time.perf_counter()
        self._window.put(self._peer, 0, source, Notification(_THERE, self._count))
        self._window.wait(_BACK, self._count, self._peer, self._deadline())
        return time.perf_counter() - began_s


def with_links(record: CalibrationRecord, links: tuple[HostLinkFigures, ...]) -> CalibrationRecord:
    """`record` with the figures of the slowest link as those of tcp."""
    latency_s = max(link.figures.sleeping_latency_s for link in links)
    rates = zip(*(link.figures.bandwidth for link in links), strict=True)
    bandwidth = tuple((pairs[0][0], min(rate for _, rate in pairs)) for pairs in rates)
    figures = TransportFigures(latency_s, latency_s, latency_s, bandwidth)
    return replace(record, transports={**record.transports, "tcp": figures})
