"""Hosts that read copies of their own must have the same data, or some samples would count twice and others never."""

from samovar.collectives.engine import digest_record
from samovar.core.errors import InputError
from samovar.core.group import rank_names
from samovar.data.reader import BatchReader
from samovar.training.context import RankContext
from samovar.training.evaluated import gather


def require_same_data(context: RankContext, reader: BatchReader) -> None:
    """Raise InputError, on all ranks, if hosts have other records; all ranks call this together.

    It compares their number, and what the first, the middle and the last sample become, or of which database hosts
    have shares. Cost: three samples.
    """
    hosts, count = context.config.hosts, len(reader)
    if hosts is None:
        return
    found = gather(context.transport, [float(count), *digest_record(reader.fingerprint())], context.config.timeout_s)
    for name, own in zip(rank_names(hosts.hosts), found, strict=True):
        if own[0] != found[0][0]:
            raise InputError(
                f"{reader.described}: {name} has {int(own[0]):,} records, and host 0 {int(found[0][0]):,}; copy the "
                "data of host 0 there"
            )
        if (own != found[0]).any():
            advice = "copy the data of host 0 there, or give each host a share of one database"
            raise InputError(f"{reader.described}: {name} has other records than host 0; {advice}")
