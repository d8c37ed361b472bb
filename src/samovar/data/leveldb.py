"""A LevelDB's records as an LMDB: for the databases of Caffe's first years."""

from collections.abc import Iterator
from pathlib import Path

from samovar.core.errors import InputError
from samovar.data.image_database import WrittenDatabase
from samovar.formats.leveldb_folder import leveldb_records
from samovar.formats.lmdb_file import write_lmdb


def copy_leveldb(source: Path, out: Path) -> WrittenDatabase:
    """The same keys and values, in the same order; both databases' records are Caffe's Datum messages.

    Raises: InputError for what cannot be read or written, and for a database without records.
    """
    counted = _Counted(source)
    written = write_lmdb(out, counted)
    return WrittenDatabase(out, counted.num_records, not written)


class _Counted:
    def __init__(self, source: Path) -> None:
        self.num_records = 0
        self._source = source

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for record in leveldb_records(self._source):
            self.num_records += 1
            yield record
        if self.num_records == 0:
            raise InputError(f"{self._source}: a LevelDB without records. Check whether it was copied whole.")
