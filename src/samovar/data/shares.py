"""Shares of a database, one for each host, and the ranks that hold a database in their memory.

Records go to shares, and those of a share to its ranks, in turn: a run of some records to the first, the next run to
the second.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from samovar.core.errors import InputError
from samovar.core.files import read_file
from samovar.formats.lmdb_file import Int64s

RUN_RECORDS = 64
SHARE_FILE = "share.json"
_MAX_FILE_BYTES, _MOST_SHARES, _MOST_RECORDS = 4096, 1 << 16, 1 << 40


@dataclass(frozen=True, slots=True)
class Share:
    """Of a database of `num_records`, the runs of `run_records` whose number is `number` modulo `num_shares`.
    `sha256` is the hash of all records of the database."""

    number: int
    num_shares: int
    num_records: int
    run_records: int
    sha256: str

    @property
    def num_own_records(self) -> int:
        runs, rest = divmod(self.num_records, self.run_records)
        own_runs = max(0, -(-(runs - self.number) // self.num_shares))
        return own_runs * self.run_records + (rest if runs % self.num_shares == self.number else 0)

    def records(self) -> Int64s:
        """The numbers of its records in the database, rising."""
        runs = np.arange(self.number, -(-self.num_records // self.run_records), self.num_shares)
        indices: Int64s = (runs[:, None] * self.run_records + np.arange(self.run_records)).ravel()
        return indices[indices < self.num_records]

    def places(self, indices: Int64s) -> Int64s:
        """The places of records, given by their numbers in the database, in this share; InputError for another's."""
        runs, offsets = np.divmod(indices, self.run_records)
        turns, shares = np.divmod(runs, self.num_shares)
        if (shares != self.number).any():
            raise InputError(f"only {self} of the records is here; give the whole database, or --hold-data")
        places: Int64s = turns * self.run_records + offsets
        return places

    def to_json(self) -> bytes:
        """The content of SHARE_FILE."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"

    def __str__(self) -> str:
        return f"share {self.number} of {self.num_shares}"


def read_share(folder: Path, num_present: int) -> Share | None:
    """The share that SHARE_FILE describes, of a database with `num_present` records; None for a whole database.
    Raises: InputError for a file that is damaged or belongs to another database."""
    path = folder / SHARE_FILE
    if not path.exists():
        return None
    advice = "Write the shares again: samovar data split"
    try:
        share = Share(**json.loads(read_file(path, "share of a database", _MAX_FILE_BYTES)))
        numbers = (share.number, share.num_shares, share.num_records, share.run_records)
        is_possible = all(type(each) is int and 0 <= each < _MOST_RECORDS for each in numbers)
        is_possible = is_possible and share.number < share.num_shares < _MOST_SHARES
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: is damaged: {error}. {advice}") from error
    if not is_possible or share.run_records < 1 or share.num_own_records != num_present:
        raise InputError(f"{path}: does not fit the {num_present:,} records of this folder. {advice}")
    return share


@dataclass(frozen=True, slots=True)
class Holders:
    """The ranks that hold a database in memory. Those of `shares[s]` hold the runs of share s, in turn."""

    shares: tuple[tuple[int, ...], ...]
    run_records: int

    def places(self, indices: Int64s) -> tuple[Int64s, Int64s]:
        """The rank that holds each record, and its place among that rank's records."""
        runs, offsets = np.divmod(indices, self.run_records)
        turns, shares = np.divmod(runs, len(self.shares))
        sizes = np.array([len(ranks) for ranks in self.shares], np.int64)
        rounds, members = np.divmod(turns, sizes[shares])
        ranks = np.concatenate([np.array(ranks, np.int64) for ranks in self.shares])
        return ranks[(np.cumsum(sizes) - sizes)[shares] + members], rounds * self.run_records + offsets
