"""The rules of workers at a center in float64, chunk by chunk, driven by the order in which the center took updates."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tests.unit.strategies.center_harness import Event

Array: TypeAlias = npt.NDArray[np.float64]
# step(rank, chunk, number of the step, x): the chunk after the worker's own step.
Step: TypeAlias = Callable[[int, int, int, Array], Array]


class Workers:
    """Each worker's chunks, taken through its own steps as far as somebody asks for them.

    `met` holds what a chunk was after a step and its exchange.
    """

    def __init__(self, start: Callable[[int], Array], step: Step) -> None:
        self.met: dict[tuple[int, int, int], Array] = {}
        self._start = start
        self._step = step
        self._latest: dict[tuple[int, int], tuple[int, Array]] = {}

    def at(self, rank: int, chunk: int, num_steps: int) -> Array:
        made, x = self._latest.get((rank, chunk), (0, self._start(chunk)))
        for step in range(made, num_steps):
            x = self._step(rank, chunk, step, x)
        self._latest[rank, chunk] = num_steps, x
        return x

    def move(self, event: Event, x: Array) -> None:
        self._latest[event.rank, event.chunk] = event.num_steps, x
        self.met[event.rank, event.chunk, event.num_steps] = x


class Center:
    """Each chunk of c by the name of what it held; `held` begins with the names of what it held at the start."""

    def __init__(self, held: Mapping[tuple[int, object], Array]) -> None:
        self.held = dict(held)
        self.last: dict[int, Array] = {}

    def seen(self, event: Event) -> Array:
        return self.held[event.chunk, event.seen]

    def take(self, event: Event, value: Array) -> None:
        self.last[event.chunk] = self.held[event.chunk, event.made] = value


def async_sgd(
    events: Sequence[Event], workers: Workers, center: Center, momentum: float = 0.0, steps_ahead: int = 0
) -> None:
    pulled: dict[tuple[int, int], Array] = {}
    velocity: dict[int, Array] = defaultdict(lambda: np.zeros(1))
    for event in events:
        if event.kind == "read":
            pulled[event.rank, event.chunk] = center.seen(event)
            workers.move(event, center.seen(event))
        elif event.kind == "velocity":
            pulled[event.rank, event.chunk] = pulled[event.rank, event.chunk] + steps_ahead * velocity[event.chunk]
            workers.move(event, pulled[event.rank, event.chunk])
        else:
            difference = workers.at(event.rank, event.chunk, event.num_steps) - pulled[event.rank, event.chunk]
            velocity[event.chunk] = momentum * velocity[event.chunk] + difference
            center.take(event, center.seen(event) + velocity[event.chunk])


def one_by_one(events: Sequence[Event], workers: Workers, center: Center, rate: float, own: float) -> None:
    for event in events:
        if event.kind == "exchange":
            x, c = workers.at(event.rank, event.chunk, event.num_steps), center.seen(event)
            workers.move(event, x - own * (x - c))
            center.take(event, c + rate * (x - c))


def behind(events: Sequence[Event], workers: Workers, center: Center, rate: float, own: float) -> None:
    on_its_way: dict[tuple[int, int], Array] = defaultdict(lambda: np.zeros(1))
    for event in events:
        place = event.rank, event.chunk
        x, c = workers.at(*place, event.num_steps) - on_its_way[place], center.seen(event)
        workers.move(event, x)
        on_its_way[place] = own * (x - c)
        center.take(event, c + rate * (x - c))


def pushed(events: Sequence[Event], workers: Workers, center: Center, rate: float, own: float) -> None:
    under_way: dict[tuple[int, int], deque[Array]] = defaultdict(deque)
    for event in events:
        if event.kind == "update":
            center.take(event, center.seen(event) + under_way[event.rank, event.chunk].popleft())
        else:
            x, c = workers.at(event.rank, event.chunk, event.num_steps), center.seen(event)
            workers.move(event, x - own * (x - c))
            if event.kind == "exchange":
                center.take(event, c + rate * (x - c))
            else:
                under_way[event.rank, event.chunk].append(rate * (x - c))
