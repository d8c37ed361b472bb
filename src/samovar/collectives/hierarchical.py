"""Collectives over several hosts: our plans inside each host, a library's collectives between their first ranks."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from samovar.collectives.encoded import Codec, EncodedRunner, GatheredMessages
from samovar.collectives.engine import AllGather, RecordExchange, Records, float32_region
from samovar.collectives.execute import PlanRunner, open_channel
from samovar.collectives.plan import Plan
from samovar.collectives.plans import direct_gather
from samovar.collectives.tree import chosen_arity, kary_tree_down, kary_tree_up, tree_broadcast
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError
from samovar.core.group import Group, Host
from samovar.transports.background import Background, Job
from samovar.transports.base import Array, MissingNotification, NativeCollectives, Pending, Region, Transport, Watched

# The library between hosts has a limit of its own, on the time in which nothing moves.
_UNLIMITED_S = 30 * 86_400.0
_SLICE_S = 0.1


class HierarchicalCollectives:
    """`samovar.collectives.engine.Collectives` of `group`, whose ranks run on `hosts`.

    `local` is shared among the ranks of this host, `between` among the first ranks of all hosts (None on the others).
    A first rank leads its host. Its own thread takes the host's sum, exchanges it with the other hosts' leaders and
    gives it back, one exchange after the other in the order of their start. Inside the host data moves in the
    transport's own thread meanwhile. A host of one rank needs neither the parts inside nor the thread.

    An exchange fails if other ranks of this host do not begin it by `deadline()`.
    """

    def __init__(
        self,
        local: Transport,
        group: Group,
        hosts: Sequence[Host],
        between: NativeCollectives | None,
        deadline: Callable[[], Deadline],
    ) -> None:
        self.group = group
        self.local = local
        self.hosts = hosts
        self._between = between
        self.deadline = deadline
        self.background = Background("samovar-between-hosts")
        self.host = next(host for host in hosts if group.rank in host.ranks)
        assert (between is not None) == (self.host.ranks[0] == group.rank), (group, self.host)
        places = {rank: (h, row) for h, host in enumerate(hosts) for row, rank in enumerate(host.ranks)}
        self.places = [places[rank] for rank in range(len(places))]  # host and row of each rank

    @property
    def bytes_sent(self) -> int:
        """Inside this host, and between hosts where this rank leads one."""
        return self.local.bytes_sent + self.bytes_between

    @property
    def bytes_between(self) -> int:
        """Bytes that this rank sent to other hosts."""
        return 0 if self._between is None else self._between.bytes_sent

    def region(self, name: str, num_bytes: int) -> Region:
        return Region.of(self.local.open_window(name, num_bytes, 0), 0, num_bytes, np.uint8)

    def all_reduce(self, name: str, buffer: Region) -> PlanRunner:
        """Up a k-ary tree of the host, all-reduce of the leaders, down the same tree: the order of `two_level`."""
        native = self._between
        between = None if native is None else lambda: native.all_reduce(name, buffer.array)
        return self._reduced(name, buffer, between)

    def encoded_all_reduce(self, name: str, buffer: Region, codec: Codec) -> EncodedRunner:
        """As `all_reduce`, but leaders send each other their hosts' sums encoded; see `GatheredMessages`."""
        if self._between is None:
            return _EncodedExchange(self._reduced(name, buffer, None), None)
        messages = GatheredMessages(f"{name} as {codec.name}", buffer.array, self._between, codec)
        return _EncodedExchange(self._reduced(name, buffer, messages.begin), messages)

    def broadcast(self, name: str, buffer: Region) -> PlanRunner:
        """Rank 0 leads the first host."""
        place, size = self.local.group.rank, self.local.group.world_size
        down = self._inside(name, tree_broadcast(place, size), buffer)
        native = self._between
        between = None if native is None else lambda: native.broadcast(name, buffer.array)
        return _Exchange(f"broadcast {name!r}", self, None, between, down)

    def all_gather(self, name: str, num_elements: int) -> AllGather:
        """To the hosts' first ranks, between them, and down. A leader sends (H-1) R parts, R a host's most ranks."""
        place, size = self.local.group.rank, self.local.group.world_size
        num_rows = max(len(host.ranks) for host in self.hosts)
        rows = float32_region(self, f"{name} of this host", num_rows * num_elements)
        everything = float32_region(self, name, len(self.hosts) * num_rows * num_elements)
        gather = open_channel(f"{name} up", direct_gather(place, size), self.local, rows.part(0, size * num_elements))
        rows_array = rows.array.reshape(num_rows, num_elements)
        gathered = everything.array.reshape(len(self.hosts), num_rows, num_elements)
        runner = self.gathered_by_leaders(f"all-gather {name!r}", gather, rows_array, gathered, everything)
        return AllGather(rows_array[place], [gathered[where] for where in self.places], runner)

    def records(self, num_fields: int) -> Records:
        """The records of a host, gathered by its leader, go to all hosts and down to their ranks."""
        return _Records(self, num_fields)

    def gathered_by_leaders(
        self, what: str, gather: PlanRunner, rows: Array, gathered: Array, buffer: Region
    ) -> PlanRunner:
        """`gather` fills a leader's `rows`; those of all hosts come to `gathered`, which is `buffer`, on all ranks."""
        place, size = self.local.group.rank, self.local.group.world_size
        down = self._inside(f"{what} down", tree_broadcast(place, size), buffer)
        native = self._between
        between = None if native is None else lambda: native.all_gather(what, rows, gathered)
        return _Exchange(what, self, gather if size > 1 else None, between, down)

    def close(self) -> None:
        """End the thread of this object; never waits for other ranks."""
        self.background.close()

    def _reduced(self, name: str, buffer: Region, between: "_Begin | None") -> "_Exchange":
        place, size = self.local.group.rank, self.local.group.world_size
        arity = chosen_arity(size)
        up = self._inside(f"{name} up", kary_tree_up(place, size, arity), buffer)
        down = self._inside(f"{name} down", kary_tree_down(place, size, arity), buffer)
        return _Exchange(f"all-reduce {name!r}", self, up, between, down)

    def _inside(self, name: str, plan: Plan, buffer: Region) -> PlanRunner | None:
        return open_channel(name, plan, self.local, buffer) if self.local.group.world_size > 1 else None


