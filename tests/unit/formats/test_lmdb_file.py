"""LMDB folders: equal to what lmdb itself reads, and an InputError for everything else."""

import os
import signal
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samovar.core.errors import InputError
from samovar.formats import lmdb_file
from samovar.formats.lmdb_file import LmdbFile, write_lmdb

Record = tuple[bytes, bytes]
PAGE = 4096
RECORDS = [(b"%08d" % i, bytes([i % 256]) * (i * 37 % 900)) for i in range(400)]
RECORDS[7] = (RECORDS[7][0], b"\x55" * 20_000)  # on overflow pages


def read_all(folder: Path) -> list[Record]:
    with LmdbFile(folder) as file:
        values = file.values(np.arange(len(file)))
        return [(file.key(index), value) for index, value in enumerate(values)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "some_lmdb"
    assert write_lmdb(folder, RECORDS)
    return folder


def overwrite(folder: Path, offset: int, content: bytes) -> None:
    with (folder / "data.mdb").open("r+b") as file:
        file.seek(offset)
        file.write(content)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def num_descriptors() -> int:
    return len(names_in(Path("/proc/self/fd")))


def newest_meta_offset(folder: Path) -> int:
    content = (folder / "data.mdb").read_bytes()
    transactions = [struct.unpack_from("<Q", content, page * PAGE + 16 + 128)[0] for page in range(2)]
    return PAGE * int(transactions[1] > transactions[0])


# Reading


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.dictionaries(
        st.binary(min_size=1, max_size=60),
        st.binary(max_size=300) | st.integers(0, 30_000).map(lambda size: b"\xa5" * size),
        max_size=120,
    ),
    num_deleted=st.integers(0, 20),
    num_commits=st.integers(1, 4),
)
def test_reads_what_lmdb_wrote(
    tmp_path_factory: pytest.TempPathFactory, records: dict[bytes, bytes], num_deleted: int, num_commits: int
) -> None:
    folder = tmp_path_factory.mktemp("lmdb")
    with lmdb.open(str(folder), map_size=1 << 26, lock=False, sync=False) as environment:
        keys = list(records)
        for part in range(num_commits):
            with environment.begin(write=True) as transaction:
                for key in keys[part::num_commits]:
                    transaction.put(key, records[key])
        with environment.begin(write=True) as transaction:
            for key in keys[:num_deleted]:
                transaction.delete(key)
        environment.sync(True)
    assert read_all(folder) == sorted((key, records[key]) for key in keys[num_deleted:])


def test_values_come_in_the_order_asked_for(database: Path) -> None:
    indices = np.array([399, 0, 7, 7, 123, 8])
    with LmdbFile(database) as file:
        assert len(file) == 400
        assert file.values(indices) == [RECORDS[index][1] for index in indices]
        assert file.values(np.empty(0, np.int64)) == []


def test_records_far_apart_are_read_one_by_one(tmp_path: Path) -> None:
    records = [(b"%02d" % i, os.urandom(400_000)) for i in range(12)]
    write_lmdb(tmp_path / "large", records)
    with LmdbFile(tmp_path / "large") as file:
        assert file.values(np.array([11, 0])) == [records[11][1], records[0][1]]


def test_large_records_are_read_few_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_file, "_BYTES_AT_ONCE", 1 << 20)
    written = [(b"%02d" % i, bytes([i]) * (256 << 10)) for i in range(40)]
    write_lmdb(tmp_path / "large", written)
    with LmdbFile(tmp_path / "large") as file:
        tracemalloc.start()
        try:
            records = zip(written, file.records(np.arange(len(file))), strict=True)
            assert all(ours == theirs for ours, theirs in records)
            assert tracemalloc.get_traced_memory()[1] < 5 << 20, "a part is 1 MiB, in memory twice while it is cut"
        finally:
            tracemalloc.stop()


def test_an_empty_database_has_no_records(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "empty", [])
    assert read_all(tmp_path / "empty") == []


def test_reading_writes_nothing_and_gives_the_descriptor_back(database: Path) -> None:
    before = num_descriptors()
    assert read_all(database) == RECORDS
    assert num_descriptors() == before
    assert names_in(database) == ["data.mdb"]


def test_close_can_be_called_again(database: Path) -> None:
    file = LmdbFile(database)
    file.close()
    file.close()


