"""The executors: `Channel` runs any plan on any transport, `NativeChannel` the same plan where memory is mapped."""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Protocol, assert_never, cast
from weakref import WeakKeyDictionary

import numpy as np

from samovar import _native
from samovar.collectives.plan import Combine, Notify, Operation, Plan, Put, Reduce, Span, Wait
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.core.layout import rounded_up
from samovar.transports.base import (
    Array,
    CountingTransport,
    MappedWindow,
    Notification,
    Pending,
    Region,
    Spawning,
    Transport,
    Window,
)

LINE_BYTES = 64  # of a cache line
_STEP_BITS = 24  # a notification's value is (run number << _STEP_BITS) | step number of the sender
_STEPS = (1 << _STEP_BITS) - 1


class PlanRunner(Protocol):
    """A plan bound to a buffer; `last_steps` is the step number reached by the last run (see `cost.Cost`)."""

    last_steps: int

    def run(self, deadline: Deadline) -> None:
        """Run the plan once; every rank of the group must. Raises DeadlineExceeded."""
        self.start()
        self.finish(deadline)

    def start(self) -> None:
        """Begin a run in the background where the transport can; never waits."""

    def finish(self, deadline: Deadline) -> None:
        """Complete the run that `start` began. Raises DeadlineExceeded."""


def open_channel(name: str, plan: Plan, transport: Transport, buffer: Region) -> PlanRunner:
    """The native executor where the transport maps its peers' memory, else a Python one: the same bits."""
    if _shows(buffer.window, MappedWindow):
        return NativeChannel(name, plan, transport, buffer)
    if _shows(transport, CountingTransport) and not any(isinstance(one, Combine) for one in plan.operations):
        counting = cast(CountingTransport, transport)
        if counting.counts(buffer.window):
            return CountedChannel(name, plan, counting, buffer)
    return Channel(name, plan, transport, buffer)


_SHOWN: WeakKeyDictionary[type, dict[type, bool]] = WeakKeyDictionary()  # types that a simulation made must not stay


def _shows(one: Transport | Window, protocol: type) -> bool:
    """Asked once for each type: a simulation opens thousands of channels."""
    known = _SHOWN.setdefault(type(one), {})
    if protocol not in known:
        known[protocol] = isinstance(one, protocol)
    return known[protocol]


class ChannelMemory:
    """The places of a plan's chunks and staging areas on this rank, and equally on every other."""

    def __init__(self, name: str, plan: Plan, transport: Transport, buffer: Region) -> None:
        self.plan = plan
        self.buffer = buffer
        self._chunks: dict[int, Array] = {}
        self._stagings: dict[tuple[int, int], Array] = {}
        self._staging_bytes = rounded_up(plan.largest_cell(len(buffer.array)) * buffer.array.itemsize, LINE_BYTES)
        self.window: Window = transport.open_window(name, plan.num_stagings * self._staging_bytes, plan.num_slots)

    def chunk(self, chunk: int) -> Array:
        """This rank's own chunk, the same array each time."""
        found = self._chunks.get(chunk)
        if found is None:
            start, stop = self.plan.chunk_bounds(chunk, len(self.buffer.array))
            found = self._chunks[chunk] = self.buffer.array[start:stop]
        return found

    def chunk_offset(self, chunk: int) -> int:
        """Where the chunk begins in the buffer's window, in bytes."""
        start, _ = self.plan.chunk_bounds(chunk, len(self.buffer.array))
        return self.buffer.offset + start * self.buffer.array.itemsize

    def staging_offset(self, staging: int) -> int:
        """Where the staging area begins in the channel's window, in bytes."""
        return staging * self._staging_bytes

    def staging(self, staging: int, count: int) -> Array:
        """The first `count` elements of this rank's own staging area."""
        found = self._stagings.get((staging, count))
        if found is None:
            dtype: type[np.generic] = self.buffer.array.dtype.type
            found = Region.of(self.window, self.staging_offset(staging), count, dtype).array
            self._stagings[staging, count] = found
        return found

    def sources(self, reduce: Reduce) -> list[Array]:
        """The arrays that a Reduce adds, in its order."""
        own = self.chunk(reduce.chunk)
        return [own, *(self.staging(staging, len(own)) for staging in reduce.stagings)]


