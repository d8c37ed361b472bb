"""A center on servers of a simulated cluster: the traffic and the work of a box, without its data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from samovar.box.base import PendingPush, Push, Versions
from samovar.core.clock import Deadline
from samovar.transports.base import Array
from samovar.transports.sim.servers import ServerMemory, ServerRequest
from samovar.transports.sim.world import SimTransport

# As a box divides an operation (`samovar.box.remote`); more parts than this change the times by little.
_PART_BYTES, _MOST_PARTS, _LEAST_PARTS_OF_AN_EXCHANGE = 4 << 20, 16, 4
# Bytes that a server reads and writes for each byte of the center.
_READ_PASSES, _ADD_PASSES, _EXCHANGE_PASSES = 1, 3, 4


@dataclass(slots=True)
class CenterServers:
    """The memories that hold equal parts of a center of `num_bytes`, and how many updates it has taken."""

    memories: Sequence[ServerMemory]
    num_bytes: int
    bytes_per_s: float
    num_updates: int = 0


class SimulatedCenter:
    """See `samovar.box.base.Center`; one member's side. Arrays stay as they are, and read as zeros.

    Cost: as of a box over a network. The center's bytes go to the servers for `write` and `accumulate`, come from them
    for `read`, and go both ways for `exchange`. They travel in parts of about 4 MiB, of an exchange a quarter at most.
    A server reads and writes 1, 3 or 4 times the bytes, one request after the other.
    """

    def __init__(self, transport: SimTransport, servers: CenterServers, num_elements: int) -> None:
        self.num_elements = self.chunk_elements = num_elements
        self._transport = transport
        self._servers = servers

    def write(self, _values: Array, _deadline: Deadline) -> None:
        self._run(1, 0, _ADD_PASSES)

    def read(self, destination: Array, _deadline: Deadline) -> Versions:
        destination.fill(0)
        self._run(0, 1, _READ_PASSES)
        return self._versions()

    def accumulate(self, _sequence: int, _difference: Array, _deadline: Deadline, momentum: float = 0.0) -> Versions:
        return self._update(1, 0, _ADD_PASSES + 2 * bool(momentum))

    def accumulate_in_background(self, _sequence: int, _difference: Array) -> Push:
        return self._in_background(1, 0, _ADD_PASSES)

    def exchange(self, _sequence: int, _weights: Array, _moving_rate: float, _deadline: Deadline) -> Versions:
        return self._update(1, 1, _EXCHANGE_PASSES)

    def exchange_in_background(self, _sequence: int, _weights: Array, _moving_rate: float) -> Push:
        return self._in_background(1, 1, _EXCHANGE_PASSES)

    def _in_background(self, to: int, back: int, passes: int) -> Push:
        found: list[Versions] = []
        pending = self._transport.spawn("push to the center", lambda _: found.append(self._update(to, back, passes)))

        def landed(deadline: Deadline) -> Versions:
            pending.wait(deadline)
            return found[0]

        return PendingPush(landed)

    def _update(self, to: int, back: int, passes: int) -> Versions:
        counted: list[Versions] = []

        def count() -> None:
            self._servers.num_updates += 1
            counted.append(self._versions())

        self._run(to, back, passes, count)
        return counted[0]

    def _versions(self) -> Versions:
        return np.array([self._servers.num_updates], np.int64)

    def _run(self, to: int, back: int, passes: int, last_served: Callable[[], None] = lambda: None) -> None:
        """Parts of every server's share; `last_served` is called when the last part sent has been served."""
        servers = self._servers
        share = servers.num_bytes / len(servers.memories)
        least = _LEAST_PARTS_OF_AN_EXCHANGE if to and back else 1
        num_parts = max(least, min(_MOST_PARTS, math.ceil(share / _PART_BYTES)))
        part = round(share / num_parts)
        served_in_s = passes * part / servers.bytes_per_s
        requests = [
            ServerRequest(memory, to * part, served_in_s, back * part)
            for _ in range(num_parts)
            for memory in servers.memories
        ]
        requests[-1] = replace(requests[-1], served=last_served)
        self._transport.request(requests)
