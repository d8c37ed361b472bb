"""--record and --replay: a rank records or follows the order in which the center takes reads and updates."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from samovar.box.base import Center, PendingPush, Push, SeatCenter, Versions
from samovar.box.mapped import MappedCenter
from samovar.box.remote import RemoteCenter
from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.report.run_folder import RunFolder
from samovar.training.context import RankContext
from samovar.training.order_log import LogHead, OrderLog, OrderWriter, read_order
from samovar.transports.background import Job
from samovar.transports.base import Array, Window

ChunkCenter: TypeAlias = MappedCenter | RemoteCenter
# act(chunk, its elements): one operation on one chunk.
_Act: TypeAlias = Callable[[int, slice], Versions]


class WatchedCenter:
    """The operations of `center` that are neither recorded nor replayed: those at its start and end."""

    def __init__(self, center: SeatCenter) -> None:
        self._center = center

    @property
    def num_elements(self) -> int:
        return self._center.num_elements

    @property
    def chunk_elements(self) -> int:
        return self._center.chunk_elements

    def write(self, values: Array, deadline: Deadline) -> None:
        self._center.write(values, deadline)

    def write_velocity(self, values: Array, deadline: Deadline) -> None:
        self._center.write_velocity(values, deadline)


class RecordingCenter(WatchedCenter):
    """A `samovar.box.base.Center` that writes each read and update of `center` into `log`."""

    def __init__(self, center: SeatCenter, log: OrderWriter) -> None:
        super().__init__(center)
        self._log = log

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        versions = self._center.read(destination, deadline)
        self._log.read(versions)
        return versions

    def read_velocity(self, destination: Array, deadline: Deadline) -> Versions:
        versions = self._center.read_velocity(destination, deadline)
        self._log.read(versions)
        return versions

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        versions = self._center.accumulate(sequence, difference, deadline, momentum)
        self._log.update(versions)
        return versions

    def accumulate_in_background(self, sequence: int, difference: Array) -> Push:
        return self._recorded(self._center.accumulate_in_background(sequence, difference))

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        versions = self._center.exchange(sequence, weights, moving_rate, deadline)
        self._log.update(versions)
        return versions

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> Push:
        return self._recorded(self._center.exchange_in_background(sequence, weights, moving_rate))

    def _recorded(self, push: Push) -> Push:
        """The push, which is recorded when it has been waited for: its place is not known before."""

        def landed(deadline: Deadline) -> Versions:
            push.wait(deadline)
            self._log.update(push.versions)
            return push.versions

        return PendingPush(landed)


_FIRST_POLL_S, _LAST_POLL_S = 2e-5, 2e-3


class Turns:
    """The turns of a worker's reads and updates at each chunk: each comes after as many others as its ticket says.

    In a chunk's order, update v comes after update v - 1 and all reads of version v - 1. A read of version v comes
    after update v. On rank 0, `window` holds the number of reads and updates that each chunk has had, and whether a
    worker has stopped: then nobody waits for a turn any more.
    """

    def __init__(self, logs: Sequence[OrderLog], rank: int, window: Window) -> None:
        self._window = window
        self._own = logs[rank]
        self._reads_up_to = reads_up_to(logs)
        kinds = list(enumerate(self._own.is_update))
        self._left = {kind: [place for place, one in reversed(kinds) if one == kind] for kind in (False, True)}
        self._stops_at = 8 * self._own.head.num_chunks

    def stop(self) -> None:
        """Let all continue without turns: this worker stops early, and others may wait for its next updates."""
        self._window.fetch_add(0, self._stops_at, 1)

    @property
    def are_over(self) -> bool:
        return self._window.fetch_add(0, self._stops_at, 0) > 0

    def take(self, is_update: bool) -> tuple[Versions, Versions]:
        """Take the next entry of this kind. Returns each chunk's ticket, and its version afterwards.

        Reads have an order, and updates; a read may be recorded before an update that began earlier.
        """
        left, updates = self._left[is_update], self._left[True]
        if not left or (not is_update and updates and updates[-1] < left[-1]):  # an update that this worker left out
            self.stop()
            raise SamovarError(
                "--replay: this worker reads and updates the center in another order than in the recorded run; are "
                "solver, net and data the recorded ones?"
            )
        versions = self._own.versions[left.pop()]
        chunks = np.arange(len(versions))
        # Column x + 1 counts the reads of versions up to x.
        if is_update:
            return versions - 1 + self._reads_up_to[chunks, versions], versions
        return versions + self._reads_up_to[chunks, versions], versions

    def each(self, tickets: Versions, deadline: Deadline) -> Iterator[int]:
        """Yield every chunk when it has had as many reads and updates as its ticket says; count it at the next call.

        Chunks come in any order. Members begin their updates at different chunks, so waiting in a fixed order could
        deadlock. Raises DeadlineExceeded.
        """
        left, pause_s = dict(enumerate(tickets.tolist())), _FIRST_POLL_S
        while left:
            come = [chunk for chunk, ticket in left.items() if self._window.fetch_add(0, 8 * chunk, 0) >= ticket]
            if not come and self.are_over:
                come = list(left)
            for chunk in come:
                yield chunk
                self._window.fetch_add(0, 8 * chunk, 1)
                del left[chunk]
            if come:
                pause_s = _FIRST_POLL_S
                continue
            if deadline.passed():
                raise DeadlineExceeded(
                    f"--replay: chunk {min(left)} did not come to its turn; are solver, net and data the "
                    "recorded ones? See the other ranks' logs"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_POLL_S)


class ReplayedCenter(WatchedCenter):
    """A `samovar.box.base.Center` in which each chunk of `center` waits for its turn."""

    def __init__(self, center: ChunkCenter, turns: Turns, deadline: Callable[[], Deadline]) -> None:
        super().__init__(center)
        self._chunks, self._turns = center, turns
        self._deadline = deadline

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        return self._in_turn(
            False, deadline, lambda chunk, part: self._chunks.read_chunks(chunk, destination[part], deadline)
        )

    def read_velocity(self, destination: Array, deadline: Deadline) -> Versions:
        read = self._chunks.read_velocity_chunks
        return self._in_turn(False, deadline, lambda chunk, part: read(chunk, destination[part], deadline))

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        return self._in_turn(True, deadline, self._adding(sequence, difference, deadline, momentum))

    def accumulate_in_background(self, sequence: int, difference: Array) -> Push:
        deadline = self._deadline()
        return self._in_background(deadline, self._adding(sequence, difference, deadline))

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        return self._in_turn(True, deadline, self._exchanging(sequence, weights, moving_rate, deadline))

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> Push:
        deadline = self._deadline()
        return self._in_background(deadline, self._exchanging(sequence, weights, moving_rate, deadline))

    def _adding(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> _Act:
        add = self._chunks.accumulate_chunks
        return lambda chunk, part: add(chunk, sequence, difference[part], deadline, momentum)

    def _exchanging(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> _Act:
        exchange = self._chunks.exchange_chunks
        return lambda chunk, part: exchange(chunk, sequence, weights[part], moving_rate, deadline)

    def _in_background(self, deadline: Deadline, act: _Act) -> Push:
        tickets = self._turns.take(True)
        return _pushed(lambda: self._do(tickets, deadline, act))

    def _in_turn(self, is_update: bool, deadline: Deadline, act: _Act) -> Versions:
        return self._do(self._turns.take(is_update), deadline, act)

    def _do(self, entry: tuple[Versions, Versions], deadline: Deadline, act: _Act) -> Versions:
        tickets, expected = entry
        size, versions = self._center.chunk_elements, np.zeros_like(expected)
        try:
            for chunk in self._turns.each(tickets, deadline):
                (versions[chunk],) = act(chunk, slice(chunk * size, (chunk + 1) * size))
        except SamovarError:  # what is not finite, say: this chunk has no such turn, for which others would wait
            self._turns.stop()
            raise
        if (versions != expected).any() and not self._turns.are_over:
            raise SamovarError("--replay: the center took other versions than recorded; please report both runs")
        return versions


def _pushed(push: Callable[[], Versions]) -> Push:
    """A push on its own thread, since others may have their turn before it."""
    versions: list[Versions] = []
    job = Job("--replay: a push", lambda _: versions.append(push()))
    thread = threading.Thread(target=job.run, args=(None,), name="samovar-replayed-push", daemon=True)
    thread.start()

    def landed(deadline: Deadline) -> Versions:
        thread.join(deadline.remaining_s())
        if thread.is_alive():
            raise DeadlineExceeded("--replay: a push did not come to its turn; see the other ranks' logs")
        job.wait(FOR_EVER)  # raises its error
        return versions[0]

    return PendingPush(landed)


def reads_up_to(logs: Sequence[OrderLog]) -> Versions:
    """For each chunk (row), in column x + 1, the number of reads of versions up to x; int64 (num_chunks, V + 2).

    Raises InputError if the logs are not those of one complete run, in which each of the updates 1 ... V of a chunk
    is in one of the logs.
    """
    updates = [one for log in logs for one, is_update in zip(log.versions, log.is_update, strict=True) if is_update]
    reads = [one for log in logs for one, is_update in zip(log.versions, log.is_update, strict=True) if not is_update]
    last, chunks = len(updates), np.arange(logs[0].head.num_chunks)
    seen = np.zeros((len(chunks), last + 2), np.int64)
    for versions in updates:
        if (versions < 1).any() or (versions > last).any() or seen[chunks, versions].any():
            raise InputError("--replay: the ranks' records are not of one run that ended; record it again")
        seen[chunks, versions] = 1
    counts = np.zeros((len(chunks), last + 2), np.int64)
    for versions in reads:
        if (versions < 0).any() or (versions > last).any():
            raise InputError("--replay: the ranks' records are not of one run that ended; record it again")
        counts[chunks, versions + 1] += 1
    return np.cumsum(counts, axis=1)


class Order:
    """The order of a worker's reads and updates at its center: here they take place as they come."""

    def seen(self, center: SeatCenter) -> Center:
        """The center for the worker to use; called once, on every rank."""
        return center

    def next_rate_step(self, live: int | None) -> int | None:
        """The step whose rate the next update takes; `live` is the run's step, None if the run is over."""
        return live

    def step(self, rate_step: int) -> None:
        """Note that a step begins, with the rate of `rate_step`."""

    def stop(self) -> None:
        """Note that a signal stops this worker before its next step."""

    def end(self) -> None:
        """Note that the worker's last update is in the center."""


