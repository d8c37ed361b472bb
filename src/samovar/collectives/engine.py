"""What strategies ask for: collectives on their buffers, whoever carries them out."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from samovar.collectives.all_gather import AllGather
from samovar.collectives.codecs import Codec
from samovar.collectives.direct import gather_parts
from samovar.collectives.encoded import EncodedChannel, EncodedRunner, encodable
from samovar.collectives.execute import PlanRunner, open_channel
from samovar.collectives.nested import rooted
from samovar.collectives.plan import Plan
from samovar.collectives.plans import REDUCE_SCATTERS, all_reduce
from samovar.collectives.records import RecordExchange
from samovar.collectives.scatter_gather import ring_all_gather
from samovar.collectives.tree import tree_broadcast, tree_reduce
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.transports.base import Region, Transport


class Records(Protocol):
    """Small records of float64 that every rank shows every other; see `samovar.collectives.records`."""

    def post(self, record: Sequence[float]) -> None:
        """Send this rank's next record; never waits. The one before must have been collected."""
        ...

    def collect(self, deadline: Deadline) -> npt.NDArray[np.float64]:
        """The last posted record of every rank, shape (P, num_fields). Raises DeadlineExceeded."""
        ...


class Collectives(Protocol):
    """Collectives of one group of ranks. Every rank opens the same ones in the same order with the same sizes.

    A runner's runs must be started in the same order on all ranks, and each finished before it starts again.
    """

    @property
    def group(self) -> Group: ...

    @property
    def bytes_sent(self) -> int:
        """Bytes this rank put into other ranks' memory, or on the wire, so far."""
        ...

    def region(self, name: str, num_bytes: int) -> Region:
        """Zeroed memory of bytes (uint8) on every rank, which the collectives of this object may then use."""
        ...

    def all_reduce(self, name: str, buffer: Region) -> PlanRunner:
        """buffer = sum over ranks, in place, in a fixed order: the same bits on every rank and at every run."""
        ...

    def encoded_all_reduce(self, name: str, buffer: Region, codec: Codec) -> EncodedRunner:
        """The same with messages encoded by `codec`: float32 buffers, equal afterwards, about that sum."""
        ...

    def broadcast(self, name: str, buffer: Region) -> PlanRunner:
        """buffer = that of rank 0."""
        ...

    def all_gather(self, name: str, num_elements: int) -> AllGather:
        """Zeroed float32 of that many elements from every rank to every rank."""
        ...

    def records(self, num_fields: int) -> Records: ...


@runtime_checkable
class WindowCollectives(Collectives, Protocol):
    """Collectives on windows, not a library's: any plan, any rank as the root."""

    def reduce_to(self, name: str, buffer: Region, root: int) -> PlanRunner:
        """buffer = sum over ranks on `root`; partial sums on the others. May be run again after an answer of `root`."""
        ...

    def broadcast_from(self, name: str, buffer: Region, root: int) -> PlanRunner:
        """buffer = that of `root`. A rank's run begins by telling that its own buffer may be overwritten."""
        ...

    def reduce_scatter(self, name: str, buffer: Region) -> PlanRunner:
        """Part r of the buffer = sum over ranks, on rank r; all ranks are in the run before any is through with it.

        Part r of N elements is [r N // P, (r + 1) N // P).
        """
        ...

    def gather_parts(self, name: str, buffer: Region) -> PlanRunner:
        """buffer = part r of each rank r, after a `reduce_scatter` whose buffer nobody writes to in between."""
        ...

    def all_gather_parts(self, name: str, buffer: Region) -> PlanRunner:
        """The same with nothing before it."""
        ...

    def planned(self, name: str, plan: Plan, buffer: Region) -> PlanRunner:
        """This rank's part of any plan on `buffer`."""
        ...


def float32_region(collectives: Collectives, name: str, num_elements: int) -> Region:
    """Zeroed float32 (num_elements,) on every rank, which the collectives of this object may use."""
    memory = collectives.region(name, 4 * num_elements)
    return Region(memory.window, memory.offset, memory.array.view(np.float32))


class PlannedCollectives:
    """Samovar's own plans on one transport.

    `all_reduce_name(num_bytes)` gives the plan for a buffer of that size; the same on every rank. `host_size` ranks in
    a row share a host, where plans care; None: all do.
    """

    def __init__(
        self, transport: Transport, all_reduce_name: Callable[[int], str], host_size: int | None = None
    ) -> None:
        self.transport = transport
        self.host_size = host_size or transport.group.world_size
        self._all_reduce_name = all_reduce_name

    @property
    def group(self) -> Group:
        return self.transport.group

    @property
    def bytes_sent(self) -> int:
        return self.transport.bytes_sent

    def region(self, name: str, num_bytes: int) -> Region:
        return Region.of(self.transport.open_window(name, num_bytes, 0), 0, num_bytes, np.uint8)

    def all_reduce(self, name: str, buffer: Region) -> PlanRunner:
        group = self.group
        function = all_reduce(self._all_reduce_name(buffer.array.nbytes), host_size=self.host_size)
        return self.planned(name, function(group.rank, group.world_size), buffer)

    def encoded_all_reduce(self, name: str, buffer: Region, codec: Codec) -> EncodedRunner:
        function = encodable(self._all_reduce_name(buffer.array.nbytes), self.host_size)
        return EncodedChannel(name, function, self.transport, buffer, codec)

    def broadcast(self, name: str, buffer: Region) -> PlanRunner:
        return self.broadcast_from(name, buffer, 0)

    def all_gather(self, name: str, num_elements: int) -> AllGather:
        rank, world_size = self.group.rank, self.group.world_size
        region = float32_region(self, name, world_size * num_elements)
        parts = region.array.reshape(world_size, num_elements)
        return AllGather(parts[rank], list(parts), self.all_gather_parts(name, region))

    def reduce_to(self, name: str, buffer: Region, root: int) -> PlanRunner:
        return self.planned(name, rooted(tree_reduce, root, self.group.rank, self.group.world_size), buffer)

    def broadcast_from(self, name: str, buffer: Region, root: int) -> PlanRunner:
        return self.planned(name, rooted(tree_broadcast, root, self.group.rank, self.group.world_size), buffer)

    def reduce_scatter(self, name: str, buffer: Region) -> PlanRunner:
        function = REDUCE_SCATTERS[self._all_reduce_name(buffer.array.nbytes)]
        return self.planned(name, function(self.group.rank, self.group.world_size), buffer)

    def gather_parts(self, name: str, buffer: Region) -> PlanRunner:
        return self.planned(name, gather_parts(self.group.rank, self.group.world_size), buffer)

    def all_gather_parts(self, name: str, buffer: Region) -> PlanRunner:
        return self.planned(name, ring_all_gather(self.group.rank, self.group.world_size), buffer)

    def records(self, num_fields: int) -> Records:
        return RecordExchange(self.transport, num_fields)

    def planned(self, name: str, plan: Plan, buffer: Region) -> PlanRunner:
        """This rank's part of any plan on `buffer`."""
        return open_channel(name, plan, self.transport, buffer)
