"""Small records that every rank shows every other, one step behind.

A rank posts its record of step s and collects all records of step s-1, which arrived while it computed.
So ranks agree (on the mean loss, on stopping) without waiting for each other.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from samovar.core.clock import Deadline
from samovar.transports.base import Notification, Region, Transport


class RecordExchange:
    """Records of `num_fields` float64 from every rank to every rank, double-buffered.

    With `ranks` among these alone, of which this is one: all ranks of the transport open it, with as many each.

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


def differing_ranks(records: npt.NDArray[np.float64]) -> list[int]:
    """The ranks whose record is not that of rank 0."""
    return [rank for rank in range(len(records)) if (records[rank] != records[0]).any()]