_Begin: TypeAlias = Callable[[], Pending]


class _Exchange(PlanRunner):
    """Up inside the host, between the leaders, down inside the host.

    `between` begins the leaders' part (None on other ranks), `up` and `down` are None if they have nothing to do.
    """

    def __init__(
        self,
        what: str,
        collectives: HierarchicalCollectives,
        up: PlanRunner | None,
        between: _Begin | None,
        down: PlanRunner | None,
    ) -> None:
        self.last_steps = 0
        self._own_name = f"rank {collectives.group.rank} on {collectives.host.name}: "
        self._who = self._own_name + what
        self._local = collectives.local
        self._background = collectives.background
        self._deadline = collectives.deadline
        self._leader = collectives.host.ranks[0]
        self._others = " and ".join(str(host) for host in collectives.hosts if host is not collectives.host)
        self._up = up
        self._between = between
        self._down = down
        self._under_way: Job | Pending | None = None

    def start(self) -> None:
        assert self._under_way is None, "finish() comes first"
        if self._up is not None:
            self._up.start()
        if self._between is None:
            assert self._down is not None, "a rank that leads no host has a leader"
            self._down.start()
        elif self._down is None:
            self._under_way = self._between()
        else:
            self._under_way = self._background.submit(Job(self._who, self._lead_or_tell))

    def finish(self, deadline: Deadline) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.wait(deadline)
        elif self._up is not None:
            self._finish_inside(self._up, deadline)
        if self._down is not None:
            self._finish_inside(self._down, deadline)
        self.last_steps = sum(part.last_steps for part in (self._up, self._down) if part is not None)

    def _lead_or_tell(self, job: Job) -> None:
        """If the leader fails, the ranks of its host hear why. They would blame the leader that then ends."""
        try:
            self._lead(job)
        except SamovarError as error:
            if isinstance(self._local, Watched) and not self._background.is_closed:
                self._local.tell_why(str(error).removeprefix(self._own_name))
            raise

    def _lead(self, job: Job) -> None:
        assert self._between is not None
        assert self._down is not None
        if self._up is not None:
            self._finish_up(self._up, job)
        job.phase = f"waits for {self._others}"
        self._between().wait(Deadline.after(_UNLIMITED_S))
        self._down.start()

    def _finish_up(self, up: PlanRunner, job: Job) -> None:
        deadline = self._deadline()
        waiting_s = deadline.remaining_s()
        while True:
            try:
                return up.finish(Deadline.after(_SLICE_S))
            except MissingNotification as error:
                job.phase = f"waits for {error.peer}"
                if self._background.is_closed or deadline.passed():
                    raise DeadlineExceeded(
                        f"{self._who}: {error.peer} did not begin it within {waiting_s:.1f} s; see its log"
                    ) from error
            except DeadlineExceeded:  # the slice ended in an addition, which ends by itself
                job.phase = "adds up what the ranks of its host gave"

    def _finish_inside(self, part: PlanRunner, deadline: Deadline) -> None:
        """A part of this rank's own, whose data comes from the leader in the end."""
        waiting_s = deadline.remaining_s()
        try:
            part.finish(deadline)
        except MissingNotification as error:
            raise DeadlineExceeded(
                f"{self._who}: {error.peer} did not answer within {waiting_s:.1f} s; it is stopped or "
                f"slow, or rank {self._leader}, which leads this host, waits for {self._others} (see their logs)"
            ) from error


