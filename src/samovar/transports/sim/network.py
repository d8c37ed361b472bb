"""Messages under way: when they leave, reach and pass the ports of a MachineModel, and in which order they arrive."""

import hashlib
import struct
from random import Random

from samovar.core.machine import MachineModel, Ports
from samovar.transports.sim.scheduler import Moment, Scheduler

_LOGGED = struct.Struct("<d7q")


class SimMessage:
    """Something that is on its way from a rank to another."""

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


class Network:
    """Times messages by `machine`, each delayed by up to `max_delay_s` more, drawn from `random`.

    Messages of one (source, destination) pair arrive in the order in which they were sent, as on a GASPI queue or a
    connection. Those of different pairs arrive in any order that their times give. Cost: two events a message, one if
    the link is instant.
    """

    def __init__(
        self, scheduler: Scheduler, machine: MachineModel, world_size: int, random: Random, max_delay_s: float
    ) -> None:
        self.num_messages = 0
        self._scheduler = scheduler
        self._machine = machine
        self._world_size = world_size
        self._random = random
        self._max_delay_s = max_delay_s
        self._hosts = [machine.host(rank) for rank in range(world_size)]
        self._is_limited = machine.ports is not Ports.UNLIMITED
        num_ports = world_size + self._hosts[-1] + 1  # a rank's own inside its host, behind these the hosts'
        self._sending_until_s = [0.0] * num_ports
        shared = machine.ports is Ports.SHARED
        self._receiving_until_s = self._sending_until_s if shared else [0.0] * num_ports
        self._last_reached: dict[int, Moment] = {}
        self._last_arrived: dict[int, Moment] = {}
        self._log = hashlib.sha256()

    def event_hash(self) -> str:
        """SHA-256 over all arrivals so far: time, source, destination, content."""
        return self._log.hexdigest()

    def send(self, message: SimMessage) -> None:
        """Put it on its way now."""
        source, destination = message.source, message.destination
        source_host, destination_host = self._hosts[source], self._hosts[destination]
        is_inside = source_host == destination_host
        link = self._machine.host_link if is_inside else self._machine.link
        begin_s = self._scheduler.now_s
        function = self._arrive
        if not link.is_instant:
            message.occupied_s = occupied_s = link.occupied_s(message.num_bytes)
            message.receiving_port = destination if is_inside else self._world_size + destination_host
            if self._is_limited:
                port = source if is_inside else self._world_size + source_host
                begin_s = max(begin_s, self._sending_until_s[port])
                self._sending_until_s[port] = begin_s + occupied_s
            function = self._reach
        moment = self._in_order(message, begin_s + link.latency_s + self._delay_s(), self._last_reached)
        self._scheduler.at(moment, function, message)

    def _reach(self, message: SimMessage) -> None:
        """The first byte is at the receiving port."""
        begin_s = self._scheduler.now_s
        if self._is_limited:
            begin_s = max(begin_s, self._receiving_until_s[message.receiving_port])
            self._receiving_until_s[message.receiving_port] = begin_s + message.occupied_s
        moment = self._in_order(message, begin_s + message.occupied_s, self._last_arrived)
        self._scheduler.at(moment, self._arrive, message)

    def _arrive(self, message: SimMessage) -> None:
        self.num_messages += 1
        now_s = self._scheduler.now_s
        self._log.update(
            _LOGGED.pack(now_s, message.source, message.destination, message.num_bytes, *message.content())
        )
        message.arrive()

    def _delay_s(self) -> float:
        """Mostly short, now and then long: only then do messages overtake several others."""
        if self._max_delay_s == 0.0:
            return 0.0
        return self._max_delay_s * float(self._random.random()) ** 3

    def _in_order(self, message: SimMessage, time_s: float, last: dict[int, Moment]) -> Moment:
        """Its time of arrival, after the sender's earlier messages to the same rank."""
        pair = message.source * self._world_size + message.destination
        moment = max(self._scheduler.moment(time_s), last.get(pair, (0.0, 0.0)))
        last[pair] = moment
        return moment
