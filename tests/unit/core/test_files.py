"""Files are replaced whole, folders are synced where their file system can do that, and a run's folder is locked."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.core.files import locked, publish_file, sync_folder

GONE = "another job, which could not begin, deleted it at this moment; start again"


def test_a_file_comes_where_folders_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync_folder(Path("/proc"))  # one that cannot, as the folders that VirtualBox shares

    def refused(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    number = errno.EINVAL
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda of: (refused if Path(f"/proc/self/fd/{of}").is_dir() else fsync)(of))
    publish_file(tmp_path / "a", [b"whole"])
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync_folder(tmp_path)


def test_a_folder_is_one_jobs(tmp_path: Path) -> None:
    lock = locked(tmp_path, "taken")
    with pytest.raises(InputError, match="taken"):
        locked(tmp_path, "taken")
    os.close(lock)
    os.close(locked(tmp_path, "taken"))


def test_a_folder_that_another_job_deleted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=GONE):
        locked(tmp_path / "out", "taken")


def test_a_folder_that_another_job_deletes_just_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, lock_file = tmp_path / "out", fcntl.flock
    folder.mkdir()

    def late(descriptor: int, operation: int) -> None:
        folder.rmdir()
        lock_file(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InputError, match=GONE):
        locked(folder, "taken")