# Bad input


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such folder"):
        LmdbFile(tmp_path / "nowhere")


def test_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no data\.mdb"):
        LmdbFile(tmp_path)


def test_file_instead_of_folder(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"x")
    with pytest.raises(InputError, match=r"plain: is a file"):
        LmdbFile(tmp_path / "plain")


def test_leveldb_is_named(tmp_path: Path) -> None:
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(InputError, match="is a LevelDB"):
        LmdbFile(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_data_that_is_no_regular_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "data.mdb")
    with pytest.raises(InputError, match=r"data\.mdb is not a regular file"):
        LmdbFile(tmp_path)


def test_cut_off_at_any_length(database: Path) -> None:
    path = database / "data.mdb"
    full = path.stat().st_size
    near_pages = {page * PAGE + off for page in range(full // PAGE) for off in (-1, 0, 1, 100)}
    lengths = sorted(({*range(0, 300, 7), full - 1} | near_pages) & set(range(full)), reverse=True)
    assert len(lengths) > 200
    for length in lengths:
        os.truncate(path, length)
        with pytest.raises(InputError, match=f"some_lmdb: data.mdb has {length} bytes and needs"):
            LmdbFile(database)


def test_cut_off_while_open(database: Path) -> None:
    with LmdbFile(database) as file:
        os.truncate(database / "data.mdb", 3 * PAGE)
        with pytest.raises(InputError, match="cut off"):
            file.values(np.arange(len(file)))


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize(("offset", "content"), [(16, b"garbage!"), (20, b"\x02\0\0\0"), (40, b"\x07\0\0\0")])
def test_damaged_meta_page(database: Path, page: int, offset: int, content: bytes) -> None:
    overwrite(database, page * PAGE + offset, content)
    with pytest.raises(InputError, match="some_lmdb"):
        LmdbFile(database)


def test_garbage_file(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(np.random.default_rng(0).bytes(50_000))
    with pytest.raises(InputError, match="is not an LMDB of data version 1"):
        LmdbFile(tmp_path)


def test_impossible_numbers_in_the_meta_page(database: Path) -> None:
    main = newest_meta_offset(database) + 16 + 24 + 48
    for offset, content in [
        (6, struct.pack("<H", 0)),  # depth
        (6, struct.pack("<H", 65_535)),
        (32, struct.pack("<Q", 2**63)),  # records
        (40, struct.pack("<Q", 0)),  # root
        (40, struct.pack("<Q", 2**64 - 1)),
        (40, struct.pack("<Q", 10**6)),
        (48, struct.pack("<Q", 1)),  # last page
        (4, struct.pack("<H", 0x04)),  # several values per key
    ]:
        before = (database / "data.mdb").read_bytes()
        overwrite(database, main + offset, content)
        with pytest.raises(InputError):
            LmdbFile(database)
        (database / "data.mdb").write_bytes(before)


def test_a_tree_that_points_at_itself(database: Path) -> None:
    root = struct.unpack_from(
        "<Q", (database / "data.mdb").read_bytes(), newest_meta_offset(database) + 16 + 24 + 48 + 40
    )[0]
    first_node = struct.unpack_from("<H", (database / "data.mdb").read_bytes(), root * PAGE + 16)[0]
    overwrite(database, root * PAGE + first_node, struct.pack("<I", root))
    with pytest.raises(InputError, match="damaged"):
        LmdbFile(database)


def test_any_flipped_bytes_give_records_or_an_input_error(database: Path) -> None:
    path = database / "data.mdb"
    original = path.read_bytes()
    generator = np.random.default_rng(1)
    refused = 0
    for _ in range(600):
        content = bytearray(original)
        page = int(generator.integers(0, len(original) // PAGE))
        for place in generator.integers(0, 200, 3).tolist():  # headers, node tables, meta fields
            content[page * PAGE + place] = int(generator.integers(0, 256))
        path.write_bytes(content)
        try:
            assert len(read_all(database)) in {0, len(RECORDS)}  # 0: the meta page before the write
        except InputError:
            refused += 1
    assert refused > 100


def test_named_databases_are_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=1, lock=False) as environment:
        named = environment.open_db(b"inner")
        with environment.begin(write=True) as transaction:
            transaction.put(b"key", b"value", db=named)
    with pytest.raises(InputError, match="named databases"):
        LmdbFile(tmp_path)


# Writing


def test_written_records_are_read_by_lmdb(database: Path) -> None:
    with (
        lmdb.open(str(database), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        assert list(transaction.cursor()) == RECORDS


def test_the_same_records_are_left_as_they_are(database: Path) -> None:
    before = (database / "data.mdb").stat()
    assert not write_lmdb(database, RECORDS)
    after = (database / "data.mdb").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize(
    "others", [RECORDS[:-1], [*RECORDS, (b"99999999", b"")], [*RECORDS[:-1], (RECORDS[-1][0], b"changed")]]
)
def test_other_records_are_not_replaced(database: Path, others: list[Record]) -> None:
    with pytest.raises(InputError, match="exists with other records"):
        write_lmdb(database, others)
    assert read_all(database) == RECORDS


def test_a_folder_that_is_no_database_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(InputError, match="exists and is not a readable LMDB"):
        write_lmdb(tmp_path / "mine", RECORDS)
    assert names_in(tmp_path / "mine") == ["notes.txt"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[Record]:
        yield from RECORDS
        raise RuntimeError("no more images")

    with pytest.raises(RuntimeError, match="no more images"):
        write_lmdb(tmp_path / "half", failing())
    assert names_in(tmp_path) == []


def test_what_a_killed_writer_left_goes_and_that_of_another_stays(tmp_path: Path) -> None:
    """The killed one is a child of this process, killed between two records."""
    if not (child := os.fork()):
        try:
            write_lmdb(tmp_path / "db", (os.kill(os.getpid(), signal.SIGKILL) or record for record in RECORDS))
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    assert (left / "data.mdb").exists()

    def slowly() -> Iterator[Record]:
        assert not left.exists()
        (own,) = tmp_path.iterdir()
        yield from RECORDS[:3]
        assert write_lmdb(tmp_path / "db", RECORDS)
        assert own.exists()
        yield from RECORDS[3:]

    assert not write_lmdb(tmp_path / "db", slowly())
    assert names_in(tmp_path) == ["db"]
    assert names_in(tmp_path / "db") == ["data.mdb"]


@pytest.mark.parametrize("others", [RECORDS, RECORDS[:-1]])
def test_writers_with_one_process_number_do_not_take_each_others_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[Record]
) -> None:
    """Two containers on one file system: the second begins after the first, and ends before it."""
    monkeypatch.setattr(os, "getpid", lambda: 1)

    def slowly() -> Iterator[Record]:
        yield from RECORDS[:3]
        assert write_lmdb(tmp_path / "db", others)
        yield from RECORDS[3:]

    if others == RECORDS:
        assert not write_lmdb(tmp_path / "db", slowly())
    else:
        with pytest.raises(InputError, match="exists with other records"):
            write_lmdb(tmp_path / "db", slowly())
    assert read_all(tmp_path / "db") == others
    assert names_in(tmp_path) == ["db"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be written"):
        write_lmdb(tmp_path / "plain" / "below", RECORDS)


def test_a_database_may_outgrow_its_first_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_file, "_FIRST_MAP_BYTES", 64 << 10)
    monkeypatch.setattr(lmdb_file, "_RECORDS_PER_COMMIT", 50)
    assert write_lmdb(tmp_path / "grown", RECORDS)
    assert read_all(tmp_path / "grown") == RECORDS
    assert (tmp_path / "grown" / "data.mdb").stat().st_size > 64 << 10


def test_a_database_that_is_changed_while_open_is_refused(database: Path) -> None:
    """Its pages are used again, so its records would be others."""
    with LmdbFile(database) as file:
        file.values(np.arange(3))
        with lmdb.open(str(database), map_size=64 << 20) as environment, environment.begin(write=True) as transaction:
            transaction.put(b"99999999", b"more")
        with pytest.raises(InputError, match="was changed while it was read; let no program write into it"):
            file.values(np.arange(3))


def test_a_folder_whose_name_is_not_unicode(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"d\xe9")
    write_lmdb(folder, [(b"0", b"value")])
    with LmdbFile(folder) as file:
        assert file.values(np.arange(1)) == [b"value"]