class RecordedOrder(Order):
    """Reads and updates take place as they come, and go into a record in the run folder; `stack` closes the file."""

    _log: OrderWriter  # from `seen` on

    def __init__(self, context: RankContext, stack: contextlib.ExitStack) -> None:
        self._folder = RunFolder(context.config.out)
        self._group = context.transport.group
        self._stack = stack

    def seen(self, center: SeatCenter) -> Center:
        assert isinstance(center, ChunkCenter), "a record is of a center that a launcher keeps"
        rank = self._group.rank
        head = LogHead(rank, self._group.world_size, center.num_elements, center.chunk_elements)
        self._log = self._stack.enter_context(OrderWriter(self._folder.order(rank), head))
        return RecordingCenter(center, self._log)

    def step(self, rate_step: int) -> None:
        self._log.step(rate_step)

    def end(self) -> None:
        self._log.end()
        self._log.close()


class ReplayedOrder(Order):
    """Reads and updates follow the order of the run that --replay names."""

    def __init__(self, context: RankContext) -> None:
        assert context.config.replay is not None
        self._context = context
        folder, group = RunFolder(context.config.replay), context.transport.group
        self._logs = [read_order(folder.order(rank)) for rank in range(group.world_size)]
        self._rate_steps = list(reversed(self._logs[group.rank].rate_steps))

    def seen(self, center: SeatCenter) -> Center:
        assert isinstance(center, ChunkCenter), "a record is of a center that a launcher keeps"
        transport = self._context.transport
        for rank, log in enumerate(self._logs):
            head = LogHead(rank, transport.group.world_size, center.num_elements, center.chunk_elements)
            if log.head != head:
                raise InputError(
                    f"--replay {self._context.config.replay}: recorded as {log.head}, this run is {head}; "
                    "give the recorded run's net and --workers"
                )
        window = transport.open_window("turns", 8 * (center.num_chunks + 1), 0)
        deadline = partial(Deadline.after, self._context.config.timeout_s)
        self._turns = Turns(self._logs, transport.group.rank, window)
        return ReplayedCenter(center, self._turns, deadline)

    def next_rate_step(self, _live: int | None) -> int | None:
        return self._rate_steps.pop() if self._rate_steps else None

    def stop(self) -> None:
        self._turns.stop()


def order_of(context: RankContext, stack: contextlib.ExitStack) -> Order:
    """The order for this configuration. Raises InputError if a record cannot be used."""
    if context.config.replay is not None:
        return ReplayedOrder(context)
    return RecordedOrder(context, stack) if context.config.record else Order()
