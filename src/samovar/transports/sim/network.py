"""Messages under way: when they leave, reach and pass the ports of a MachineModel, and in which order they arrive."""

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from samovar.core.machine import Link, MachineModel, Ports
from samovar.transports.sim.scheduler import Moment, Scheduler

_LOGGED = struct.Struct("<d7q")

# held_s(source, destination, now): how much longer a message takes that is sent now; infinity: it is never there.
HeldSeconds: TypeAlias = Callable[[int, int, float], float]


class SimMessage:
    """Something that is on its way from a place to another: a rank, or a server behind all ranks."""

    __slots__ = ("destination", "num_bytes", "occupied_s", "receiving_port", "source")

    def __init__(self, source: int, destination: int, num_bytes: int) -> None:
        self.source = source
        self.destination = destination
        self.num_bytes = num_bytes
        self.occupied_s = 0.0
        self.receiving_port = 0

    def arrive(self) -> None:
        """Have its effect."""
        raise NotImplementedError

    def content(self) -> tuple[int, int, int, int]:
        """Four numbers that stand for it in the event hash."""
        return (0, 0, 0, 0)


# The link, its sending port (None: it takes no time) and receiving port, and what comes first on the way.
_Route: TypeAlias = tuple[Link, int | None, int, Callable[[SimMessage], None]]


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
    ranks first, then servers. `held_s` holds messages up, and later ones of the same pair wait behind them. Cost: two
    events a message, one if the link is instant, four between racks.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        machine: MachineModel,
        hosts: Sequence[int],
        random: Random,
        max_delay_s: float,
        is_logged: bool = True,
        held_s: HeldSeconds | None = None,
    ) -> None:
        self.num_messages = 0
        self._scheduler = scheduler
        self._machine = machine
        self._num_places = len(hosts)
        self._random = random
        self._draw = random.random  # which decides between events of one time
        self._max_delay_s = max_delay_s
        self._held_s = held_s
        self._hosts = list(hosts)
        self._racks = [machine.rack(host) for host in hosts]
        self._num_hosts = max(hosts) + 1
        self._is_limited = machine.ports is not Ports.UNLIMITED
        # A place's own inside its host, behind these the hosts', behind these the racks'.
        num_ports = self._num_places + self._num_hosts + max(self._racks) + 1
        self._sending_until_s = [0.0] * num_ports
        shared = machine.ports is Ports.SHARED
        self._receiving_until_s = self._sending_until_s if shared else [0.0] * num_ports
        self._sent_s = [0.0] * num_ports  # how long each was occupied so far
        self._received_s = self._sent_s if shared else [0.0] * num_ports
        self._routes: dict[int, _Route] = {}
        self._last_climbed: dict[int, Moment] = {}
        self._last_descended: dict[int, Moment] = {}
        self._last_reached: dict[int, Moment] = {}
        self._last_arrived: dict[int, Moment] = {}
        self._log = hashlib.sha256() if is_logged else None

    def event_hash(self) -> str:
        """SHA-256 over all arrivals so far: time, source, destination, content. Empty if they are not logged."""
        return "" if self._log is None else self._log.hexdigest()

    def end(self) -> None:
        """Forget the routes, which refer back here."""
        self._routes.clear()

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
        pair = message.source * self._num_places + message.destination
        route = self._routes.get(pair)
        if route is None:
            route = self._routes[pair] = self._route(message.source, message.destination)
        link, sending_port, message.receiving_port, function = route
        begin_s = self._scheduler.now_s
        if sending_port is not None:
            message.occupied_s = occupied_s = link.occupied_s(message.num_bytes)
            if self._is_limited:
                begin_s = _occupied(self._sending_until_s, self._sent_s, sending_port, begin_s, occupied_s)
        begin_s += link.latency_s
        if self._held_s is not None:
            begin_s += self._held_s(message.source, message.destination, self._scheduler.now_s)
        if self._max_delay_s:
            begin_s += self._delay_s()
        moment = self._in_order(message, begin_s, self._last_reached)
        if moment[0] < math.inf:
            self._scheduler.at(moment, function, message)

    def _route(self, source: int, destination: int) -> "_Route":
        source_host, destination_host = self._hosts[source], self._hosts[destination]
        is_inside = source_host == destination_host
        link = self._machine.host_link if is_inside else self._machine.link
        to_other_rack = not is_inside and self._racks[source] != self._racks[destination]
        if link.is_instant:
            return link, None, 0, self._climb if to_other_rack else self._arrive
        ports = (source, destination)
        if not is_inside:
            ports = (self._num_places + source_host, self._num_places + destination_host)
        return link, *ports, self._climb if to_other_rack else self._reach

    def _climb(self, message: SimMessage) -> None:
        """The first byte is at the uplink of the sender's rack."""
        uplink, port = self._uplink, self._num_places + self._num_hosts + self._racks[message.source]
        occupied_s = uplink.occupied_s(message.num_bytes)
        begin_s = _occupied(self._sending_until_s, self._sent_s, port, self._scheduler.now_s, occupied_s)
        moment = self._in_order(message, begin_s + uplink.latency_s, self._last_climbed)
        self._scheduler.at(moment, self._descend, message)

    def _descend(self, message: SimMessage) -> None:
        """The first byte is at the uplink of the receiver's rack; behind it the slower of both paces holds."""
        port = self._num_places + self._num_hosts + self._racks[message.destination]
        occupied_s = self._uplink.occupied_s(message.num_bytes)
        begin_s = _occupied(self._receiving_until_s, self._received_s, port, self._scheduler.now_s, occupied_s)
        message.occupied_s = max(message.occupied_s, occupied_s)
        message.receiving_port = self._num_places + self._hosts[message.destination]
        moment = self._in_order(message, begin_s, self._last_descended)
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
        moment = self._in_order(message, begin_s + message.occupied_s, self._last_arrived)
        self._scheduler.at(moment, self._arrive, message)

    def _arrive(self, message: SimMessage) -> None:
        self.num_messages += 1
        if self._log is not None:
            now_s, content = self._scheduler.now_s, message.content()
            self._log.update(_LOGGED.pack(now_s, message.source, message.destination, message.num_bytes, *content))
        message.arrive()

    def _delay_s(self) -> float:
        """Mostly short, now and then long: only then do messages overtake several others."""
        return self._max_delay_s * float(self._random.random()) ** 3

    def _in_order(self, message: SimMessage, time_s: float, last: dict[int, Moment]) -> Moment:
        """Its time of arrival, after the sender's earlier messages to the same rank."""
        pair = message.source * self._num_places + message.destination
        moment = (time_s, self._draw())
        before = last.get(pair)
        if before is not None and before > moment:
            moment = before
        last[pair] = moment
        return moment


def _occupied(until_s: list[float], busy_s: list[float], port: int, from_s: float, occupied_s: float) -> float:
    """When a port that is wanted from a moment on begins with a message."""
    begin_s = until_s[port]
    begin_s = max(begin_s, from_s)
    until_s[port] = begin_s + occupied_s
    busy_s[port] += occupied_s
    return begin_s