class StepByStep:
    """Runs what a plan was compiled to, one operation after the other, and counts notifications.

    `operations` are to be set before the first run, unless a class performs a plan itself.
    """

    def __init__(self, plan_name: str, transport: Transport, window: Window) -> None:
        self.last_steps = 0
        self._plan_name = plan_name
        self._window = window
        self._transport = transport
        self._runs = 0
        self._deadline = Deadline(0.0)
        self._pending: Pending | None = None
        self._operations: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin in the background of a transport that has one; elsewhere `finish` does it all."""
        assert self._pending is None, "finish() comes first"
        if _shows(self._transport, Spawning):
            self._pending = cast(Spawning, self._transport).spawn(f"plan {self._plan_name!r}", self.run)

    def finish(self, deadline: Deadline) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            self.run(deadline)
        else:
            pending.wait(deadline)

    def run(self, deadline: Deadline) -> None:
        self._runs += 1
        self._deadline = deadline
        self.last_steps = 0
        self._perform()

    def _perform(self) -> None:
        for operation in self._operations:
            operation()

    def _notify(self, peer: int, slot: int) -> None:
        self._window.notify(peer, self._next_notification(slot))

    def _next_notification(self, slot: int) -> Notification:
        self.last_steps += 1
        return Notification(slot, (self._runs << _STEP_BITS) | self.last_steps)

    def _wait(self, peer: int, slot: int) -> None:
        value = self._window.wait(slot, self._runs << _STEP_BITS, peer, self._deadline)
        self.last_steps = max(self.last_steps, value & _STEPS)


class Channel(StepByStep):
    """Runs a plan operation by operation through the window's verbs: the reference for every other executor.

    Nothing is prepared before: a simulation runs most of its channels once.
    """

    def __init__(self, name: str, plan: Plan, transport: Transport, buffer: Region) -> None:
        self._memory = ChannelMemory(name, plan, transport, buffer)
        super().__init__(plan.name, transport, self._memory.window)

    def _perform(self) -> None:
        memory = self._memory
        for operation in memory.plan.operations:
            match operation:
                case Put():
                    self._put(operation.peer, *self._destination(operation), operation.slot)
                case Wait():
                    self._wait(operation.peer, operation.slot)
                case Reduce():
                    self._transport.reduce(memory.chunk(operation.chunk), memory.sources(operation))
                case Notify():
                    self._notify(operation.peer, operation.slot)
                case Combine():
                    self._combine(operation, memory.chunk(operation.chunk))
                case _:
                    assert_never(operation)

    def _combine(self, combine: Combine, own: Array) -> None:
        """Reads a copy of every other rank's chunk first, which the native executor reads in place."""
        window, offset = self._memory.buffer.window, self._memory.chunk_offset(combine.chunk)
        own_rank = self._transport.group.rank
        copies = {rank: np.empty_like(own) for rank in combine.ranks if rank != own_rank}
        for rank, copy in copies.items():
            window.get(rank, offset, copy)
        total = np.empty_like(own)
        self._transport.reduce(total, [copies.get(rank, own) for rank in combine.ranks])
        for rank in combine.into:
            window.put(rank, offset, total)

    def _destination(self, put: Put) -> tuple[Window, int, Array]:
        """Window and offset to put at, and the chunk to put."""
        source = self._memory.chunk(put.chunk)
        if put.staging is None:
            return self._memory.buffer.window, self._memory.chunk_offset(put.chunk), source
        return self._window, self._memory.staging_offset(put.staging), source

    def _put(self, peer: int, window: Window, offset: int, source: Array, slot: int) -> None:
        notification = self._next_notification(slot)
        if window is self._window:  # one message where there are messages
            window.put(peer, offset, source, notification)
        else:
            window.put(peer, offset, source)
            self._window.notify(peer, notification)


class CountedChannel(StepByStep):
    """Performs a plan by events where bytes are only counted: the steps and times of `Channel`.

    The rank blocks once for a run, instead of at each wait and addition, which takes a third of the time.
    """

    def __init__(self, name: str, plan: Plan, transport: CountingTransport, buffer: Region) -> None:
        memory = ChannelMemory(name, plan, transport, buffer)
        super().__init__(plan.name, transport, memory.window)
        self._part = transport.counted_part(memory.window, self._heed)
        sizes, itemsize = _chunk_sizes(plan.spans, plan.num_cells, len(buffer.array)), buffer.array.itemsize
        self._chunk_bytes = [self._part.counted_bytes(size * itemsize) for size in sizes]
        self._reduce_s = cache(self._part.reduce_s)
        self._plan, self._position, self._awaited, self._is_over = plan, 0, -1, True

    def _perform(self) -> None:
        self._position, self._is_over = 0, False
        self._advance()
        if not self._is_over:
            self._part.wait_for_end(self, self._deadline)

    def _heed(self, slot: int) -> None:
        if slot == self._awaited and self._part.slots[slot] >= self._runs << _STEP_BITS:
            self._awaited = -1
            self._advance()

    def _advance(self, _: object = None) -> None:
        """All up to the next wait or addition that takes time."""
        operations, part, run, steps = self._plan.operations, self._part, self._runs << _STEP_BITS, self.last_steps
        for position in range(self._position, len(operations)):
            operation = operations[position]
            if isinstance(operation, Wait):  # much faster than `match`, and there are millions
                if (value := part.slots[operation.slot]) < run:
                    self._position, self._awaited, self.last_steps = position, operation.slot, steps
                    return
                steps = max(steps, value & _STEPS)
            elif isinstance(operation, Put):
                steps += 1
                part.put(operation.peer, self._chunk_bytes[operation.chunk], operation.slot, run | steps)
            elif isinstance(operation, Reduce):
                num_arrays = len(operation.stagings) + 2  # the chunk is read and written
                seconds = self._reduce_s(num_arrays * self._chunk_bytes[operation.chunk])
                if seconds > 0.0:
                    self._position, self.last_steps = position + 1, steps
                    part.after(seconds, self._advance)
                    return
            elif isinstance(operation, Notify):
                steps += 1
                part.put(operation.peer, 0, operation.slot, run | steps)
        self._is_over, self.last_steps = True, steps
        part.end()

    def __str__(self) -> str:
        slot = f", which waits at slot {self._awaited}" if self._awaited >= 0 else ""
        return f"the end of plan {self._plan_name!r}{slot}"


