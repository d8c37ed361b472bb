"""A center on servers of a simulated cluster: the traffic and work of a box, and its data if anything is learned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from samovar import _native
from samovar.box.base import PendingPush, Push, Versions
from samovar.box.emulated import ADD_PASSES, EXCHANGE_PASSES, READ_PASSES, num_parts_of
from samovar.core.clock import Deadline
from samovar.core.errors import NotFinite
from samovar.core.layout import all_finite
from samovar.transports.base import Array
from samovar.transports.sim.network import ServerMemory, ServerRequest
from samovar.transports.sim.world import SimTransport


@dataclass(slots=True)
class CenterServers:
    """The memories that hold equal parts of a center of `num_bytes`, and how many updates it has taken.

    `values` are c, and `velocity` its v; None if only times count. A change is made when its last part is served.
    """

    memories: Sequence[ServerMemory]
    num_bytes: int
    bytes_per_s: float
    num_updates: int = 0
    values: Array | None = None
    velocity: Array | None = None
    _requests: dict[tuple[int, int, int], list[ServerRequest]] = field(default_factory=dict)

    def requests(self, to: int, back: int, passes: int) -> list[ServerRequest]:
        """The parts of the center to or from every server, or both; the same ones each time."""
        if (to, back, passes) not in self._requests:
            share = self.num_bytes / len(self.memories)
            num_parts = num_parts_of(share, is_exchange=bool(to and back))
            part = round(share / num_parts)
            one = [ServerRequest(m, to * part, passes * part / self.bytes_per_s, back * part) for m in self.memories]
            self._requests[to, back, passes] = one * num_parts
        return self._requests[to, back, passes]

    def learn(self, num_elements: int) -> None:
        """Hold data from now on."""
        self.values, self.velocity = np.zeros(num_elements, np.float32), np.zeros(num_elements, np.float32)

    def add(self, difference: Array, momentum: float) -> None:
        """v = m v + difference; c += v. Raises NotFinite, and leaves both as they were."""
        if self.values is None or self.velocity is None:
            return
        step = np.float32(momentum) * self.velocity + difference if momentum else difference
        self._take(self.values + step)
        if momentum:
            self.velocity[:] = step

    def pull(self, weights: Array, moving_rate: float) -> None:
        """d = moving_rate (x - c), x -= d, c += d. Raises NotFinite, and leaves c as it was."""
        if self.values is None:
            return
        difference = np.empty_like(self.values)
        _native.elastic_pull(weights, self.values, difference, moving_rate)
        self._take(self.values + difference)

    def _take(self, values: Array) -> None:
        assert self.values is not None
        if not all_finite(values):
            raise NotFinite("the center would not be finite; it stays as it was")
        self.values[:] = values


class SimulatedCenter:
    """See `samovar.box.base.Center`; one member's side. Without data arrays stay as they are, and read as zeros.

    Cost: as of a box over a network. The center's bytes go to the servers for `write` and `accumulate`, come from them
    for `read`, and go both ways for `exchange`. They travel in parts of about 4 MiB, of an exchange a quarter at most.
    A server reads and writes 1, 3 or 4 times the bytes, one request after the other.
    """

    def __init__(self, transport: SimTransport, servers: CenterServers, num_elements: int) -> None:
        self.num_elements = self.chunk_elements = num_elements
        self._transport = transport
        self._servers = servers

    def write(self, values: Array, _deadline: Deadline) -> None:
        if self._servers.values is not None:
            self._servers.values[:] = values
        self._run(1, 0, ADD_PASSES)

    def read(self, destination: Array, _deadline: Deadline) -> Versions:
        return self._read(destination, lambda: self._servers.values)

    def read_velocity(self, destination: Array, _deadline: Deadline) -> Versions:
        return self._read(destination, lambda: self._servers.velocity)

    def _read(self, destination: Array, source: Callable[[], Array | None]) -> Versions:
        def copy() -> None:
            values = source()
            destination[:] = 0 if values is None else values

        return _versions(self._outcome(0, 1, READ_PASSES, copy))

    def accumulate(self, _sequence: int, difference: Array, _deadline: Deadline, momentum: float = 0.0) -> Versions:
        return self._update(1, 0, ADD_PASSES + 2 * bool(momentum), lambda: self._servers.add(difference, momentum))

    def accumulate_in_background(self, _sequence: int, difference: Array) -> Push:
        return self._in_background(1, 0, ADD_PASSES, lambda: self._servers.add(difference, 0.0))

    def exchange(self, _sequence: int, weights: Array, moving_rate: float, _deadline: Deadline) -> Versions:
        return self._update(1, 1, EXCHANGE_PASSES, lambda: self._servers.pull(weights, moving_rate))

    def exchange_in_background(self, _sequence: int, weights: Array, moving_rate: float) -> Push:
        return self._in_background(1, 1, EXCHANGE_PASSES, lambda: self._servers.pull(weights, moving_rate))

    def _in_background(self, to: int, back: int, passes: int, change: Callable[[], None]) -> Push:
        found: list[Versions | NotFinite] = []
        pending = self._transport.spawn(
            "push to the center", lambda _: found.append(self._outcome(to, back, passes, change, num_updates=1))
        )

        def landed(deadline: Deadline) -> Versions:
            pending.wait(deadline)
            return _versions(found[0])

        return PendingPush(landed)

    def _update(self, to: int, back: int, passes: int, change: Callable[[], None]) -> Versions:
        return _versions(self._outcome(to, back, passes, change, num_updates=1))

    def _outcome(
        self, to: int, back: int, passes: int, change: Callable[[], None], num_updates: int = 0
    ) -> Versions | NotFinite:
        """The versions after `change`, which is made on the server, or its error."""
        found: list[Versions | NotFinite] = []

        def serve() -> None:
            try:
                change()
                self._servers.num_updates += num_updates
                found.append(np.array([self._servers.num_updates], np.int64))
            except NotFinite as error:
                found.append(error)

        self._run(to, back, passes, serve)
        return found[0]

    def _run(self, to: int, back: int, passes: int, last_served: Callable[[], None] = lambda: None) -> None:
        """Parts of every server's share; `last_served` is called when the last part sent has been served."""
        *others, last = self._servers.requests(to, back, passes)
        self._transport.request([*others, replace(last, served=last_served)])


def _versions(outcome: Versions | NotFinite) -> Versions:
    if isinstance(outcome, NotFinite):
        raise outcome
    return outcome
