"""The executor: runs any plan on any transport."""

from collections.abc import Callable
from functools import partial

import numpy as np

from samovar import _native
from samovar.collectives.plan import Notify, Plan, Put, Reduce, Wait
from samovar.core.clock import Deadline
from samovar.transports.base import Array, Notification, Region, Transport

# A notification's value is (run number << _STEP_BITS) | step number of the sender.
_STEP_BITS = 24


class Channel:
    """One plan bound to one buffer: its staging areas, its slots, and how often it ran.

    `last_steps` is the step number reached by the last run (see `samovar.collectives.cost.Cost`).
    """

    def __init__(self, name: str, plan: Plan, transport: Transport, buffer: Region) -> None:
        self.plan = plan
        self.last_steps = 0
        self._buffer = buffer
        staging_bytes = _line_aligned(plan.largest_chunk(len(buffer.array)) * buffer.array.itemsize)
        self._staging_bytes = staging_bytes
        self._window = transport.open_window(name, plan.num_stagings * staging_bytes, plan.num_slots)
        self._runs = 0
        self._deadline = Deadline(0.0)
        self._operations = [self._compiled(operation) for operation in plan.operations]

    def run(self, deadline: Deadline) -> None:
        """Run the plan once; every rank of the group must. Raises DeadlineExceeded."""
        self._runs += 1
        self._deadline = deadline
        self.last_steps = 0
        for operation in self._operations:
            operation()

    def _compiled(self, operation: Put | Reduce | Notify | Wait) -> Callable[[], None]:
        match operation:
            case Put(peer=peer, chunk=chunk, staging=None, slot=slot):
                start, _ = self.plan.chunk_bounds(chunk, len(self._buffer.array))
                offset = self._buffer.offset + start * self._buffer.array.itemsize
                return partial(self._put_buffer, peer, offset, self._chunk(chunk), slot)
            case Put(peer=peer, chunk=chunk, staging=int(staging), slot=slot):
                return partial(self._put_staging, peer, staging * self._staging_bytes, self._chunk(chunk), slot)
            case Reduce(chunk=chunk, stagings=stagings):
                own = self._chunk(chunk)
                return partial(_native.reduce, own, [own, *(self._staging(k, len(own)) for k in stagings)])
            case Notify(peer=peer, slot=slot):
                return partial(self._notify, peer, slot)
            case Wait(peer=peer, slot=slot):
                return partial(self._wait, peer, slot)
        raise AssertionError(operation)

    def _chunk(self, chunk: int) -> Array:
        start, stop = self.plan.chunk_bounds(chunk, len(self._buffer.array))
        return self._buffer.array[start:stop]

    def _staging(self, staging: int, count: int) -> Array:
        dtype: type[np.generic] = self._buffer.array.dtype.type
        return Region.of(self._window, staging * self._staging_bytes, count, dtype).array

    def _put_staging(self, peer: int, offset: int, source: Array, slot: int) -> None:
        self._window.put(peer, offset, source, self._next_notification(slot))

    def _put_buffer(self, peer: int, offset: int, source: Array, slot: int) -> None:
        self._buffer.window.put(peer, offset, source)
        self._notify(peer, slot)

    def _notify(self, peer: int, slot: int) -> None:
        self._window.notify(peer, self._next_notification(slot))

    def _next_notification(self, slot: int) -> Notification:
        self.last_steps += 1
        return Notification(slot, (self._runs << _STEP_BITS) | self.last_steps)

    def _wait(self, peer: int, slot: int) -> None:
        value = self._window.wait(slot, self._runs << _STEP_BITS, peer, self._deadline)
        self.last_steps = max(self.last_steps, value & ((1 << _STEP_BITS) - 1))


def _line_aligned(num_bytes: int) -> int:
    return -(-num_bytes // 64) * 64
