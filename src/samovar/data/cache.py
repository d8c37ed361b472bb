"""The data cache, a data set in the memory of all ranks: each decodes its part once, and any rank gets any record.

Ranks hold the records in turn, in runs of RUN_RECORDS: rank 0 the first run, rank 1 the next. If each host has only a
share of the database, its ranks hold that. They load the records in rounds, each with its own window, so that no rank
needs more memory than the cache and one round.

References: the in-memory data layer of Kuehn, Keuper, Pfreundt, CaffeGPI, 2017 (arXiv 1706.00095), which keeps whole
batches of a fixed order; here any sample of any order is one read.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from samovar.collectives.engine import RecordExchange
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.data.shares import RUN_RECORDS, Holders, Share
from samovar.transports.base import Transport, Window

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

ROUND_BYTES = 64 << 20
_OFFSET, _SIZE, _NUM_OWN_COLUMNS = 0, 1, 2


class CacheSource(Protocol):
    """Records to be cached; record i is some bytes, and `num_columns` numbers that say what they are."""

    num_columns: int
    record_bytes: int  # bytes of a record: of each, or about the mean where they differ
    share: Share | None  # the records that this rank can load; None: all

    def __len__(self) -> int: ...

    def load(self, indices: Int64s) -> tuple[list[Bytes], Int64s]:
        """Bytes (size,) of each of the n records, and numbers (n, num_columns); InputError for a damaged record."""


@dataclass(frozen=True, slots=True)
class CacheSetup:
    """The means to fill a cache. It calls `told(rounds done, rounds in all)` as records arrive. Ranks `inside` share
    this host; None: all do."""

    transport: Transport
    deadline: Callable[[], Deadline]  # for each wait: a round of the slowest rank lies between two
    told: Callable[[int, int], None] = lambda _done, _total: None
    inside: Sequence[int] | None = None


class RecordCache:
    """Records 0 .. len - 1 in windows of all ranks, which must make this together, of the same records.

    Cost: each rank loads its share once. An index takes 8 * (2 + num_columns) bytes a record on every rank.
    `cached_bytes` counts this rank's part, `fetched_bytes` the bytes it has read from others since, and `remote_bytes`
    those of them that came from other hosts. One thread may call `read` while others use other windows.
    Raises: InputError for a damaged record, for a share that no rank has, or where memory is short; DeadlineExceeded.
    """

    def __init__(self, records: CacheSource, setup: CacheSetup) -> None:
        self._group = setup.transport.group
        self._num_records = len(records)
        self._windows: list[Window] = []
        self.cached_bytes = 0
        self.fetched_bytes = self.remote_bytes = 0
        self._inside = range(self._group.world_size) if setup.inside is None else setup.inside
        exchange = RecordExchange(setup.transport, 1)
        own_share = 0 if records.share is None else records.share.number
        self._holders = _holders_of(records.share, _of_all(setup, exchange, own_share))
        largest = int(_of_all(setup, exchange, records.record_bytes).max())
        self._round_records = max(1, ROUND_BYTES // max(1, largest))
        table = self._load(records, setup, exchange)
        self._table = self._tables_of_all(table, setup, exchange)

    def __len__(self) -> int:
        return self._num_records

    def columns(self, indices: Int64s) -> Int64s:
        """The numbers of records, (n, num_columns)."""
        columns: Int64s = self._table[indices, _NUM_OWN_COLUMNS:]
        return columns

    def read(self, indices: Int64s) -> tuple[Bytes, Int64s]:
        """The records' bytes, contiguous, and the end of each, (n,).
        Cost: one `get` for each contiguous run of records."""
        offsets, sizes = self._table[indices, _OFFSET], self._table[indices, _SIZE]
        ends = np.cumsum(sizes)
        content = np.empty(int(sizes.sum()), np.uint8)
        owners, places = self._holders.places(indices)
        rounds = places // self._round_records
        for first, stop in _runs(owners, rounds, offsets, sizes):
            part = content[ends[first] - sizes[first] : ends[stop - 1]]
            self._get(int(owners[first]), int(rounds[first]), int(offsets[first]), part)
        return content, ends

    def _get(self, owner: int, number: int, offset: int, part: Bytes) -> None:
        if len(part) == 0:
            return
        self._windows[number].get(owner, offset, part)
        if owner != self._group.rank:
            self.fetched_bytes += len(part)
            self.remote_bytes += 0 if owner in self._inside else len(part)

    def _load(self, records: CacheSource, setup: CacheSetup, exchange: RecordExchange) -> Int64s:
        """Put this rank's records into windows; return a row for each."""
        owners, _ = self._holders.places(np.arange(self._num_records))
        own, most = np.flatnonzero(owners == self._group.rank), int(np.bincount(owners, minlength=1).max())
        num_rounds = -(-most // self._round_records)
        table = np.empty((most, _NUM_OWN_COLUMNS + records.num_columns), np.int64)
        for number in range(num_rounds):
            part = slice(number * self._round_records, (number + 1) * self._round_records)
            contents = self._load_round(records, own[part], table[part])
            largest = int(_of_all(setup, exchange, sum(map(len, contents))).max())
            window = setup.transport.open_window(f"data {number}", largest, 0)
            for content, offset in zip(contents, table[part, _OFFSET], strict=False):
                window.put(self._group.rank, int(offset), content)
            self._windows.append(window)
            setup.told(number + 1, num_rounds)
        return table

    def _load_round(self, records: CacheSource, indices: Int64s, table: Int64s) -> list[Bytes]:
        contents: list[Bytes] = []
        for start in range(0, len(indices), RUN_RECORDS):
            loaded, columns = records.load(indices[start : start + RUN_RECORDS])
            table[start : start + len(loaded), _NUM_OWN_COLUMNS:] = columns
            contents += loaded
        sizes = np.array([len(content) for content in contents], np.int64)
        table[: len(sizes), _SIZE] = sizes
        table[: len(sizes), _OFFSET] = np.cumsum(sizes) - sizes
        self.cached_bytes += int(sizes.sum())
        return contents

    def _tables_of_all(self, table: Int64s, setup: CacheSetup, exchange: RecordExchange) -> Int64s:
        """Every record's row. When all rows are here, all records are too."""
        window = setup.transport.open_window("data records", table.nbytes, 0)
        if table.size:
            window.put(self._group.rank, 0, table)
        _of_all(setup, exchange, 0)
        owners, _ = self._holders.places(np.arange(self._num_records))
        rows = np.empty((self._num_records, table.shape[1]), np.int64)
        for owner in range(self._group.world_size):
            indices = np.flatnonzero(owners == owner)
            found = np.empty((len(indices), table.shape[1]), np.int64)
            if found.size:
                window.get(owner, 0, found)
            rows[indices] = found
        return rows


def _runs(owners: Int64s, rounds: Int64s, offsets: Int64s, sizes: Int64s) -> Iterator[tuple[int, int]]:
    """[first, stop) of records that are contiguous in the memory of one rank."""
    follows = (np.diff(owners) == 0) & (np.diff(rounds) == 0) & (offsets[1:] == offsets[:-1] + sizes[:-1])
    breaks = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(owners)]
    return ((first, stop) for first, stop in itertools.pairwise(breaks) if first < stop)


def _of_all(setup: CacheSetup, exchange: RecordExchange, number: int) -> Int64s:
    """The numbers that ranks have here, (P,)."""
    return exchange.gather([number], setup.deadline())[:, 0].astype(np.int64)


def _holders_of(share: Share | None, numbers: Int64s) -> Holders:
    """The holders of a database, from the number of each rank's share."""
    if share is None:
        return Holders((tuple(range(len(numbers))),), RUN_RECORDS)
    shares = tuple(tuple(np.flatnonzero(numbers == number).tolist()) for number in range(share.num_shares))
    if missing := [str(number) for number, ranks in enumerate(shares) if not ranks]:
        raise InputError(
            f"--hold-data: no worker has share {', '.join(missing)} of {share.num_shares}; start a host with each "
            "share, or split the database for this number of hosts"
        )
    return Holders(shares, share.run_records)
