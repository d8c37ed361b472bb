"""LMDB folders (`data.mdb`, data version 1): a reader that cannot crash, and a writer that leaves no half databases.

The reader walks the tree itself with `pread` instead of mapping the file. A mapped file that is cut off,
damaged, or cut while training runs kills the process with SIGBUS or SIGSEGV; here each of these is an
InputError. The reader takes no lock, writes nothing and holds one descriptor. So any number of ranks can read one
folder on a read-only or network file system.

All numbers in the file are little-endian. A page starts with its number (u64), 2 unused bytes, flags (u16)
and the end of its node table (u16), at byte 16 starts the table (u16 each). A node is a size (u32), flags
(u16), a key length (u16), the key, then the value or the number of its overflow page (u64). In a branch the
first 6 bytes of a node are the child's page number.
"""

import contextlib
import errno
import glob
import itertools
import os
import secrets
import shutil
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import lmdb
import numpy as np
import numpy.typing as npt

from samovar.core.closing import Closing
from samovar.core.errors import InputError
from samovar.core.files import owned, remove_abandoned, sync_folder, write_file

Int64s = npt.NDArray[np.int64]

_PAGE_HEADER_BYTES, _NODE_HEADER_BYTES = 16, 8
_META = struct.Struct("<2I2Q" + 2 * "I2H5Q" + "2Q")  # of MDB_meta, behind the page header
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH_PAGE, _LEAF_PAGE, _PAGE_KINDS = 0x01, 0x02, 0x6F
_OVERFLOW_NODE, _SUBTREE_NODE = 0x01, 0x06
_DUPLICATES_FLAG = 0x04
_MAX_DEPTH, _BEYOND_ALL_PAGES = 32, 1 << 50
_PAGES_PER_READ, _MAX_GAP_BYTES = 256, 1 << 20

_FIRST_MAP_BYTES = 64 << 20
_RECORDS_PER_COMMIT, _BYTES_PER_COMMIT, _RECORDS_AT_ONCE, _BYTES_AT_ONCE = 4096, 64 << 20, 256, 64 << 20


