"""Folders of one job, and the lock on a run's folder."""

import fcntl
import os
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.launcher.passing import locked

GONE = "another job, which could not begin, deleted it at this moment; start again"


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
