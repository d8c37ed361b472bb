"""What ranks show each other once, at the end: numbers, and that their weights are the same."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from samovar.collectives.records import RecordExchange, differing_ranks, digest_record
from samovar.core.clock import Deadline
from samovar.core.errors import ReplicasDiffer
from samovar.transports.base import Transport


def gather(transport: Transport, numbers: Sequence[float], timeout_s: float) -> npt.NDArray[np.float64]:
    """Every rank's numbers on every rank, shape (P, len(numbers)); waits for all ranks."""
    exchange = RecordExchange(transport, len(numbers))
    exchange.post(numbers)
    return exchange.collect(Deadline.after(timeout_s))


def require_equal(transport: Transport, weights_sha256: str, timeout_s: float, strategy: str = "sync") -> None:
    """Raise ReplicasDiffer, naming the ranks, unless every rank has this hash of the weights it evaluates."""
    hashes = gather(transport, digest_record(bytes.fromhex(weights_sha256)), timeout_s)
    if differing := differing_ranks(hashes):
        raise ReplicasDiffer(
            f"the weights that ranks {differing} evaluate differ from those of rank 0; this must not happen with "
            f"strategy {strategy!r}: please report it with the run folder"
        )
