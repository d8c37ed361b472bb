"""Folders that belong to one job: deleted at its end, or by a later job if their owner died; or kept, and locked."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from samovar.core.errors import InputError

_PREFIX, _LOCK = "samovar-", ".running"


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
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise InputError(refusal) from error
    except OSError:
        pass
    return lock


@contextmanager
def passing_folder(name: str) -> Iterator[PassingFolder]:
    """A folder whose name begins with `name`. Its owner locks a file in it; any death opens the lock."""
    try:
        remove_abandoned(Path(tempfile.gettempdir()))
    except FileNotFoundError as error:
        raise InputError(f"{error.strerror}; set TMPDIR to a folder that can be written to") from error
    folder = PassingFolder(Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-")))
    fresh = folder.path / f"{_LOCK}-soon"
    lock = os.open(fresh, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh.rename(folder.path / _LOCK)  # only now: an open one is that of a dead owner
        yield folder
    finally:
        if folder.is_kept:
            (folder.path / _LOCK).unlink(missing_ok=True)
        else:
            shutil.rmtree(folder.path, ignore_errors=True)
        os.close(lock)


def remove_abandoned(parent: Path) -> None:
    """Delete this user's folders whose owners died. A folder that was kept has no lock, and stays."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and _is_abandoned(path / _LOCK):
                shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(lock: Path) -> bool:
    """Raises OSError if there is no lock, or another process holds it."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
    return True
