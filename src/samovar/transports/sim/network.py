"""Messages under way: when they leave, reach and pass the ports of a MachineModel, and in which order they arrive.

Servers, such as the box of a center, are places that hold memory and run no program. A request travels to its server,
occupies the server's memory for a time, and is answered. Memory serves one request after the other, in the order in
which they come.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeAlias

from samovar.core.machine import Link, MachineModel, Ports
from samovar.transports.base import Array
from samovar.transports.sim.races import RaceFinder
from samovar.transports.sim.scheduler import Moment, Scheduler

_WORDS = frozenset("lLqQd")  # of 64 bits
_LOGGED = struct.Struct("<d7q")

# held_s(source, destination, now): how much longer a message takes that is sent now; infinity: it is never there.
HeldSeconds: TypeAlias = Callable[[int, int, float], float]


class SimMessage:
    """Something that is on its way from a place to another: a rank, or a server behind all ranks."""

    __slots__ = ("destination", "lane", "left_s", "num_bytes", "occupied_s", "receiving_port", "source")
    lane: "Lane"
    left_s: float
    receiving_port: int

    def __init__(self, source: int, destination: int, num_bytes: int) -> None:
        self.source = source
        self.destination = destination
        self.num_bytes = num_bytes
        self.occupied_s = 0.0

    def arrive(self) -> None:
        """Have its effect."""
        raise NotImplementedError

    def content(self) -> tuple[int, int, int, int]:
        """Four numbers that stand for it in the event hash."""
        return (0, 0, 0, 0)


@dataclass(slots=True, kw_only=True)
class Occupied:
    """Something that does one thing after the other: it was given work for `given_s`, until the moment `until_s`."""

    until_s: float = 0.0
    given_s: float = 0.0

    def occupied(self, now_s: float, seconds: float) -> float:
        """When it has done what comes now."""
        self.until_s = max(now_s, self.until_s) + seconds
        self.given_s += seconds
        return self.until_s

    def busy_s(self, now_s: float) -> float:
        """How long it was occupied so far."""
        return self.given_s - max(0.0, self.until_s - now_s)


_BEFORE_ALL: Moment = (-1.0, 0.0)


class Lane:
    """The way of the messages of one (source, destination) pair, and the moments of its last one at each port.

    Its sending port is None if it takes no time; `first` is what comes first on the way. `cores` send and receive its
    messages, if that takes time.
    """

    __slots__ = ("arrived", "climbed", "cores", "descended", "first", "link", "reached", "receiving", "sending")

    def __init__(
        self,
        link: Link,
        sending: int | None,
        receiving: int,
        first: Callable[["SimMessage"], None],
        cores: "tuple[Occupied | None, Occupied | None]" = (None, None),
    ) -> None:
        self.link, self.sending, self.receiving, self.first = link, sending, receiving, first
        self.cores = cores
        self.reached = self.climbed = self.descended = self.arrived = _BEFORE_ALL


class CallMessage(SimMessage):
    """Something to do where it arrives: a question or its answer."""

    __slots__ = ("_function",)

    def __init__(self, source: int, destination: int, num_bytes: int, function: Callable[[], None]) -> None:
        self.source, self.destination, self.num_bytes = source, destination, num_bytes
        self.occupied_s = 0.0
        self._function = function

    def arrive(self) -> None:
        self._function()


@dataclass(frozen=True, slots=True)
class PortUse:
    """Seconds for which ports were occupied: those of places inside their hosts, of hosts, and of racks, in order.

    Both directions of a duplex port count.
    """

    places_s: tuple[float, ...]
    hosts_s: tuple[float, ...]
    racks_s: tuple[float, ...]


class Network:
    """Times messages by `machine`, each delayed by up to `max_delay_s` more, drawn from `random`.

    Messages of one (source, destination) pair arrive in the order in which they were sent, as on a GASPI queue or a
    connection. Those of different pairs arrive in any order that their times give. `hosts` are the hosts of all places:
    ranks first, then servers. `cores` are those of the ranks, if messages occupy them; those of servers have time.
    `held_s` holds messages up, and later ones of the same pair wait behind them. Cost: two events a message, one if the
    link is instant, four between racks.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        machine: MachineModel,
        hosts: Sequence[int],
        num_ranks: int,
        random: Random,
        max_delay_s: float,
        is_logged: bool = True,
        held_s: HeldSeconds | None = None,
    ) -> None:
        self.num_messages = 0
        self._scheduler, self._at = scheduler, scheduler.at
        self._machine = machine
        self._num_places = len(hosts)
        self._random = random
        self._draw = random.random  # which decides between events of one time
        self._max_delay_s = max_delay_s
        self._held_s = held_s
        self._is_disturbed = held_s is not None or max_delay_s > 0.0
        self._hosts = list(hosts)
        self._racks = [machine.rack(host) for host in hosts]
        self._num_hosts = max(hosts) + 1
        is_processed = machine.processing_bytes_per_s < math.inf
        self.cores = tuple(Occupied() for _ in range(num_ranks)) if is_processed else ()
        self._is_limited = machine.ports is not Ports.UNLIMITED
        # A place's own inside its host, behind these the hosts', behind these the racks'.
        num_ports = self._num_places + self._num_hosts + max(self._racks) + 1
        self._sending_until_s = [0.0] * num_ports
        shared = machine.ports is Ports.SHARED
        self._receiving_until_s = self._sending_until_s if shared else [0.0] * num_ports
        self._sent_s = [0.0] * num_ports  # how long each was occupied so far
        self._received_s = self._sent_s if shared else [0.0] * num_ports
        self._lanes: dict[int, Lane] = {}
        self.is_logged = is_logged
        self._log = hashlib.sha256() if is_logged else None

    def event_hash(self) -> str:
        """SHA-256 over all arrivals so far: time, source, destination, content. Empty if they are not logged."""
        return "" if self._log is None else self._log.hexdigest()

    def end(self) -> None:
        """Forget the lanes, which refer back here."""
        self._lanes.clear()

    def use(self) -> PortUse:
        """How long each port was occupied so far."""
        pairs = [(self._sent_s, self._sending_until_s)]
        if self._received_s is not self._sent_s:
            pairs.append((self._received_s, self._receiving_until_s))
        busy = [0.0] * len(self._sent_s)
        for occupied_s, until_s in pairs:
            for port, ends_s in enumerate(until_s):  # what is to come, at an occupied port, has no gaps
                busy[port] += occupied_s[port] - max(0.0, ends_s - self._scheduler.now_s)
        places, racks = self._num_places, self._num_places + self._num_hosts
        return PortUse(tuple(busy[:places]), tuple(busy[places:racks]), tuple(busy[racks:]))

    def send(self, message: SimMessage) -> None:
        """Put it on its way now."""
        self.send_along(self.lane(message.source, message.destination), message)

    def lane(self, source: int, destination: int) -> Lane:
        """The way from one place to another."""
        pair = source * self._num_places + destination
        found = self._lanes.get(pair)
        if found is None:
            found = self._lanes[pair] = self._lane(source, destination)
        return found

    def send_along(self, lane: Lane, message: SimMessage) -> None:
        """The same, on the way of its source and destination."""
        link, port = lane.link, lane.sending
        message.lane, message.receiving_port = lane, lane.receiving
        begin_s = self._scheduler.now_s
        if port is not None:
            message.occupied_s = occupied_s = link.overhead_s + message.num_bytes / link.bandwidth_bytes_per_s
            if self._is_limited:
                begin_s = _occupied(self._sending_until_s, self._sent_s, port, begin_s, occupied_s)
        begin_s += link.latency_s
        if lane.cores[0] is not None:
            message.left_s = self._processed_s(lane.cores[0], message) + link.latency_s
        if self._is_disturbed:
            begin_s = self._disturbed_s(begin_s, message)
        moment = (begin_s, self._draw())
        lane.reached = moment = max(moment, lane.reached)
        if moment[0] < math.inf:
            self._at(moment, lane.first, message)

    def _lane(self, source: int, destination: int) -> Lane:
        source_host, destination_host = self._hosts[source], self._hosts[destination]
        is_inside = source_host == destination_host
        link = self._machine.host_link if is_inside else self._machine.link
        to_other_rack = not is_inside and self._racks[source] != self._racks[destination]
        if link.is_instant and (is_inside or not self.cores):
            return Lane(link, None, 0, self._climb if to_other_rack else self._arrive)
        if is_inside:
            return Lane(link, source, destination, self._reach)
        ports = (self._num_places + source_host, self._num_places + destination_host)
        first, cores = self._climb if to_other_rack else self._reach, (self._core(source), self._core(destination))
        return Lane(link, *ports, first, cores)

    def _core(self, place: int) -> Occupied | None:
        return self.cores[place] if place < len(self.cores) else None

    def _climb(self, message: SimMessage) -> None:
        """The first byte is at the uplink of the sender's rack."""
        uplink, port = self._uplink, self._num_places + self._num_hosts + self._racks[message.source]
        occupied_s = uplink.occupied_s(message.num_bytes)
        begin_s = _occupied(self._sending_until_s, self._sent_s, port, self._scheduler.now_s, occupied_s)
        lane = message.lane
        lane.climbed = moment = self._in_order(begin_s + uplink.latency_s, lane.climbed)
        self._scheduler.at(moment, self._descend, message)

    def _descend(self, message: SimMessage) -> None:
        """The first byte is at the uplink of the receiver's rack; behind it the slower of both paces holds."""
        port = self._num_places + self._num_hosts + self._racks[message.destination]
        occupied_s = self._uplink.occupied_s(message.num_bytes)
        begin_s = _occupied(self._receiving_until_s, self._received_s, port, self._scheduler.now_s, occupied_s)
        message.occupied_s = max(message.occupied_s, occupied_s)
        message.receiving_port = self._num_places + self._hosts[message.destination]
        lane = message.lane
        lane.descended = moment = self._in_order(begin_s, lane.descended)
        self._scheduler.at(moment, self._reach, message)

    @property
    def _uplink(self) -> Link:
        assert self._machine.racks is not None
        return self._machine.racks.uplink

    def _reach(self, message: SimMessage) -> None:
        """The first byte is at the receiving port."""
        begin_s = self._scheduler.now_s
        if self._is_limited:
            port, occupied_s = message.receiving_port, message.occupied_s
            begin_s = _occupied(self._receiving_until_s, self._received_s, port, begin_s, occupied_s)
        lane, end_s = message.lane, begin_s + message.occupied_s
        sender, receiver = lane.cores
        if sender is not None:
            end_s = max(end_s, message.left_s)
        if receiver is not None:
            end_s = max(end_s, self._processed_s(receiver, message))
        moment = (end_s, self._draw())
        lane.arrived = moment = max(moment, lane.arrived)
        self._at(moment, self._arrive, message)

    def _arrive(self, message: SimMessage) -> None:
        self.num_messages += 1
        if self._log is not None:
            now_s, content = self._scheduler.now_s, message.content()
            self._log.update(_LOGGED.pack(now_s, message.source, message.destination, message.num_bytes, *content))
        message.arrive()

    def _processed_s(self, core: Occupied, message: SimMessage) -> float:
        """When the core is done with a message that comes to it now."""
        return core.occupied(self._scheduler.now_s, message.num_bytes / self._machine.processing_bytes_per_s)

    def _disturbed_s(self, begin_s: float, message: SimMessage) -> float:
        """The moment with faults, and with a delay: mostly short, now and then long. Messages overtake others then."""
        if self._held_s is not None:
            begin_s += self._held_s(message.source, message.destination, self._scheduler.now_s)
        if self._max_delay_s:
            begin_s += self._max_delay_s * float(self._random.random()) ** 3
        return begin_s

    def _in_order(self, time_s: float, before: Moment) -> Moment:
        """The moment of a message, after that of the one before it on its way."""
        moment = (time_s, self._draw())
        return before if before > moment else moment