class _EncodedExchange:
    """An `EncodedRunner`: an exchange whose leaders' part are `messages`; None if this rank sends none."""

    def __init__(self, exchange: _Exchange, messages: GatheredMessages | None) -> None:
        self.last_steps = 0
        self.residual = np.zeros(0, np.float32) if messages is None else messages.residual
        self._messages = messages
        self.run, self.start, self.finish = exchange.run, exchange.start, exchange.finish

    def give_back(self) -> None:
        if self._messages is not None:
            self._messages.give_back()


class _Gather:
    """A `PlanRunner` that collects the host's records into `rows`; `RecordExchange.post` began it."""

    def __init__(self, records: RecordExchange, rows: npt.NDArray[np.float64]) -> None:
        self.last_steps = 0
        self._records = records
        self._rows = rows

    def run(self, deadline: Deadline) -> None:
        self.finish(deadline)

    def start(self) -> None:
        """Nothing: records are on their way since they were posted."""

    def finish(self, deadline: Deadline) -> None:
        records = self._records.collect(deadline)
        self._rows[: len(records)] = records


class _Records(Records):
    """`samovar.collectives.engine.Records` over several hosts.

    Cost: inside the host as `RecordExchange` and a broadcast of all; between H hosts of at most R ranks, a leader
    sends (H-1) R records of 8 * num_fields bytes.
    """

    def __init__(self, collectives: HierarchicalCollectives, num_fields: int) -> None:
        hosts = collectives.hosts
        self._inside = RecordExchange(collectives.local, num_fields)
        shape = (len(hosts), max(len(host.ranks) for host in hosts), num_fields)
        self._rows = np.zeros(shape[1:])
        region = collectives.region("records of all", math.prod(shape) * 8)
        everything = Region.of(region.window, region.offset, math.prod(shape), np.float64)
        self._all = everything.array.reshape(shape)
        self._places = tuple(np.array(collectives.places).T)
        self._gather = _Gather(self._inside, self._rows)
        self._is_alone = collectives.local.group.world_size == 1
        self._exchange = collectives.gathered_by_leaders("records", self._gather, self._rows, self._all, everything)

    def post(self, record: Sequence[float]) -> None:
        self._inside.post(record)
        if self._is_alone:
            self._gather.finish(Deadline.after(0.0))
        self._exchange.start()

    def collect(self, deadline: Deadline) -> npt.NDArray[np.float64]:
        self._exchange.finish(deadline)
        records: npt.NDArray[np.float64] = self._all[self._places]
        return records
