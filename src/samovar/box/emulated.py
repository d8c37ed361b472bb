"""A center in memory whose operations take the time of a box on a described cluster."""

import math
import threading
from collections.abc import Callable

from samovar.box.base import PendingPush, Push, SeatCenter, Versions
from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.machine import Emulation
from samovar.transports.background import Job
from samovar.transports.base import Array
from samovar.transports.emulated import EmulatedTransport

# As a box divides an operation (`samovar.box.remote`); more parts than this change the times by little.
_PART_BYTES, _MOST_PARTS, _LEAST_PARTS_OF_AN_EXCHANGE = 4 << 20, 16, 4
# Bytes that a server reads and writes for each byte of the center.
READ_PASSES, ADD_PASSES, EXCHANGE_PASSES = 1, 3, 4


def num_parts_of(share_bytes: float, *, is_exchange: bool) -> int:
    """The parts in which a server's share of the center travels."""
    least = _LEAST_PARTS_OF_AN_EXCHANGE if is_exchange else 1
    return max(least, min(_MOST_PARTS, math.ceil(share_bytes / _PART_BYTES)))


class EmulatedCenter:
    """`inner` behind the described network and servers (see `samovar.box.base.SeatCenter`); one member's side.

    An operation is done on `inner` when the servers have served its last part. Cost: as that of `SimulatedCenter`.
    """

    def __init__(self, inner: SeatCenter, transport: EmulatedTransport, emulation: Emulation) -> None:
        self.num_elements, self.chunk_elements = inner.num_elements, inner.chunk_elements
        self._inner, self._transport, self._emulation = inner, transport, emulation

    @property
    def lock_wait_s(self) -> float:
        return self._inner.lock_wait_s

    def write(self, values: Array, deadline: Deadline) -> None:
        self._run(values.nbytes, 0, ADD_PASSES, lambda: self._inner.write(values, deadline))

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        return self._served(0, destination.nbytes, READ_PASSES, lambda: self._inner.read(destination, deadline))

    def write_velocity(self, values: Array, deadline: Deadline) -> None:
        self._run(values.nbytes, 0, ADD_PASSES, lambda: self._inner.write_velocity(values, deadline))

    def read_velocity(self, destination: Array, deadline: Deadline) -> Versions:
        return self._served(
            0, destination.nbytes, READ_PASSES, lambda: self._inner.read_velocity(destination, deadline)
        )

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        def change() -> Versions:
            return self._inner.accumulate(sequence, difference, deadline, momentum)

        return self._served(difference.nbytes, 0, ADD_PASSES + 2 * bool(momentum), change)

    def accumulate_in_background(self, sequence: int, difference: Array) -> Push:
        return self._pushed(lambda: self.accumulate(sequence, difference, FOR_EVER))

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        def change() -> Versions:
            return self._inner.exchange(sequence, weights, moving_rate, deadline)

        return self._served(weights.nbytes, weights.nbytes, EXCHANGE_PASSES, change)

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> Push:
        return self._pushed(lambda: self.exchange(sequence, weights, moving_rate, FOR_EVER))

    def _pushed(self, update: Callable[[], Versions]) -> Push:
        found: list[Versions] = []
        pending = self._transport.spawn("update of the center", lambda _deadline: found.append(update()))

        def landed(deadline: Deadline) -> Versions:
            pending.wait(deadline)
            return found[0]

        return PendingPush(landed)

    def _served(self, to_bytes: int, back_bytes: int, passes: int, change: Callable[[], Versions]) -> Versions:
        found: list[Versions] = []
        self._run(to_bytes, back_bytes, passes, lambda: found.append(change()))
        return found[0]

    def _run(self, to_bytes: int, back_bytes: int, passes: int, change: Callable[[], None]) -> None:
        """Send all parts to every server; `change` is made when the last has been served."""
        num_servers = len(self._emulation.server_hosts)
        share = max(to_bytes, back_bytes) / num_servers
        num_parts = num_parts_of(share, is_exchange=bool(to_bytes and back_bytes))
        journey = _Journey(self._transport, num_parts * num_servers, change)
        seconds = passes * share / num_parts / self._emulation.server_bytes_per_s
        to, back = (num_bytes // num_servers // num_parts for num_bytes in (to_bytes, back_bytes))
        for _ in range(num_parts):
            for server in range(num_servers):
                journey.begin(server, to, seconds, back)
        journey.end()


class _Journey:
    """The parts of one operation on their way to servers and back."""

    def __init__(self, transport: EmulatedTransport, num_parts: int, change: Callable[[], None]) -> None:
        self._roads, self._rank, self._transport = transport.roads, transport.group.rank, transport
        self._num_unserved = self._num_open = num_parts
        self._change = Job("an operation of the center", lambda _job: change())
        self._is_over = threading.Event()

    def begin(self, server: int, to_bytes: int, seconds: float, back_bytes: int) -> None:
        place = self._roads.place_of_server(server)

        def serve() -> None:
            served_ns = self._roads.serve(server, self._roads.clock.now_ns(), seconds)
            self._roads.clock.at(served_ns, answer)

        def answer() -> None:
            self._num_unserved -= 1
            if not self._num_unserved:
                self._change.run(None)
            self._roads.send(place, self._rank, back_bytes, self._take)

        self._roads.send(self._rank, place, to_bytes, serve)

    def end(self) -> None:
        """Wait for all parts. Raises what the operation raised."""
        self._transport.await_event(self._is_over)
        self._change.wait(FOR_EVER)

    def _take(self) -> None:
        self._num_open -= 1
        if not self._num_open:
            self._is_over.set()
