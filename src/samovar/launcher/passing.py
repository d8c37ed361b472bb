"""Folders that belong to one job: deleted at its end, or by a later job if their owner died; or kept, and locked."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from samovar.core.durable import owned, remove_abandoned
from samovar.core.errors import InputError

_PREFIX = "samovar-"


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