class LmdbFile(Closing):
    """The records of the main database in key order; several threads may read.

    Cost: opening reads every branch and leaf page once and keeps 32 bytes per record.
    Raises: InputError for a missing, cut off or damaged database, or one that is written to, at opening or reading.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor = _open_data_file(folder)
        try:
            self._walk = _Walk(folder, self._descriptor)
            self._index = self._walk.index()
            self._walk.require_unchanged()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._index.value_offsets)

    def key(self, index: int) -> bytes:
        """The key of record `index` (for messages; costs one read)."""
        offset, size = int(self._index.key_offsets[index]), int(self._index.key_sizes[index])
        return _read_exactly(self.folder, self._descriptor, offset, size)

    def values(self, indices: Int64s) -> list[bytes]:
        """The values of records `indices`, int64 (n,), each in 0 .. len - 1.
        Cost: one read if the records are close together (as in stored order), else one per record."""
        offsets, sizes = self._index.value_offsets[indices], self._index.value_sizes[indices]
        values = _read_many(self.folder, self._descriptor, offsets, sizes)
        self._walk.require_unchanged()
        return values

    def records(self, indices: Int64s) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of records `indices`, in this order. Cost: two reads for some hundred that are close."""
        bytes_so_far = np.cumsum(self._index.value_sizes[indices])
        turns = np.stack([np.arange(len(indices)) // _RECORDS_AT_ONCE, bytes_so_far // _BYTES_AT_ONCE])
        for part in np.split(indices, np.flatnonzero(np.diff(turns).any(axis=0)) + 1):
            keys = _read_many(self.folder, self._descriptor, self._index.key_offsets[part], self._index.key_sizes[part])
            yield from zip(keys, self.values(part), strict=True)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, slots=True)
class _Index:
    """The place of each record's key and value in the file, in key order."""

    key_offsets: Int64s
    key_sizes: Int64s
    value_offsets: Int64s
    value_sizes: Int64s


@dataclass(frozen=True, slots=True)
class _Meta:
    """The facts of a meta page about the main database."""

    page_size: int
    flags: int
    depth: int
    num_records: int
    root: int
    last_page: int
    transaction: int


class _Walk:
    """One pass from the root to the leaves, level by level, every number checked before it is used."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self._file_size_bytes = os.fstat(descriptor).st_size
        self._meta = _newest_meta(folder, descriptor, self._file_size_bytes)

    def require_unchanged(self) -> None:
        """Raise InputError if a program has written into the database: its records lie elsewhere then."""
        if _newest_meta(self._folder, self._descriptor, self._file_size_bytes) != self._meta:
            raise InputError(f"{self._folder}: was changed while it was read; let no program write into it")

    def index(self) -> _Index:
        meta = self._meta
        if meta.num_records == 0 and meta.depth == 0:
            return _Index(*[np.empty(0, np.int64)] * 4)
        self._check(0 < meta.depth <= _MAX_DEPTH, "the depth of its tree")
        pages = np.array([min(meta.root, _BEYOND_ALL_PAGES)], np.int64)
        for _ in range(meta.depth - 1):
            pages = np.concatenate([self._children(part) for part in self._parts(pages)])
        leaves = [self._records(part) for part in self._parts(pages)]
        index = _Index(*(np.concatenate(columns) for columns in zip(*leaves, strict=True)))
        self._check(len(index.key_offsets) == meta.num_records, "the number of its records")
        return index

    def _parts(self, pages: Int64s) -> Iterator[Int64s]:
        """The pages of one level in runs that are read together; no page is visited twice."""
        self._require_pages(pages, pages + 1)
        self._check(len(np.unique(pages)) == len(pages), "a page number that occurs twice")
        return (pages[start : start + _PAGES_PER_READ] for start in range(0, len(pages), _PAGES_PER_READ))

    def _children(self, numbers: Int64s) -> Int64s:
        nodes = self._nodes(numbers, _BRANCH_PAGE)
        children: Int64s = nodes.size | nodes.flags << 32
        return children

    def _records(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Key offsets, key sizes, value offsets and value sizes of the leaf pages' records."""
        nodes = self._nodes(numbers, _LEAF_PAGE)
        if np.any(nodes.flags & _SUBTREE_NODE):
            raise InputError(
                f"{self._folder}: holds named databases or several values per key; a database of images "
                "has one value per key. Convert it again."
            )
        page_size = self._meta.page_size
        key_starts = nodes.start + _NODE_HEADER_BYTES
        value_starts = key_starts + nodes.key_size
        outside = nodes.flags & _OVERFLOW_NODE != 0
        self._check(bool(np.all(value_starts + np.where(outside, 8, nodes.size) <= page_size)), "the size of a record")
        bases = numbers[nodes.row] * page_size
        value_offsets = bases + value_starts
        value_offsets[outside] = self._overflow_offsets(nodes, value_starts, outside)
        return bases + key_starts, nodes.key_size, value_offsets, nodes.size

    def _overflow_offsets(self, nodes: "_Nodes", value_starts: Int64s, outside: npt.NDArray[np.bool_]) -> Int64s:
        columns = value_starts[outside, None] + np.arange(8)
        pages = nodes.pages[nodes.row[outside, None], columns].view("<u8").ravel()
        first_pages: Int64s = np.minimum(pages, np.uint64(_BEYOND_ALL_PAGES)).astype(np.int64)
        num_pages = -(-(nodes.size[outside] + _PAGE_HEADER_BYTES) // self._meta.page_size)
        self._require_pages(first_pages, first_pages + num_pages)
        return first_pages * self._meta.page_size + _PAGE_HEADER_BYTES

    def _require_pages(self, starts: Int64s, stops: Int64s) -> None:
        """The pages [start, stop) must be counted by the meta page and be in the file.
        Not the whole count: pages that a transaction took and gave back may never have been written."""
        if len(starts) == 0:
            return
        self._check(int(starts.min()) >= 2 and int(stops.max()) <= self._meta.last_page + 1, "a page number")
        needed_bytes = int(stops.max()) * self._meta.page_size
        if needed_bytes > self._file_size_bytes:
            raise InputError(_cut_off(self._folder, self._file_size_bytes, needed_bytes))

    def _nodes(self, numbers: Int64s, kind: int) -> "_Nodes":
        """All nodes of pages `numbers`, which must be of the given kind."""
        page_size = self._meta.page_size
        sizes = np.full(len(numbers), page_size, np.int64)
        content = b"".join(_read_many(self._folder, self._descriptor, numbers * page_size, sizes))
        pages = np.frombuffer(content, np.uint8).reshape(-1, page_size)
        words = pages.view("<u2").astype(np.int64)
        self._check(bool(np.all(pages[:, :8].view("<u8").ravel() == numbers)), "a page's own number")
        self._check(bool(np.all(words[:, 5] & _PAGE_KINDS == kind)), "the kind of a page")
        table_ends = words[:, 6]
        self._check(bool(np.all((table_ends > 16) & (table_ends <= page_size))), "a page's node table")
        counts = (table_ends - _PAGE_HEADER_BYTES) // 2
        row, column = np.nonzero(np.arange(counts.max()) < counts[:, None])
        start = words[row, _PAGE_HEADER_BYTES // 2 + column]
        inside = (start >= table_ends[row]) & (start <= page_size - _NODE_HEADER_BYTES) & (start % 2 == 0)
        self._check(bool(np.all(inside)), "the place of a node")
        low, high, flags, key_size = (words[row, start // 2 + field] for field in range(4))
        return _Nodes(pages, row, start, low | high << 16, flags, key_size)

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise InputError(f"{self._folder}: data.mdb is damaged: {what} is impossible. Copy or convert it again.")


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of several pages: page row, byte in the page, and the header's fields."""

    pages: npt.NDArray[np.uint8]
    row: Int64s
    start: Int64s
    size: Int64s
    flags: Int64s
    key_size: Int64s


def _open_data_file(folder: Path) -> int:
    """A descriptor of folder/data.mdb, which must be a regular file."""
    path = folder / "data.mdb"
    try:
        # O_NONBLOCK: opening a FIFO of that name must not hang.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(_why_not_opened(folder, error)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{folder}: data.mdb is not a regular file; an LMDB keeps its records in one.")
    return descriptor


def _why_not_opened(folder: Path, error: OSError) -> str:
    if error.errno == errno.ENOTDIR:
        return f"{folder}: is a file; the source is the folder that holds data.mdb."
    if error.errno != errno.ENOENT:
        return f"{folder}: data.mdb cannot be opened: {error.strerror}."
    if not folder.exists():
        return f"{folder}: no such folder. Check `source`; relative paths start at the current folder."
    if (folder / "CURRENT").exists():
        return f"{folder}: is a LevelDB; copy it: samovar data leveldb --source {folder} --out {folder}_lmdb"
    return f"{folder}: holds no data.mdb, so it is not an LMDB."


def _newest_meta(folder: Path, descriptor: int, file_size_bytes: int) -> _Meta:
    """The later of the two meta pages; both must be whole."""
    first = _meta_at(folder, descriptor, 0, file_size_bytes)
    second = _meta_at(folder, descriptor, first.page_size, file_size_bytes)
    newest = max(first, second, key=lambda meta: meta.transaction)
    if newest.page_size != first.page_size or newest.flags & _DUPLICATES_FLAG:
        raise InputError(f"{folder}: data.mdb is damaged or holds several values per key. Copy or convert it again.")
    return newest


def _meta_at(folder: Path, descriptor: int, offset: int, file_size_bytes: int) -> _Meta:
    end = offset + _PAGE_HEADER_BYTES + _META.size
    if file_size_bytes < end:
        raise InputError(_cut_off(folder, file_size_bytes, end))
    fields = _META.unpack(_read_exactly(folder, descriptor, offset + _PAGE_HEADER_BYTES, _META.size))
    magic, version, _, _, page_size, *_, flags, depth, _, _, _, num_records, root, last_page, transaction = fields
    if magic != _MAGIC or version != _VERSION:
        raise InputError(
            f"{folder}: data.mdb is not an LMDB of data version {_VERSION}: at byte {offset} it has magic "
            f"0x{magic:08x}, version {version} instead of 0x{_MAGIC:08x}, version {_VERSION}. Copy or convert it again."
        )
    if page_size not in {1 << bits for bits in range(9, 17)}:
        raise InputError(f"{folder}: data.mdb is damaged: a page size of {page_size} bytes. Copy it again.")
    return _Meta(page_size, flags, depth, num_records, root, last_page, transaction)


def _cut_off(folder: Path, got_bytes: int, needed_bytes: int) -> str:
    return (
        f"{folder}: data.mdb has {got_bytes} bytes and needs at least {needed_bytes}: it was cut off, or is "
        "still being written. Copy or convert it again."
    )


def _read_many(folder: Path, descriptor: int, offsets: Int64s, sizes: Int64s) -> list[bytes]:
    """The given runs of bytes; one read for all if the gaps between them are small."""
    if len(offsets) == 0:
        return []
    first, end = int(offsets.min()), int((offsets + sizes).max())
    if end - first > 2 * int(sizes.sum()) + _MAX_GAP_BYTES:
        runs = zip(offsets.tolist(), sizes.tolist(), strict=True)
        return [_read_exactly(folder, descriptor, offset, size) for offset, size in runs]
    block = _read_exactly(folder, descriptor, first, end - first)
    starts = (offsets - first).tolist()
    return [block[start : start + size] for start, size in zip(starts, sizes.tolist(), strict=True)]


def _read_exactly(folder: Path, descriptor: int, offset: int, size: int) -> bytes:
    try:
        content = os.pread(descriptor, size, offset)
        while len(content) < size:
            more = os.pread(descriptor, size - len(content), offset + len(content))
            if not more:
                raise InputError(_cut_off(folder, os.fstat(descriptor).st_size, offset + size))
            content += more
    except OSError as error:
        raise InputError(f"{folder}: data.mdb cannot be read: {error.strerror}.") from error
    return content


def write_lmdb(
    folder: Path, records: Iterable[tuple[bytes, bytes]], beside: Mapping[str, bytes] = MappingProxyType({})
) -> bool:
    """Write (key, value) records, keys ascending, as a new LMDB; False if it exists already.

    The database is made next to its place and renamed, so `folder` is whole or absent. A folder that holds
    the same records already stays as it is. `beside` are other files of the folder, by name.

    Raises: InputError if `folder` is something else, or cannot be written.
    """
    if os.path.lexists(folder):
        _require_same(folder, records, beside)
        return False
    # Containers that share a file system may share process numbers.
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder.parent, f".{glob.escape(folder.name)}.*.partial")
        partial.mkdir()
        with owned(partial):
            _fill(partial, records)
            for name, content in beside.items():
                write_file(partial / name, [content])
        sync_folder(partial)
        if os.path.lexists(folder):  # another process was faster
            with LmdbFile(partial) as made:
                _require_same(folder, made.records(np.arange(len(made))), beside)
            return False
        partial.rename(folder)
        sync_folder(folder.parent)
    except (OSError, lmdb.Error) as error:
        raise InputError(f"{folder}: cannot be written: {error}. Choose another folder.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def _require_same(folder: Path, records: Iterable[tuple[bytes, bytes]], beside: Mapping[str, bytes]) -> None:
    advice = "Remove it, or choose another output folder."
    try:
        present = LmdbFile(folder)
    except InputError as error:
        raise InputError(f"{folder}: exists and is not a readable LMDB, so it is not replaced. {advice}") from error
    with present:
        for wanted, found in itertools.zip_longest(records, present.records(np.arange(len(present)))):
            if wanted != found:
                raise InputError(f"{folder}: exists with other records, so it is not replaced. {advice}")
    for name, content in beside.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            raise InputError(f"{folder}: exists with another {name}, so it is not replaced. {advice}")


def _fill(folder: Path, records: Iterable[tuple[bytes, bytes]]) -> None:
    environment = lmdb.open(os.fsencode(folder), map_size=_FIRST_MAP_BYTES, lock=False, sync=False, mode=0o644)
    with contextlib.closing(environment):
        for chunk in _chunks(records):
            while not _append(environment, chunk):
                environment.set_mapsize(2 * environment.info()["map_size"])
        environment.sync(True)


def _chunks(records: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Groups of records for one commit: many records, but not many large ones."""
    chunk, num_bytes = list[tuple[bytes, bytes]](), 0
    for record in records:
        chunk.append(record)
        num_bytes += len(record[1])
        if len(chunk) == _RECORDS_PER_COMMIT or num_bytes >= _BYTES_PER_COMMIT:
            yield chunk
            chunk, num_bytes = [], 0
    if chunk:
        yield chunk


def _append(environment: lmdb.Environment, chunk: list[tuple[bytes, bytes]]) -> bool:
    """Commit the records behind the last one; False if the map is too small for them."""
    try:
        with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            _, num_added = cursor.putmulti(chunk, overwrite=False, append=True)
    except lmdb.MapFullError:
        return False
    assert num_added == len(chunk), "the keys of the records must ascend"
    return True
