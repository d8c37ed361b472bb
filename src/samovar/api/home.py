"""Where a job's own center lies."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Home:
    """With rank 0, in memory that `ranks` map, which share its host.

    Where there are others, they reach that host at `address`, and `key_file` names the job's key on each host.
    """

    ranks: tuple[int, ...]
    address: str | None = None
    key_file: Path | None = None
