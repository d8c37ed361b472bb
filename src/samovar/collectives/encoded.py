"""Plans whose messages are encoded: fewer bytes travel, and the sender keeps the part that a message leaves out."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Protocol, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.collectives.execute import LINE_BYTES, PlanRunner, StepByStep
from samovar.collectives.plan import Combine, Notify, Operation, Plan, PlanFunction, Put, Reduce, Span, Wait
from samovar.collectives.plans import HostSizes, all_reduce, direct_in_messages
from samovar.core.clock import Deadline
from samovar.core.layout import rounded_up
from samovar.transports.base import Array, Modelled, NativeCollectives, Pending, Region, Transport

CODECS = ("bf16", "int8", "int4", "top-k", "1-bit")

Floats = npt.NDArray[np.float32]
Message = npt.NDArray[np.uint8]


class Codec:
    """One of CODECS by name.

    Bytes of N elements: bf16 2N, int8 N and int4 N / 2, top-k 8 for every 100, 1-bit N / 8. For every 1,024 elements
    int8 and int4 send 4 bytes more, and 1-bit 8.
    Sources: Seide et al. 2014 (1-bit with its residual), Aji and Heafield 2017 (top-k), Dettmers 2016 (int8).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._native = _native.Codec(name)

    def message_bytes(self, num_elements: int) -> int:
        """The size of a message, a multiple of 4; never more than those of its parts together."""
        return self._native.message_bytes(num_elements)

    def encode(self, source: Floats, residual: Floats, message: Message) -> None:
        """With v = source + residual: message = encoded v, residual = v - decoded message."""
        self._native.encode(source, residual, message)

    def decode(self, messages: Sequence[Message], values: Floats) -> None:
        """values = (first + second) + ..., each decoded."""
        self._native.decode(messages, values, False)

    def add(self, messages: Sequence[Message], values: Floats) -> None:
        """values = ((values + first) + second) + ..."""
        self._native.decode(messages, values, True)


class GatheredMessages:
    """buffer = rank 0's decoded message + rank 1's + ...: the same bits on every rank.

    A rank's message is encoded once, with its own residual. Sums are never encoded, so only the residuals hold lost
    parts. Messages are encoded when an exchange begins, and decoded in the wait for it.

    Cost: each of H ranks sends (H - 1) messages; an all-reduce of values sends 2 (H - 1) / H of them. So bf16 sends
    less for up to 3 ranks, int8 up to 7, int4 up to 15, 1-bit up to 60, top-k up to 99.
    Memory: H + 1 messages, and N floats for the residual.
    """

    def __init__(self, what: str, buffer: Floats, between: NativeCollectives, codec: Codec) -> None:
        self.residual: Floats = np.zeros(len(buffer), np.float32)
        self._what = what
        self._buffer = buffer
        self._between = between
        self._codec = codec
        self._own: Message = np.zeros(codec.message_bytes(len(buffer)), np.uint8)
        self._all: Message = np.zeros((between.group.world_size, len(self._own)), np.uint8)

    def begin(self) -> Pending:
        """Send this rank's message; the wait for it leaves the sum in the buffer."""
        self._codec.encode(self._buffer, self.residual, self._own)
        self._gathering = self._between.all_gather(self._what, self._own, self._all)
        return self

    def wait(self, deadline: Deadline) -> None:
        """See `samovar.transports.base.Pending`."""
        self._gathering.wait(deadline)
        self._codec.decode(list(self._all), self._buffer)

    def give_back(self) -> None:
        """See `samovar.collectives.encoded.EncodedRunner`."""
        self._buffer += self.residual
        self.residual[:] = 0.0


_Step: TypeAlias = Callable[[], None]


class EncodedRunner(PlanRunner, Protocol):
    """A `PlanRunner` of an encoded all-reduce.

    `residual`, float32, is the part that this rank's messages left out so far, and that its next ones will carry. It
    has the order of the buffer, and is empty on a rank that sends none. It may be written to between runs.
    """

    residual: Floats

    def give_back(self) -> None:
        """buffer += residual; residual = 0. Before a run that is not encoded."""


def encodable(name: str, host_size: HostSizes) -> PlanFunction:
    """The plan function of a value of `--collective`, in a form that moves messages alone."""
    return direct_in_messages if name == "direct" else all_reduce(name, host_size=host_size)


