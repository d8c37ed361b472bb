"""The collectives that strategies ask for, on their buffers, with any engine behind them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from samovar.collectives.encoded import Codec, EncodedChannel, EncodedRunner, encodable
from samovar.collectives.execute import NativeChannel, PlanRunner, open_channel
from samovar.collectives.plan import Plan, rooted
from samovar.collectives.plans import (
    REDUCE_SCATTERS,
    HostSizes,
    all_reduce,
    gather_parts,
    ring_all_gather,
    ring_reduce_scatter,
)
from samovar.collectives.tree import tree_broadcast, tree_reduce
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.core.near import NearRegion
from samovar.core.trace import Span, Trace
from samovar.transports.base import Array, Notification, Region, Transport


@dataclass(frozen=True, slots=True)
class AllGather:
    """A run of `runner` brings what this rank wrote to `own` to all ranks, where rank r's is `parts[r]`.

    All arrays are float32 of one size. `own` may be written again after a run; `parts` may change then too.
    """

    own: Array
    parts: Sequence[Array]
    runner: PlanRunner


class Records(Protocol):
    """Small records of float64 that every rank shows every other; see `samovar.collectives.engine`."""

    def post(self, record: Sequence[float]) -> None:
        """Send this rank's next record; never waits. The one before must have been collected."""

    def collect(self, deadline: Deadline) -> npt.NDArray[np.float64]:
        """The last posted record of every rank, shape (P, num_fields). Raises DeadlineExceeded."""

    def gather(self, record: Sequence[float], deadline: Deadline) -> npt.NDArray[np.float64]:
        """`post` and `collect`. A rank that returns knows that all have called."""
        self.post(record)
        return self.collect(deadline)


class Collectives(Protocol):
    """Collectives of one group of ranks. Every rank opens the same ones in the same order with the same sizes.

    A runner's runs must be started in the same order on all ranks, and each finished before it starts again.
    """

    @property
    def group(self) -> Group: ...

    @property
    def bytes_sent(self) -> int:
        """Bytes this rank put into other ranks' memory, or on the wire, so far."""

    def region(self, name: str, num_bytes: int) -> Region:
        """Zeroed memory of bytes (uint8) on every rank, which the collectives of this object may then use."""

    def all_reduce(self, name: str, buffer: Region) -> PlanRunner:
        """buffer = sum over ranks, in place, in a fixed order: the same bits on every rank and at every run."""

    def encoded_all_reduce(self, name: str, buffer: Region, codec: Codec) -> EncodedRunner:
        """The same with messages encoded by `codec`: float32 buffers, equal afterwards, about that sum."""

    def broadcast(self, name: str, buffer: Region) -> PlanRunner:
        """buffer = that of rank 0."""

    def all_gather(self, name: str, num_elements: int) -> AllGather:
        """Zeroed float32 of that many elements from every rank to every rank."""

    def records(self, num_fields: int) -> Records: ...


def float32_region(collectives: Collectives, name: str, num_elements: int) -> Region:
    """Zeroed float32 (num_elements,) on every rank, which the collectives of this object may use."""
    memory: Any = collectives.region(name, 4 * num_elements)
    if isinstance(memory, NearRegion):
        return cast(Region, memory)
    return Region(memory.window, memory.offset, memory.array.view(np.float32))


