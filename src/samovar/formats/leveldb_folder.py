"""LevelDB folders, for a copy of their records: read by RocksDB, which also reads LevelDB's files.

rocksdict (RocksDB with packages for every Python that Samovar runs on) is an optional extra; LevelDB's own bindings
have none for Pythons after 3.12. RocksDB writes a log and settings into the folder that it opens. So it opens a folder
of links, and nothing is written into the database.
"""

import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from samovar.core.errors import InputError

_MOST_OPEN_FILES: Final = 64
_TABLES: Final = (".ldb", ".sst")


def leveldb_records(folder: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values in the order of keys. Cost: one read of the database; 64 descriptors at most.
    Raises: InputError if it is not a LevelDB, is damaged, has its own key order, or rocksdict is not installed."""
    try:
        paths = list(folder.iterdir()) if (folder / "CURRENT").is_file() else []
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}. Give a LevelDB that you may read.") from error
    if not paths:
        raise InputError(
            f"{folder}: is not a LevelDB (it has no file CURRENT). Give the folder that Caffe's `source` names."
        )
    rocksdict = _rocksdict()
    with tempfile.TemporaryDirectory(prefix="samovar-leveldb-") as links:
        for path in paths:
            (Path(links) / path.name).symlink_to(path.resolve())
        try:
            yield from _records(rocksdict, links)
        except Exception as error:  # rocksdict has no class of its own
            what = str(error).replace(links, str(folder))
            raise InputError(f"{folder}: cannot be read as a LevelDB: {what}. Copy or convert it again.") from error


def _records(rocksdict: Any, folder: str) -> Iterator[tuple[bytes, bytes]]:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(False)
    options.set_max_open_files(_MOST_OPEN_FILES)
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.absolute_consistency())  # a log that was cut off is an error
    database = rocksdict.Rdict(folder, options=options, access_type=rocksdict.AccessType.read_only())
    try:
        _require_all_tables(Path(folder), {Path(file["name"]).stem for file in database.live_files()})
        records = database.iter()
        records.seek_to_first()
        while records.valid():
            yield records.key(), records.value()
            records.next()
        records.status()  # raises if a damaged block ended it, which looks like the last record
    finally:
        database.close()


def _require_all_tables(folder: Path, named: set[str]) -> None:
    """A list of tables (MANIFEST) that was cut off reads like an older one, but tables exist that it does not name."""
    missed = sorted(path.name for path in folder.iterdir() if path.suffix in _TABLES and path.stem not in named)
    if missed:
        raise ValueError(
            f"its MANIFEST does not name {missed[0]}, so it was not copied whole, or its writer was stopped (then "
            "LevelDB repairs it when it opens it)"
        )


def _rocksdict() -> Any:
    try:
        return importlib.import_module("rocksdict")
    except ImportError as error:
        raise InputError(
            "LevelDB needs the package rocksdict, which is not installed: pip install 'samovar[leveldb]'"
        ) from error