def _occupied(until_s: list[float], busy_s: list[float], port: int, from_s: float, occupied_s: float) -> float:
    """When a port that is wanted from a moment on begins with a message."""
    begin_s = until_s[port]
    begin_s = max(begin_s, from_s)
    until_s[port] = begin_s + occupied_s
    busy_s[port] += occupied_s
    return begin_s


class Fabric:
    """The state that all ranks share; without `races` nothing is checked.

    An array of numbers that a net has (float32, and bytes that stand for them) counts `magnification` times its bytes.
    """

    def __init__(
        self, scheduler: Scheduler, network: Network, races: RaceFinder | None, magnification: float = 1.0
    ) -> None:
        self.scheduler = scheduler
        self.network = network
        self.races = races
        self._magnification = magnification

    def num_bytes(self, array: Array) -> int:
        """The bytes that the array counts; words of a protocol always count as they are."""
        if self._magnification == 1.0 or array.dtype.char in _WORDS:
            return array.nbytes
        return self.counted(array.nbytes)

    def counted(self, num_bytes: int) -> int:
        """The bytes as which those of such an array count."""
        return num_bytes if self._magnification == 1.0 else round(num_bytes * self._magnification)


@dataclass(slots=True)
class ServerMemory(Occupied):
    """The memory of the server at `place`."""

    place: int


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """Bytes to a server, the time that its memory needs for them, and the bytes of the answer.

    `served` is called when the memory has done it.
    """

    memory: ServerMemory
    num_bytes: int
    served_in_s: float
    answer_bytes: int
    served: Callable[[], None] = lambda: None


def send_requests(
    rank: int, requests: Sequence[ServerRequest], fabric: Fabric, on_answered: Callable[[], None]
) -> None:
    """Send the requests of `rank` at once; `on_answered` is called when the last answer has come."""
    network, scheduler, num_open = fabric.network, fabric.scheduler, len(requests)

    def serve(request: ServerRequest) -> None:
        end_s = request.memory.occupied(scheduler.now_s, request.served_in_s)
        scheduler.at(scheduler.moment(end_s), answer, request)

    def answer(request: ServerRequest) -> None:
        request.served()
        network.send(CallMessage(request.memory.place, rank, request.answer_bytes, take))

    def take() -> None:
        nonlocal num_open
        num_open -= 1
        if num_open == 0:
            on_answered()

    for request in requests:
        network.send(CallMessage(rank, request.memory.place, request.num_bytes, partial(serve, request)))
