"""Runs the plans of all ranks in one process, in a random order, with real data and messages that take their time.

A put is two events: its data arrives at any later time, and its notification at any time after that. Nothing
else is ordered, not even two messages from one rank to another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from samovar.collectives.plan import Combine, Notify, Operation, Plan, Put, Reduce, Wait

Array = npt.NDArray[np.floating]


@dataclass
class Message:
    """In flight: first its data (None once it has arrived, and for a notification), then its notification."""

    receiver: int
    slot: int
    run: int
    data: Array | None
    into_staging: bool
    place: slice


class Interpreter:
    """`inputs[run][rank]` is a rank's buffer before a run, `results[run][rank]` after it; ranks and runs drift.

    Raises AssertionError where data arrives in a staging area that was not read yet, where one is read that holds
    nothing, or where nobody can go on.
    """

    def __init__(self, plans: Sequence[Plan], inputs: Sequence[Sequence[Array]], seed: int) -> None:
        self._plans = plans
        self._inputs = inputs
        self._random = Random(seed)
        self._size = len(inputs[0][0])
        self._room = plans[0].largest_cell(self._size)
        self._buffers = [np.zeros_like(share) for share in inputs[0]]
        self._stagings = [np.zeros(plan.num_stagings * self._room, inputs[0][0].dtype) for plan in plans]
        self._unread = [np.zeros(plan.num_stagings * self._room, bool) for plan in plans]
        self._arrived = [[0] * plan.num_slots for plan in plans]
        self._awaited: list[tuple[int, int] | None] = [None for _ in plans]  # slot, run
        self._in_flight: list[Message] = []
        self.results: list[dict[int, Array]] = [{} for _ in inputs]

    def run(self) -> None:
        """Run all plans, once for each of the inputs."""
        # Slow ranks and slow messages let the others run ahead as far as the plan does.
        speeds = [self._random.choice((1, 20)) for _ in self._plans]
        message_speed = self._random.choice((0.1, 1.0, 10.0)) * sum(speeds)
        ranks = {rank: self._rank(rank) for rank in range(len(self._plans))}
        while ranks:
            ready = [rank for rank in ranks if self._can_go_on(rank)]
            assert ready or self._in_flight, f"deadlock: {self._awaited}"
            weights = [speeds[rank] for rank in ready]
            if self._random.uniform(0, sum(weights) + message_speed * bool(self._in_flight)) >= sum(weights):
                self._deliver(self._random.randrange(len(self._in_flight)))
                continue
            rank = self._random.choices(ready, weights)[0]
            if next(ranks[rank], "done") == "done":
                del ranks[rank]

    def _rank(self, rank: int) -> Iterator[None]:
        """One operation at a time."""
        for run, shares in enumerate(self._inputs, start=1):
            self._buffers[rank][:] = shares[rank]
            yield
            for operation in self._plans[rank].operations:
                if isinstance(operation, Wait):
                    self._awaited[rank] = (operation.slot, run)
                    yield
                    self._awaited[rank] = None
                else:
                    self._perform(rank, run, operation)
                    yield
            self.results[run - 1][rank] = self._buffers[rank].copy()

    def _can_go_on(self, rank: int) -> bool:
        awaited = self._awaited[rank]
        return awaited is None or self._arrived[rank][awaited[0]] >= awaited[1]

    def _perform(self, rank: int, run: int, operation: Operation) -> None:
        match operation:
            case Put(peer, chunk, staging, slot):
                part = self._chunk(rank, chunk)
                place = part if staging is None else self._staging(rank, chunk, staging)
                data = self._buffers[rank][part].copy()
                self._in_flight.append(Message(peer, slot, run, data, staging is not None, place))
            case Notify(peer, slot):
                self._in_flight.append(Message(peer, slot, run, None, False, slice(0)))
            case Reduce(chunk, stagings):
                own = self._buffers[rank][self._chunk(rank, chunk)]
                for staging in stagings:
                    own += self._taken(rank, self._staging(rank, chunk, staging))
            case Combine(chunk, ranks, into):
                sources = [self._buffers[other][self._chunk(rank, chunk)] for other in ranks]
                total = sources[0].copy()
                for source in sources[1:]:
                    total += source
                for other in into:
                    self._buffers[other][self._chunk(rank, chunk)] = total

    def _taken(self, rank: int, place: slice) -> Array:
        assert self._unread[rank][place].all(), f"rank {rank} adds what has not arrived"
        self._unread[rank][place] = False
        return self._stagings[rank][place]

    def _deliver(self, index: int) -> None:
        message = self._in_flight[index]
        receiver, place = message.receiver, message.place
        if message.data is None:
            del self._in_flight[index]
            self._arrived[receiver][message.slot] = max(self._arrived[receiver][message.slot], message.run)
        elif message.into_staging:
            assert not self._unread[receiver][place].any(), f"rank {receiver} had not added what is overwritten"
            self._unread[receiver][place] = True
            self._stagings[receiver][place] = message.data
        else:
            self._buffers[receiver][place] = message.data
        message.data = None

    def _chunk(self, rank: int, chunk: int) -> slice:
        return slice(*self._plans[rank].chunk_bounds(chunk, self._size))

    def _staging(self, rank: int, chunk: int, staging: int) -> slice:
        part = self._chunk(rank, chunk)
        return slice(staging * self._room, staging * self._room + part.stop - part.start)
