"""Servers in a simulation: places that hold memory and run no program, such as the box of a center.

A request travels to its server, occupies the server's memory for a time, and is answered. Memory serves one request
after the other, in the order in which they come.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from samovar.transports.sim.network import CallMessage, Network, Occupied
from samovar.transports.sim.scheduler import Scheduler


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


class SentRequests:
    """Requests of `rank` that were sent at once; `on_answered` is called when the last answer has come."""

    def __init__(
        self,
        rank: int,
        requests: Sequence[ServerRequest],
        network: Network,
        scheduler: Scheduler,
        on_answered: Callable[[], None],
    ) -> None:
        self._rank = rank
        self._network = network
        self._scheduler = scheduler
        self._on_answered = on_answered
        self._num_open = len(requests)
        for request in requests:
            place = request.memory.place
            network.send(CallMessage(rank, place, request.num_bytes, partial(self._serve, request)))

    def _serve(self, request: ServerRequest) -> None:
        end_s = request.memory.occupied(self._scheduler.now_s, request.served_in_s)
        self._scheduler.at(self._scheduler.moment(end_s), self._answer, request)

    def _answer(self, request: ServerRequest) -> None:
        request.served()
        self._network.send(CallMessage(request.memory.place, self._rank, request.answer_bytes, self._take))

    def _take(self) -> None:
        self._num_open -= 1
        if self._num_open == 0:
            self._on_answered()
