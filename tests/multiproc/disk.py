"""A small file system of its own, which no other process sees and which is gone with the one that made it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MOUNT = 'mount -t tmpfs -o "size=$1,$2" tmpfs "$3" && echo mounted && exec cat'


class Disk:
    """The mount of a holder process: `place` as that process sees it, `inside(path)` as this one does."""

    def __init__(self, holder: "subprocess.Popen[str]", place: Path) -> None:
        self.place = place
        self._holder = holder

    def command(self, folder: Path) -> tuple[object, ...]:
        """The words before a command that shall see the disk and start in `folder`."""
        enter = ("nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "sh", "-c")
        return (*enter, 'cd "$0" && exec "$@"', folder)

    def inside(self, path: Path) -> Path:
        return Path(f"/proc/{self._holder.pid}/root{path}")


@contextmanager
def disk(place: Path, size: str, access: str = "rw") -> Iterator[Disk]:
    """Mount a tmpfs of `size` ("2m") at `place` in a namespace of its own; skips where that is not allowed."""
    place.mkdir()
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, "sh", size, access, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != "mounted\n":
            pytest.skip(f"needs the right to mount a tmpfs: {holder.communicate()[1].strip()}")
        yield Disk(holder, place)
    finally:
        holder.communicate()
