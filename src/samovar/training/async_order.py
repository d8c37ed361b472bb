"""--record and --replay: a rank records or follows the order in which the center takes updates."""

import contextlib
from functools import partial

from samovar.box.base import Center, SeatCenter
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.report.run_folder import RunFolder, order_is_written
from samovar.training.context import RankContext
from samovar.training.order_log import LogHead, OrderWriter, read_order
from samovar.training.ordered_centers import ChunkCenter, RecordingCenter, ReplayedCenter, Turns


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

    def __init__(self, context: RankContext, stack: contextlib.ExitStack) -> None:
        self._folder = RunFolder(context.config.out)
        self._group = context.transport.group
        self._stack = stack
        self._log: OrderWriter | None = None

    def seen(self, center: SeatCenter) -> Center:
        assert isinstance(center, ChunkCenter), "a record is of a center that a launcher keeps"
        rank = self._group.rank
        head = LogHead(rank, self._group.world_size, center.num_elements, center.chunk_elements)
        with order_is_written(path := self._folder.order(rank)):
            self._log = self._stack.enter_context(OrderWriter(path, head))
        return RecordingCenter(center, self._log)

    def step(self, rate_step: int) -> None:
        assert self._log is not None, "seen comes first"
        self._log.step(rate_step)

    def end(self) -> None:
        assert self._log is not None, "seen comes first"
        with order_is_written(self._folder.order(self._group.rank)):
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
