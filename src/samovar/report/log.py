"""samovar.log: every line that was shown, with its time."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from samovar.core.errors import InputError


def local_now() -> datetime:
    """The time of day here, with its offset."""
    return datetime.now().astimezone()


class Log:
    """Appends lines to `path`. A disk that gets full later costs lines, never the run: see `failure`."""

    def __init__(self, path: Path, now: Callable[[], datetime] = local_now) -> None:
        self._now = now
        self.failure: str | None = None
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise InputError(
                f"{path} cannot be written: {error.strerror}; give a folder that can be written to with --out"
            ) from error
        self._path = path

    def write(self, text: str) -> None:
        """Add `text` (each of its lines) under the present time."""
        stamp = self._now().isoformat(timespec="milliseconds")
        lines = "".join(f"{stamp} {line}\n" for line in text.splitlines())
        try:
            self._file.write(lines.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self.failure = f"{self._path} cannot be written: {error.strerror}"

    def close(self) -> None:
        self._file.close()