class EncodedChannel(StepByStep):
    """Runs an all-reduce plan with encoded messages, through the window's verbs.

    A part of a sum is encoded, with the residual of this very message, and added from its encoded form. A complete sum
    is encoded once for each cell, by the rank that completed it. The others get, and pass, the same bytes. All ranks,
    that one too, take the decoded bytes. So buffers are equal afterwards, bit by bit, and the same at every run.

    Nothing is lost: inputs and residuals before a run add up to the result and the residuals after it, over all ranks,
    as far as the sums are exact.

    On any plan a rank encodes each element once. So its residual has the order of the buffer, and any other plan can
    continue with it.

    Memory: messages instead of the plan's stagings, one more for each cell, and a residual of N floats on every rank.
    Bytes: `samovar.collectives.cost`.
    Sources: Seide et al. 2014 (1-bit SGD with residuals); Tang et al. 2019 (DoubleSqueeze: at the sum too).
    """

    def __init__(self, name: str, function: PlanFunction, transport: Transport, buffer: Region, codec: Codec) -> None:
        rank, world_size = transport.group.rank, transport.group.world_size
        plans = [function(peer, world_size) for peer in range(world_size)]
        self._plan = plan = plans[rank]
        self._buffer: Floats = buffer.array
        self._codec = codec
        self._staging_bytes = rounded_up(codec.message_bytes(plan.largest_cell(len(self._buffer))), LINE_BYTES)
        self._sum_offsets = self._offsets_of_sums()
        super().__init__(plan.name, transport, transport.open_window(name, self._sum_offsets[-1], plan.num_slots))
        self._places = self._places_of_residuals(completed_cells(plans, rank))
        self.residual = np.zeros(len(self._buffer), np.float32)
        most = max((stop - start for start, stop in self._places.values()), default=0)
        self._outgoing: Message = np.zeros(codec.message_bytes(most), np.uint8)
        self._encoded: set[int] = set()
        self._operations = [step for operation in plan.operations for step in self._compiled(operation)]
        self._operations += self._completing(range(plan.num_cells))
        self._operations += [partial(self._take, cell) for cell in range(plan.num_cells)]

    def give_back(self) -> None:
        self._buffer += self.residual
        self.residual[:] = 0.0

    def _offsets_of_sums(self) -> list[int]:
        """Behind the stagings: where the message of each cell's sum begins, in bytes, and where the last one ends."""
        bounds = [self._plan.cell_bounds(cell, len(self._buffer)) for cell in range(self._plan.num_cells)]
        sizes = [self._codec.message_bytes(stop - start) for start, stop in bounds]
        return list(accumulate(sizes, initial=self._plan.num_stagings * self._staging_bytes))

    def _places_of_residuals(self, completed: Sequence[int]) -> dict[Put | int, Span]:
        """The elements that this rank encodes: of each put of a part of a sum, and of each cell that it completes."""
        size = len(self._buffer)
        puts = [put for put in self._plan.operations if isinstance(put, Put) and put.staging is not None]
        places: dict[Put | int, Span] = {put: self._plan.chunk_bounds(put.chunk, size) for put in puts}
        return places | {cell: self._plan.cell_bounds(cell, size) for cell in completed}

    def _compiled(self, operation: Operation) -> list[_Step]:
        match operation:
            case Put(staging=None):
                return self._compiled_put_of_sums(operation)
            case Put(peer=peer, slot=slot):
                return [partial(self._put_part, operation), partial(self._notify, peer, slot)]
            case Reduce():
                return [self._compiled_reduce(operation)]
            case Notify(peer=peer, slot=slot):
                return [partial(self._notify, peer, slot)]
            case Wait(peer=peer, slot=slot):
                return [partial(self._wait, peer, slot)]
            case Combine():
                raise AssertionError(f"plan {self._plan.name!r} has no messages that could be encoded")
            case _:
                assert_never(operation)

    def _put_part(self, put: Put) -> None:
        start, stop = self._places[put]
        message = self._outgoing[: self._codec.message_bytes(stop - start)]
        self._encode(start, stop, message)
        assert put.staging is not None
        self._window.put(put.peer, put.staging * self._staging_bytes, message)

    def _compiled_put_of_sums(self, put: Put) -> list[_Step]:
        own = self._plan.cells(put.chunk)
        first, end = self._sum_offsets[own.start], self._sum_offsets[own.stop]
        source = self._window.local[first:end]
        return [
            *self._completing(own),
            partial(self._window.put, put.peer, first, source),
            partial(self._notify, put.peer, put.slot),
        ]

    def _completing(self, wanted: range) -> list[_Step]:
        """Encode the cells of these that this rank completes, before the first put; others have come encoded."""
        fresh = [cell for cell in wanted if cell in self._places and cell not in self._encoded]
        self._encoded.update(fresh)
        return [partial(self._complete, cell) for cell in fresh]

    def _compiled_reduce(self, reduce: Reduce) -> _Step:
        start, stop = self._plan.chunk_bounds(reduce.chunk, len(self._buffer))
        values, size = self._buffer[start:stop], self._codec.message_bytes(stop - start)
        offsets = [staging * self._staging_bytes for staging in reduce.stagings]
        messages = [self._window.local[offset : offset + size] for offset in offsets]
        add = partial(self._codec.add, messages, values)
        return partial(self._work, add, [*messages, values], [values])

    def _complete(self, cell: int) -> None:
        self._encode(*self._places[cell], self._sum(cell))

    def _take(self, cell: int) -> None:
        """Take the decoded message of the cell, as every rank does."""
        start, stop = self._plan.cell_bounds(cell, len(self._buffer))
        values, message = self._buffer[start:stop], self._sum(cell)
        self._work(partial(self._codec.decode, [message], values), [message], [values])

    def _sum(self, cell: int) -> Message:
        return self._window.local[self._sum_offsets[cell] : self._sum_offsets[cell + 1]]

    def _encode(self, start: int, stop: int, message: Message) -> None:
        source, residual = self._buffer[start:stop], self.residual[start:stop]
        encode = partial(self._codec.encode, source, residual, message)
        self._work(encode, [source, residual], [residual, message])

    def _work(self, what: _Step, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        if isinstance(self._transport, Modelled):
            self._transport.work(what, reads, writes)
        else:
            what()


def completed_cells(plans: Sequence[Plan], rank: int) -> list[int]:
    """The cells whose sum this rank completes, of an all-reduce: those that nobody gives it."""
    given = {
        cell
        for plan in plans
        for put in plan.operations
        if isinstance(put, Put) and put.peer == rank and put.staging is None
        for cell in plan.cells(put.chunk)
    }
    return [cell for cell in range(plans[rank].num_cells) if cell not in given]
