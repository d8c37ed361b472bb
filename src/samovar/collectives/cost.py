"""What a plan costs, counted from the plan itself."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samovar.collectives.plan import Combine, Notify, Plan, Put, Reduce, Wait
from samovar.collectives.two_level import cell_bounds, cells


@dataclass(frozen=True, slots=True)
class Cost:
    """`steps`: messages on the longest chain, where a rank sends one message after the other.

    `bytes_sent[r]`: payload that rank r writes into other ranks' memory. `num_messages`: puts and
    notifications of all ranks.
    """

    steps: int
    bytes_sent: tuple[int, ...]
    num_messages: int


def cost(
    plans: Sequence[Plan],
    num_elements: int,
    element_bytes: int = 4,
    message_bytes: Callable[[int], int] | None = None,
) -> Cost:
    """The cost of one collective, given the plans of ranks 0 to P-1.

    Where plans run encoded, `message_bytes` is the size of a message of a number of elements.

    A message carries its sender's step number; a wait takes over the larger one. Raises ValueError, with who
    waits for whom, where the plans deadlock.
    """
    size_of = message_bytes or (lambda count: count * element_bytes)
    ranks = [_CountedRank(plan, num_elements, size_of) for plan in plans]
    arrived: dict[tuple[int, int], int] = {}  # (receiver, slot) -> step number
    ready = deque(range(len(plans)))
    while ready:
        rank = ready.popleft()
        for peer, slot, step in ranks[rank].advance(rank, arrived):
            arrived[peer, slot] = step
            if ranks[peer].waits_on == slot:
                ready.append(peer)
    stuck = [f"rank {r} for slot {state.waits_on}" for r, state in enumerate(ranks) if state.waits_on is not None]
    if stuck:
        raise ValueError(f"{plans[0].name}: deadlock, waiting: {', '.join(stuck)}")
    return Cost(
        steps=max((state.step for state in ranks), default=0),
        bytes_sent=tuple(state.bytes_sent for state in ranks),
        num_messages=sum(state.num_messages for state in ranks),
    )


def put_bytes(plan: Plan, put: Put, num_elements: int, size_of: Callable[[int], int]) -> int:
    """Bytes of a put: a part of a sum is one message, what is complete one for each of its cells."""
    if put.staging is not None:
        start, stop = plan.chunk_bounds(put.chunk, num_elements)
        return size_of(stop - start)
    bounds = (cell_bounds(plan, cell, num_elements) for cell in cells(plan, put.chunk))
    return sum(size_of(stop - start) for start, stop in bounds)


class _CountedRank:
    """How far one rank has come in its plan."""

    def __init__(self, plan: Plan, num_elements: int, size_of: Callable[[int], int]) -> None:
        self.plan = plan
        self.step = 0
        self.bytes_sent = 0
        self.num_messages = 0
        self.waits_on: int | None = None
        self._next = 0
        self._num_elements = num_elements
        self._size_of = size_of

    def advance(self, rank: int, arrived: dict[tuple[int, int], int]) -> list[tuple[int, int, int]]:
        """Go on until something has not arrived; returns the messages sent as (peer, slot, step)."""
        sent = []
        self.waits_on = None
        while self._next < len(self.plan.operations):
            operation = self.plan.operations[self._next]
            match operation:
                case Wait(slot=slot):
                    if (rank, slot) not in arrived:
                        self.waits_on = slot
                        break
                    self.step = max(self.step, arrived[rank, slot])
                case Put(peer=peer, slot=slot):
                    self.bytes_sent += put_bytes(self.plan, operation, self._num_elements, self._size_of)
                    sent.append(self._message(peer, slot))
                case Notify(peer=peer, slot=slot):
                    sent.append(self._message(peer, slot))
                case Combine(chunk=chunk, into=into):
                    start, stop = self.plan.chunk_bounds(chunk, self._num_elements)
                    self.bytes_sent += sum(peer != rank for peer in into) * self._size_of(stop - start)
                case Reduce():
                    pass
            self._next += 1
        return sent

    def _message(self, peer: int, slot: int) -> tuple[int, int, int]:
        self.step += 1
        self.num_messages += 1
        return peer, slot, self.step
