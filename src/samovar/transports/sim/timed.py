"""Windows whose bytes are only counted, for programs that events perform, without a switch to a thread of control."""

from collections.abc import Callable

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.transports.sim.network import Lane, SimMessage
from samovar.transports.sim.scheduler import Task, virtual_s
from samovar.transports.sim.window import SimPort, SimWindow


class _CountedMessage(SimMessage):
    """Bytes, and a notification for the part of a peer."""

    __slots__ = ("_part", "_slot", "_value")

    def __init__(self, ranks: tuple[int, int], num_bytes: int, part: SimWindow, slot: int, value: int) -> None:
        self.source, self.destination = ranks
        self.num_bytes, self.occupied_s = num_bytes, 0.0
        self._part, self._slot, self._value = part, slot, value

    def arrive(self) -> None:
        self._part.notice(self._slot, self._value, None)


class CountedPart:
    """One rank's part of a window without data. See `samovar.transports.base.CountedPart`."""

    def __init__(self, port: SimPort, window: SimWindow, heed: Callable[[int], None]) -> None:
        self.slots = window.slots
        self.after = port.fabric.scheduler.after
        self._port, self._window = port, window
        self._peers: dict[int, tuple[Lane, SimWindow, tuple[int, int]]] = {}
        self._task: Task | None = None
        window.heed = heed

    def put(self, peer: int, num_bytes: int, slot: int, value: int) -> None:
        if peer not in self._peers:
            part, rank = self._window.parts[peer], self._port.rank
            self._peers[peer] = self._port.fabric.network.lane(rank, part.rank), part, (rank, part.rank)
        lane, part, ranks = self._peers[peer]
        self._port.bytes_sent += num_bytes
        self._port.fabric.network.send_along(lane, _CountedMessage(ranks, num_bytes, part, slot, value))

    def wait_for_end(self, what: object, deadline: Deadline) -> None:
        self._task = self._port.task
        has_ended = self._port.block(what, virtual_s(deadline))
        self._task = None
        if not has_ended:
            raise DeadlineExceeded(f"rank {self._port.rank}: {what} did not come before {deadline.at_s:.6f} s")

    def end(self) -> None:
        if self._task is not None:
            self._port.fabric.scheduler.wake(self._task)
