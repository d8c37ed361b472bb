"""`--hold-data`: the training set goes into the memory of all workers before the first step."""

import time
from functools import partial

from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.data.cache import Holding
from samovar.data.reader import BatchReader
from samovar.report.host import read_host
from samovar.report.records import Notice
from samovar.report.wording import counted
from samovar.training.context import RankContext

_MOST_OF_MEMORY = 0.9
_TELL_EVERY_S = 10.0
_MB = 1e6


def hold_training_set(context: RankContext, reader: BatchReader) -> None:
    """Say what it takes, load it, say how long that took; InputError where the memory is not there."""
    total = reader.bytes_to_hold
    if total == 0:
        raise InputError(f"--hold-data: {reader.described}: there is nothing to hold; leave it out")
    require_memory(total)
    started_s = time.monotonic()
    workers = context.transport.group.world_size
    _tell(
        context,
        f"--hold-data: {len(reader):,} records, decoded about {total / _MB:,.1f} MB, "
        f"{total / workers / _MB:,.1f} MB on each of {counted(workers, 'worker')}",
    )
    deadline = partial(Deadline.after, context.config.timeout_s)
    reader.hold(Holding(context.transport, deadline, _Loading(context)))
    _tell(context, f"--hold-data: all records are in memory after {time.monotonic() - started_s:.1f} s")


def require_memory(total: int) -> None:
    """InputError unless `total` bytes leave a tenth of what is free."""
    host = read_host()
    there = min(host.memory_available_bytes, host.memory_limit_bytes or host.memory_available_bytes)
    if total > _MOST_OF_MEMORY * there:
        raise InputError(
            f"--hold-data: the decoded records take about {total / _MB:,.0f} MB, and {there / _MB:,.0f} MB of memory "
            "are free, of which a tenth must stay; leave it out, or train where there is more"
        )


class _Loading:
    """Tells how far loading is, now and then."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._told_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            _tell(self._context, f"--hold-data: {done / total:.0%} loaded")


def _tell(context: RankContext, text: str) -> None:
    if context.is_first:
        context.writer.write(Notice(level="info", text=text))