class PlannedCollectives:
    """Collectives on windows, not a library's: any plan, any rank as the root.

    `all_reduce_name(num_bytes)` gives the plan for a buffer of that size; the same on every rank. `host_size`
    are the ranks of a host, where plans care; None: all share one.
    """

    def __init__(
        self, transport: Transport, all_reduce_name: Callable[[int], str], host_size: HostSizes | None = None
    ) -> None:
        self.transport = transport
        self.host_size = host_size or transport.group.world_size
        self.all_reduce_name = all_reduce_name

    @property
    def num_hosts(self) -> int:
        """The hosts of the ranks."""
        return -(-self.group.world_size // self.host_size) if isinstance(self.host_size, int) else len(self.host_size)

    @property
    def group(self) -> Group:
        return self.transport.group

    @property
    def bytes_sent(self) -> int:
        return self.transport.bytes_sent

    def region(self, name: str, num_bytes: int) -> Region:
        return Region.of(self.transport.open_window(name, num_bytes, 0), 0, num_bytes, np.uint8)

    def all_reduce(self, name: str, buffer: Region) -> PlanRunner:
        group, plan_name = self.group, self.all_reduce_name(buffer.array.nbytes)
        return self.planned(name, all_reduce_plan(plan_name, self.host_size, group.rank, group.world_size), buffer)

    def encoded_all_reduce(self, name: str, buffer: Region, codec: Codec) -> EncodedRunner:
        function = encodable(self.all_reduce_name(buffer.array.nbytes), self.host_size)
        return EncodedChannel(name, function, self.transport, buffer, codec)

    def broadcast(self, name: str, buffer: Region) -> PlanRunner:
        return self.broadcast_from(name, buffer, 0)

    def all_gather(self, name: str, num_elements: int) -> AllGather:
        rank, world_size = self.group.rank, self.group.world_size
        region = float32_region(self, name, world_size * num_elements)
        parts = region.array.reshape(world_size, num_elements)
        return AllGather(parts[rank], list(parts), self.all_gather_parts(name, region))

    def reduce_to(self, name: str, buffer: Region, root: int) -> PlanRunner:
        """buffer = sum over ranks on `root`; partial sums on the others. May be run again after an answer of `root`."""
        return self.planned(name, rooted(tree_reduce, root, self.group.rank, self.group.world_size), buffer)

    def broadcast_from(self, name: str, buffer: Region, root: int) -> PlanRunner:
        """buffer = that of `root`. A rank's run begins by telling that its own buffer may be overwritten."""
        return self.planned(name, rooted(tree_broadcast, root, self.group.rank, self.group.world_size), buffer)

    def reduce_scatter(self, name: str, buffer: Region) -> PlanRunner:
        """Part r of the buffer = sum over ranks, on rank r; all ranks are in the run before any is through with it.

        Part r of N elements is [r N // P, (r + 1) N // P).
        """
        function = REDUCE_SCATTERS.get(self.all_reduce_name(buffer.array.nbytes), ring_reduce_scatter)
        return self.planned(name, function(self.group.rank, self.group.world_size), buffer)

    def gather_parts(self, name: str, buffer: Region) -> PlanRunner:
        """buffer = part r of each rank r, after a `reduce_scatter` whose buffer nobody writes to in between."""
        return self.planned(name, gather_parts(self.group.rank, self.group.world_size), buffer)

    def all_gather_parts(self, name: str, buffer: Region) -> PlanRunner:
        """The same with nothing before it."""
        return self.planned(name, ring_all_gather(self.group.rank, self.group.world_size), buffer)

    def records(self, num_fields: int) -> Records:
        return RecordExchange(self.transport, num_fields)

    def planned(self, name: str, plan: Plan, buffer: Region) -> PlanRunner:
        """This rank's part of any plan on `buffer`."""
        return open_channel(name, plan, self.transport, buffer)


@lru_cache(maxsize=1024)
def all_reduce_plan(name: str, host_size: HostSizes, rank: int, world_size: int) -> Plan:
    """The rank's part. Buckets mostly have one plan, and simulated ranks have it run by run."""
    return all_reduce(name, host_size=host_size)(rank, world_size)


class RecordExchange(Records):
    """Records of `num_fields` float64 from every rank to every rank, double-buffered.

    With `ranks`, among these alone, of which this is one. All ranks of the transport open it, in groups of equal size.

    Cost: P-1 messages of 8 * num_fields bytes per rank and record, none of them awaited at once.
    """

    def __init__(self, transport: Transport, num_fields: int, ranks: range | None = None) -> None:
        self._ranks = range(transport.group.world_size) if ranks is None else ranks
        self._place = self._ranks.index(transport.group.rank)
        size = len(self._ranks) * num_fields
        self._window = transport.open_window("records", 2 * size * 8, len(self._ranks))
        self._regions = [Region.of(self._window, half * size * 8, size, np.float64) for half in range(2)]
        self._num_fields = num_fields
        self._posted = 0
        self._collected = 0

    def post(self, record: Sequence[float]) -> None:
        """Send this rank's next record. The one before must have been collected, which makes its place free."""
        assert self._posted == self._collected, "collect the previous records first"
        source = np.array(record, dtype=np.float64)
        assert source.shape == (self._num_fields,), source.shape
        region = self._regions[self._posted % 2]
        self._posted += 1
        notification = Notification(self._place, self._posted)
        offset = region.offset + self._place * source.nbytes
        for distance in range(1, len(self._ranks) + 1):
            peer = self._ranks[(self._place + distance) % len(self._ranks)]
            self._window.put(peer, offset, source, notification)

    def collect(self, deadline: Deadline) -> npt.NDArray[np.float64]:
        """The last posted record of every rank, shape (P, num_fields). Raises DeadlineExceeded."""
        assert self._collected < self._posted, "post a record first"
        for place, peer in enumerate(self._ranks):
            self._window.wait(place, self._posted, peer, deadline)
        records = self._regions[self._collected % 2].array.copy()
        self._collected += 1
        return records.reshape(len(self._ranks), self._num_fields)


def digest_record(digest: bytes) -> list[float]:
    """A hash as a record: its words of 32 bits, which float64 holds exactly."""
    words: list[float] = np.frombuffer(digest, dtype=">u4").astype(float).tolist()
    return words


def digest_number(text: str) -> float:
    """A hash of `text` as one number of a record: 48 bits, which float64 holds exactly."""
    return float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big"))


def differing_ranks(records: npt.NDArray[np.float64]) -> list[int]:
    """The ranks whose record is not that of rank 0."""
    return [rank for rank in range(len(records)) if (records[rank] != records[0]).any()]


EXCHANGE, IN_FLIGHT = "exchange", "in flight"


class TracedRunner:
    """`inner`, with a span for each of its calls and one for each run in the background.

    A background run ends in the trace when it was first seen to be complete: when the rank began or awaited another,
    or at its own `finish`. `sends`, `takes`: whether other ranks wait for what this one gives, and the reverse.
    """

    def __init__(self, name: str, inner: PlanRunner, trace: Trace, in_flight: "list[TracedRunner]") -> None:
        self.sends = self.takes = True
        self.last_steps = 0
        self._name = name
        self._inner = inner
        self._trace = trace
        self._in_flight = in_flight
        self._num_runs = 0
        self._started_s: float | None = None

    def run(self, deadline: Deadline) -> None:
        self._num_runs += 1
        start_s = self._trace.now_s()
        self._inner.run(deadline)
        self.last_steps = self._inner.last_steps
        self._add(EXCHANGE, self._name, start_s, sends=self.sends, takes=self.takes)

    def start(self) -> None:
        self._num_runs += 1
        self._look_at_others()
        start_s = self._trace.now_s()
        self._inner.start()
        self._add(EXCHANGE, f"post {self._name}", start_s, sends=self.sends)
        if self._trace.is_active:
            self._started_s = start_s
            self._in_flight.append(self)

    def finish(self, deadline: Deadline) -> None:
        self._look_at_others()
        start_s = self._trace.now_s()
        self._inner.finish(deadline)
        self.last_steps = self._inner.last_steps
        self._land()
        self._add(EXCHANGE, f"wait {self._name}", start_s)

    def is_complete(self) -> bool:
        return isinstance(self._inner, NativeChannel) and self._inner.is_complete()

    def _look_at_others(self) -> None:
        if self._trace.is_active:
            for runner in [runner for runner in self._in_flight if runner.is_complete()]:
                runner._land()

    def _land(self) -> None:
        """The background run is complete, as far as anybody here can know."""
        if self._started_s is not None:
            self._in_flight.remove(self)
            self._add(IN_FLIGHT, self._name, self._started_s, takes=self.takes)
            self._started_s = None

    def _add(self, stream: str, name: str, start_s: float, sends: bool = False, takes: bool = False) -> None:
        if not self._trace.is_active:
            return
        run = f"{self._name} #{self._num_runs}"
        stop_s = self._trace.now_s()
        self._trace.add(Span(stream, name, start_s, stop_s, run if sends else None, run if takes else None))


class TracedEncodedRunner(TracedRunner):
    """The same of an encoded all-reduce."""

    def __init__(self, name: str, inner: EncodedRunner, trace: Trace, in_flight: list[TracedRunner]) -> None:
        super().__init__(name, inner, trace, in_flight)
        self.residual = inner.residual
        self.give_back = inner.give_back


class TracedCollectives(PlannedCollectives):
    """The plans of `inner`, each run of them in `trace`."""

    def __init__(self, inner: PlannedCollectives, trace: Trace) -> None:
        super().__init__(inner.transport, inner.all_reduce_name, inner.host_size)
        self._trace = trace
        self._in_flight: list[TracedRunner] = []

    def planned(self, name: str, plan: Plan, buffer: Region) -> TracedRunner:
        return TracedRunner(name, super().planned(name, plan, buffer), self._trace, self._in_flight)

    def encoded_all_reduce(self, name: str, buffer: Region, codec: Codec) -> TracedEncodedRunner:
        runner = super().encoded_all_reduce(name, buffer, codec)
        return TracedEncodedRunner(f"{name} as {codec.name}", runner, self._trace, self._in_flight)

    def reduce_to(self, name: str, buffer: Region, root: int) -> PlanRunner:
        return self._one_way(super().reduce_to(name, buffer, root), takes=self.group.rank == root)

    def broadcast_from(self, name: str, buffer: Region, root: int) -> PlanRunner:
        return self._one_way(super().broadcast_from(name, buffer, root), takes=self.group.rank != root)

    def _one_way(self, runner: PlanRunner, *, takes: bool) -> PlanRunner:
        assert isinstance(runner, TracedRunner)
        runner.takes, runner.sends = takes, not takes
        return runner
