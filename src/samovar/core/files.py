"""Files, read whole or on the disk when the call returns; and folders whose owner may die: locked, or of one job."""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from samovar.core.errors import InputError

_LOCK, _PREFIX = ".running", "samovar-"


@dataclass(frozen=True, slots=True)
class FileMark:
    """How a file is recognised again: its size and the SHA-256 of its content (lower-case hex)."""

    size_bytes: int
    sha256: str


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> FileMark:
    """Create `path` from `pieces`, fsync it and return its mark; raises OSError.

    The hash is of the bytes as they were in memory, so a fault on the way to the disk shows at the next read.
    """
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("xb") as file:
        for piece in pieces:
            digest.update(piece)
            size_bytes += len(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileMark(size_bytes, digest.hexdigest())


def mark_of(path: Path) -> FileMark:
    """Read `path` once and return its mark; raises OSError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileMark(file.tell(), digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """Make names created in, renamed into or removed from `folder` durable, if its file system can; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the answer of folders that a virtual machine shares, for example
            raise
    finally:
        os.close(descriptor)


def publish_file(path: Path, pieces: Iterable[bytes | memoryview]) -> FileMark:
    """Write `pieces` next to `path` and rename: `path` is the whole new file or the old one. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.unlink(missing_ok=True)  # of a process that was killed, and had the same number in its container
        mark = write_file(partial, pieces)
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)
    return mark


def opened(path: Path) -> BinaryIO:
    """A file, to be read. Raises OSError for a pipe of its name, whose opening would wait for a writer."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return path.open("rb")


def start_of(path: Path, num_bytes: int) -> bytes:
    """The first bytes of a regular file; none if it cannot be read."""
    try:
        with opened(path) as file:
            return file.read(num_bytes)
    except (OSError, ValueError):
        return b""


def read_file(path: Path, kind: str, max_bytes: int) -> bytes:
    """The bytes of the regular file `path`; `kind` ("solver", "caffemodel") is for the message.
    Raises InputError if it does not exist, cannot be read, or has more than `max_bytes`."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is not a regular file; give a {kind} file")
        size = path.stat().st_size
        if size > max_bytes:
            raise InputError(f"{path}: has {size} bytes; a {kind} may have at most {max_bytes}")
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such {kind} file (looked from {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: cannot read the {kind} file: {reason}") from None


def write_whole(path: Path, content: bytes, flag: str = "") -> None:
    """Write `path`, also over an old file; it is whole, or as before. InputError, beginning with `flag`, on failure."""
    try:
        publish_file(path, [content])
    except OSError as error:
        raise InputError(f"{flag}{path}: cannot be written: {error.strerror}; give another name") from error


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Keep `folder` from `remove_abandoned` by a lock in it, which any death opens. A file system may have no locks."""
    with (folder / f"{_LOCK}-soon").open("xb") as file:
        path = Path(file.name)
        try:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path = path.rename(folder / _LOCK)  # only now: an open one is that of a dead owner
            yield
        finally:
            path.unlink(missing_ok=True)


def remove_abandoned(parent: Path, names: str) -> None:
    """Delete this user's folders of these names whose owners died. One without a lock stays."""
    for path in parent.glob(names):
        with suppress(OSError):
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                with (path / _LOCK).open("r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while the owner lives
                    shutil.rmtree(path, ignore_errors=True)


class PassingFolder:
    """A new folder in the temporary one; `keep` it, or it is deleted at the end of the `with` block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_kept = False

    def keep_if_told(self) -> None:
        """Keep it if a rank has written into its log there."""
        self.is_kept = self.is_kept or any(log.stat().st_size for log in self.path.glob("rank*.log"))


def locked(folder: Path, refusal: str) -> int:
    """A descriptor that keeps other jobs out of `folder` as long as it is open. A file system may have no locks."""
    gone = InputError(f"{folder}: another job, which could not begin, deleted it at this moment; start again")
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise gone from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise InputError(refusal) from error
    except OSError:
        pass
    if not os.fstat(lock).st_nlink:
        os.close(lock)
        raise gone
    return lock


@contextmanager
def passing_folder(name: str) -> Iterator[PassingFolder]:
    """A folder whose name begins with `name`."""
    try:
        remove_abandoned(Path(tempfile.gettempdir()), f"{_PREFIX}*")
    except FileNotFoundError as error:
        raise InputError(f"{error.strerror}; set TMPDIR to a folder that can be written to") from error
    folder = PassingFolder(Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-")))
    try:
        with owned(folder.path):
            yield folder
    finally:
        if not folder.is_kept:
            shutil.rmtree(folder.path, ignore_errors=True)
