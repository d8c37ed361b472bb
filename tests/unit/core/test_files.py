"""Folders are synced where their file system can do that."""

import errno
import os
from pathlib import Path

import pytest

from samovar.core.files import publish_file, sync_folder


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
