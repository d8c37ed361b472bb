"""Hosts that read copies of their own must have the same data, or some samples would count twice and others never."""

import numpy as np

from samovar.collectives.engine import digest_record
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.core.group import rank_names
from samovar.data.reader import BatchReader
from samovar.training.context import RankContext
from samovar.training.evaluated import gather
from samovar.transports.base import Array

_POLL_S = 0.02


def require_same_data(context: RankContext, reader: BatchReader) -> None:
    """Raise InputError if hosts have other records; all ranks call this at the same place.

    It compares their number, and what the first, the middle and the last sample become, or of which database hosts
    have shares. Ranks in step do so together. Others only wait for rank 0's. Cost: three samples.
    """
    hosts = context.config.hosts
    if hosts is None:
        return
    row = [float(len(reader)), *digest_record(reader.fingerprint())]
    if context.config.is_async:
        found = _with_first(context, np.array(row))
    else:
        found = dict(enumerate(gather(context.transport, row, context.config.timeout_s)))
    for rank, own in found.items():
        name = rank_names(hosts.hosts)[rank]
        if own[0] != found[0][0]:
            raise InputError(
                f"{reader.described}: {name} has {int(own[0]):,} records, and host 0 {int(found[0][0]):,}; copy the "
                "data of host 0 there"
            )
        if (own != found[0]).any():
            advice = "copy the data of host 0 there, or give each host a share of one database"
            raise InputError(f"{reader.described}: {name} has other records than host 0; {advice}")


def _with_first(context: RankContext, own: Array) -> dict[int, Array]:
    """Rank 0's row and this rank's, which it shows; none if rank 0 is gone."""
    rank, first = context.lasting.group.rank, np.zeros_like(own)
    window = context.lasting.open_window("data", own.nbytes, 0)
    window.put(rank, 0, own)

    def is_there() -> bool:
        window.get(0, 0, first)
        return bool(first.any()) or context.is_gone(0)

    if not polled(is_there, Deadline.after(context.config.timeout_s), _POLL_S):
        raise DeadlineExceeded(f"rank {rank}: rank 0 did not open its data; see its log, or raise --timeout")
    return {0: first, rank: own} if first.any() else {}