@lru_cache(maxsize=16)
def _chunk_sizes(spans: tuple[Span, ...], num_cells: int, num_elements: int) -> list[int]:
    """Elements of each chunk: the same of all ranks."""
    return [(first + count) * num_elements // num_cells - first * num_elements // num_cells for first, count in spans]


class NativeChannel:
    """Runs a plan as an array in the native core, on its own and its peers' mapped memory."""

    def __init__(self, name: str, plan: Plan, transport: Transport, buffer: Region) -> None:
        self.last_steps = 0
        self._memory = ChannelMemory(name, plan, transport, buffer)
        self._transport = transport
        assert isinstance(self._memory.window, MappedWindow)
        assert isinstance(buffer.window, MappedWindow)
        self._window, self._buffer_window = self._memory.window, buffer.window
        self._bytes_per_run = 0
        self._program = _native.Program(self._window.native)
        self._is_started = False
        for operation in plan.operations:
            self._add(operation)

    def run(self, deadline: Deadline) -> None:
        waiting_s = deadline.remaining_s()
        complete = self._program.run(min(waiting_s, self._window.first_wait_s))
        self._end(complete, self._program.resume, waiting_s, deadline)

    def start(self) -> None:
        self._window.progress_thread().submit(self._program)
        self._is_started = True

    def is_complete(self) -> bool:
        """Whether nothing is left of the run that `start` began; never waits."""
        return self._window.progress_thread().wait(self._program, 0.0)

    def finish(self, deadline: Deadline) -> None:
        assert self._is_started, "start() comes first"
        waiting_s = deadline.remaining_s()
        wait = partial(self._window.progress_thread().wait, self._program)
        self._end(wait(min(waiting_s, self._window.first_wait_s)), wait, waiting_s, deadline)

    def _end(self, complete: bool, wait: Callable[[float], bool], waiting_s: float, deadline: Deadline) -> None:
        """Note a run that is complete, or that becomes so while `wait` waits until the deadline."""
        if not complete and not self._window.patiently(wait, self._awaited_peers, deadline):
            raise self._missing(waiting_s)
        self._completed()

    def _completed(self) -> None:
        self.last_steps = self._program.steps
        self._transport.count_sent(self._bytes_per_run)

    def _awaited(self) -> Operation:
        operations = self._memory.plan.operations
        return operations[min(self._program.position, len(operations) - 1)]

    def _awaited_peers(self) -> Sequence[int]:
        awaited = self._awaited()
        return (awaited.peer,) if isinstance(awaited, Wait) else ()

    def _missing(self, waiting_s: float) -> DeadlineExceeded:
        awaited = self._awaited()
        if isinstance(awaited, Wait):
            return self._window.missing_notification(awaited.slot, awaited.peer, waiting_s)
        name = self._memory.plan.name
        return DeadlineExceeded(f"plan {name!r} was still moving data after {waiting_s:.1f} s; raise --timeout")

    def _add(self, operation: Operation) -> None:
        match operation:
            case Put(peer=peer, slot=slot):
                self._program.add_put(peer, slot, *self._put_places(operation))
            case Reduce(chunk=chunk):
                self._program.add_combine([self._memory.chunk(chunk)], self._memory.sources(operation))
            case Combine():
                self._add_combine(operation)
            case Notify(peer=peer, slot=slot):
                self._program.add_notify(peer, slot)
            case Wait(slot=slot):
                self._program.add_wait(slot)
            case _:
                assert_never(operation)

    def _add_combine(self, combine: Combine) -> None:
        sources, destinations = (
            [self._peer_chunk(rank, combine.chunk) for rank in ranks] for ranks in (combine.ranks, combine.into)
        )
        others = [rank for rank in combine.into if rank != self._transport.group.rank]
        self._bytes_per_run += len(others) * self._memory.chunk(combine.chunk).nbytes
        self._program.add_combine(destinations, sources)

    def _put_places(self, put: Put) -> Sequence[Array]:
        """Destination in the peer's memory, and source."""
        source = self._memory.chunk(put.chunk)
        self._bytes_per_run += source.nbytes
        if put.staging is None:
            return self._peer_chunk(put.peer, put.chunk), source
        start = self._memory.staging_offset(put.staging)
        place = self._window.peer(put.peer)[start : start + source.nbytes]
        return place.view(source.dtype), source

    def _peer_chunk(self, rank: int, chunk: int) -> Array:
        own = self._memory.chunk(chunk)
        start = self._memory.chunk_offset(chunk)
        return self._buffer_window.peer(rank)[start : start + own.nbytes].view(own.dtype)
